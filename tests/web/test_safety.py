"""R1, R3: whatever a user or a model writes is text. The server's policy must never be what stops it."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests.web.chat_page import ChatPage
from tests.web.conftest import OpenPage
from tests.web.page_server import PageServer, replying
from tests.web.payloads import FAKE_SERVER, GUARD, MORE, PAYLOADS

pytestmark = pytest.mark.browser

CORPUS = "\n\n".join([*PAYLOADS, *MORE])
LINKS = """- [the docs](https://docs.example/x)
- [https://bank.example](https://evil.example/)
- https://plain.example/a_b.
- [me@mail.example](mailto:me@mail.example)
- [click](javascript:alert(1))
"""


def test_there_are_60_payloads() -> None:
    assert len(set(PAYLOADS)) == 60


def test_r1_whole_payloads_are_text_wherever_they_stand(
    data_dir: Path, built_page: Path, open_page: OpenPage
) -> None:
    runner = replying(lambda text: CORPUS, 2048)
    with PageServer(data_dir, runner, context_length=32_000) as server:
        chat = open_page(server.url, before=lambda page: page.add_init_script(GUARD))
        chat.ask(CORPUS)  # the title too is made of it
        chat.page.reload()
        chat.wait_ended()
        for article in (chat.questions.last, chat.answer):
            shown = article.inner_text()
            assert "<script>alert(1)</script>" in shown
            assert "onerror=alert(1)" in shown
        scripts = ":not([src^='./assets/']):not([src='./look.js'])"
        foreign = f"script{scripts}, iframe, object, embed, img, base, form[action], style, template"
        expect(chat.page.locator(foreign)).to_have_count(0)
        assert chat.page.evaluate("chatdForeign") == []
        hosts = chat.page.locator("article a").evaluate_all("links => links.map(link => link.href)")
        evil = "https://evil.example/"
        assert set(hosts) == {
            evil,
            f"{evil}pixel.gif",
            f"{evil}i.png",
            "https://bank.example/",
            "http://www.evil.example/",
            f"{evil}%22onmouseover=alert(1)",
        }


@pytest.mark.parametrize(
    "payloads",
    [PAYLOADS[1::3] + MORE, pytest.param(PAYLOADS + MORE, marks=pytest.mark.full)],
    ids=["a third of them", "all"],
)
def test_r1_payloads_cut_at_each_delta(server: PageServer, open_page: OpenPage, payloads: list[str]) -> None:
    """Each payload as an answer of its own, painted after every character."""

    def before(page: Page) -> None:
        page.add_init_script(GUARD)
        page.add_init_script(FAKE_SERVER)

    chat = open_page(server.url, before=before)
    for number, payload in enumerate(payloads, 1):
        chat.send(payload)
        expect(chat.answers).to_have_count(number)
        chat.wait_ended()
    assert chat.page.evaluate("chatdPaints") == sum(map(len, payloads))
    expect(chat.page.locator(".katex, .katex-error").first).to_be_attached()
    expect(chat.page.locator(".hljs-tag, .hljs-name").first).to_be_attached()
    assert chat.page.evaluate("chatdForeign") == []


@pytest.mark.parametrize(
    "payload", ["<img src=x onerror=alert(1)>", "`${alert(1)}`\"'><svg/onload=alert(1)>"]
)
def test_r1_a_file_and_its_name_are_text(chat: ChatPage, payload: str) -> None:
    name = f"{payload.replace('/', '')}.md"
    file = FilePayload(name=name, mimeType="text/plain", buffer=payload.encode())
    chat.page.get_by_label("Add text files").and_(chat.page.locator("input")).set_input_files([file])
    expect(chat.page.get_by_role("list", name="Added files").get_by_role("listitem")).to_have_count(1)
    chat.send_button.click()
    chat.wait_ended()
    chat.questions.last.locator("summary").click()
    expect(chat.questions.last.locator("pre")).to_have_text(payload)


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


@pytest.mark.parametrize("path", ["nowhere", "assets/nowhere.js", "api/v1/nowhere", "api/v1/conversations/x"])
def test_r3_pages_of_errors_come_with_a_policy(chat: ChatPage, path: str) -> None:
    response = chat.page.request.get(chat.url + path)
    assert response.status == 404
    _check_headers(response.headers)


def test_r3_the_page_and_what_it_loads_come_with_a_policy(chat: ChatPage, built_page: Path) -> None:
    files = [path.relative_to(built_page) for path in built_page.rglob("*") if path.is_file()]
    for path in ["", *map(str, files)]:
        _check_headers(chat.page.request.get(chat.url + path).headers)


def _check_headers(headers: Mapping[str, str]) -> None:
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "script-src 'self'" in policy
    assert "style-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "require-trusted-types-for 'script'; trusted-types chatd dompurify;" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_nothing_but_the_pages_own_policies_makes_markup(chat: ChatPage) -> None:
    """Trusted Types are on: no text becomes an element, a script or a worker by any other way."""
    assert (
        chat.page.evaluate(
            """() => [
            () => { document.body.innerHTML = "<b>x</b>"; },
            () => { document.createElement("script").src = "./look.js"; },
            () => trustedTypes.createPolicy("another", {}),
            () => trustedTypes.createPolicy("chatd", {}),
        ].map((attempt) => { try { attempt(); return "done"; } catch (error) { return error.name; } })"""
        )
        == ["TypeError"] * 4
    )
    assert chat.page.evaluate(
        "navigator.serviceWorker.register('./evil.js').catch((error) => error.name)"
    ) == ("TypeError")
    chat.troubles.found.clear()  # the browser reported each
