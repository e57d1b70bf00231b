"""R1, R3: whatever a user or a model writes is text. The server's policy must never be what stops it."""

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.web.chat_page import ChatPage
from tests.web.conftest import OpenPage
from tests.web.page_server import PageServer, replying

pytestmark = pytest.mark.browser

PAYLOADS = [
    "<script>alert(1)</script>",
    '"><script src=//evil.example/x.js></script>',
    "<img src=x onerror=alert(1)>",
    "<img src=//evil.example/pixel.gif>",
    "<svg/onload=alert(1)>",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<svg><use href='data:image/svg+xml,<svg id=x onload=alert(1)/>#x'>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
    "<iframe srcdoc='<script>parent.alert(1)</script>'></iframe>",
    "<iframe src=javascript:alert(1)>",
    "<a href=javascript:alert(1) autofocus onfocus=alert(1)>x</a>",
    "[click](javascript:alert(1))",
    "![pixel](https://evil.example/pixel.gif)",
    "<details open ontoggle=alert(1)>",
    "<input autofocus onfocus=alert(1)>",
    "<style>@import '//evil.example/x.css';</style>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<base href=//evil.example/>",
    "<form action=//evil.example><button>x</button></form>",
    "<object data=javascript:alert(1)></object>",
    "<embed src=//evil.example/x.swf>",
    "<body onpageshow=alert(1)>",
    "```<img src=x onerror=alert(1)>\n</code></pre><script>alert(1)</script>\n```",
    "`<img src=x onerror=alert(1)>`",
    "**<img src=x onerror=alert(1)>**",
    "# <img src=x onerror=alert(1)>",
    "{@html '<img src=x onerror=alert(1)>'}",
    "${alert(1)} {{constructor.constructor('alert(1)')()}}",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#60;script&#62;",
    "\u202ealert(1)\u202c \u2028 <\u0130mg src=x onerror=alert(1)>",
    "<template><script>alert(1)</script></template>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
]
CORPUS = "\n\n".join(PAYLOADS)
LINKS = """- [the docs](https://docs.example/x)
- [https://bank.example](https://evil.example/)
- https://plain.example/a_b.
- [me@mail.example](mailto:me@mail.example)
- [click](javascript:alert(1))
"""


def test_r1_payloads_are_text_wherever_they_stand(
    data_dir: Path, built_page: Path, open_page: OpenPage
) -> None:
    with PageServer(data_dir, replying(lambda text: CORPUS)) as server:
        chat = open_page(server.url)
        chat.ask(CORPUS)  # the title too is made of it
        chat.page.reload()
        chat.wait_ended()
        for article in (chat.questions.last, chat.answer):
            shown = article.inner_text()
            assert "<script>alert(1)</script>" in shown
            assert "onerror=alert(1)" in shown
        foreign = "script:not([src^='./assets/']):not([src='./look.js']), iframe, object, embed, img, base, form[action], style"
        expect(chat.page.locator(foreign)).to_have_count(0)
        expect(chat.page.locator("article svg [onload], [onerror], [onfocus]")).to_have_count(0)
        links = chat.page.locator("article a")
        expect(links).to_have_count(1)  # the picture: named, not fetched
        expect(links).to_have_text("pixel (evil.example)")
        expect(links).to_have_attribute("href", "https://evil.example/pixel.gif")


def test_r1_links_open_apart_and_say_where_they_lead(
    data_dir: Path, built_page: Path, open_page: OpenPage
) -> None:
    with PageServer(data_dir, replying(lambda text: LINKS)) as server:
        chat = open_page(server.url)
        chat.ask("links, please")
        links = chat.answer_text.locator("a")
        expect(links).to_have_text(
            [
                "the docs (docs.example)",
                "https://bank.example (evil.example)",
                "https://plain.example/a_b",
                "me@mail.example",
            ]
        )
        for link in links.all():
            expect(link).to_have_attribute("rel", "noopener noreferrer")
            expect(link).to_have_attribute("target", "_blank")
        expect(chat.answer_text).to_contain_text("[click](javascript:alert(1))")


def test_r1_a_title_is_text(chat: ChatPage) -> None:
    chat.ask("<img src=x onerror=alert(1)>")
    expect(chat.sidebar.get_by_role("link", name="<img src=x onerror=alert(1)>")).to_be_visible()
    expect(chat.page.get_by_role("heading", level=1)).to_have_text("<img src=x onerror=alert(1)>")
    assert chat.page.title().startswith("<img src=x")


def test_r3_the_page_and_what_it_loads_come_with_a_policy(chat: ChatPage, built_page: Path) -> None:
    files = [path.relative_to(built_page) for path in built_page.rglob("*") if path.is_file()]
    for path in ["", *map(str, files)]:
        headers = chat.page.request.get(chat.url + path).headers
        policy = headers["content-security-policy"]
        assert "unsafe-inline" not in policy
        assert "script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_the_page_works_under_trusted_types(
    data_dir: Path, built_page: Path, open_page: OpenPage, tmp_path: Path
) -> None:
    """No component needs a way to turn text into markup: so a policy can forbid it outright."""
    policy = "require-trusted-types-for 'script'; trusted-types"
    web = tmp_path / "web"
    shutil.copytree(built_page, web)
    index = (web / "index.html").read_text()
    every_block = (
        "`a`\n\n# b\n\n```js\nc\n```\n> - [d](http://d.example)\n\n| e |\n| --: |\n| f |\n\n---\n3. *g*"
    )
    meta = f'<head><meta http-equiv="content-security-policy" content="{policy}">'
    (web / "index.html").write_text(index.replace("<head>", meta))
    with PageServer(data_dir, replying(lambda text: every_block), web=web) as server:
        chat = open_page(server.url)
        chat.ask("still works?")
        expect(chat.answer_text.locator("code")).to_have_count(2)
        expect(chat.answer_text.locator("td.end, hr, ol[start='3'] em, blockquote ul a")).to_have_count(4)
