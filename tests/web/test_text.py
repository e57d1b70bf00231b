"""What becomes of Markdown, code and formulas in the page. Parsing has tests of its own in web/src/text."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.web.conftest import OpenPage
from tests.web.page_server import PageServer, replying

pytestmark = pytest.mark.browser

CODE = "```python\ndef double(x):\n    return 2 * x  # '<b>'\n```"
MATH = "So \\(a^2\\) and $$b$$ follow, for $5:\n\n$$\n\\frac{1}{2}\n$$\n\nand \\(\\nonsense{x}\\) stays."


def test_code_is_coloured_while_it_streams_and_copied_as_it_is(
    data_dir: Path, built_page: Path, open_page: OpenPage
) -> None:
    with PageServer(data_dir, replying(lambda text: CODE)) as server:
        chat = open_page(server.url, permissions=["clipboard-read", "clipboard-write"])
        server.pace.allow(len(CODE) - 20)
        chat.send("code, please")
        code = chat.answer_text.locator("code")
        expect(code.locator(".hljs-keyword").first).to_have_text("def")  # coloured before its end
        server.pace.free()
        chat.wait_ended()
        expect(code.locator(".hljs-comment")).to_have_text("# '<b>'")
        expect(code).to_have_text("def double(x):\n    return 2 * x  # '<b>'", use_inner_text=True)
        chat.press("Copy code")
        expect(chat.answer.get_by_role("button", name="Copied")).to_be_visible()
        assert chat.page.evaluate("navigator.clipboard.readText()").startswith("def double(x):\n    return")


def test_code_of_an_unknown_language_stays_plain(
    data_dir: Path, built_page: Path, open_page: OpenPage
) -> None:
    with PageServer(data_dir, replying(lambda text: "```klingon\nqapla' = 1\n```")) as server:
        chat = open_page(server.url)
        chat.ask("code, please")
        expect(chat.answer_text.locator("code")).to_have_text("qapla' = 1")
        expect(chat.answer_text.locator("code span")).to_have_count(0)


def test_formulas_are_typeset_and_a_price_is_none(
    data_dir: Path, built_page: Path, open_page: OpenPage
) -> None:
    with PageServer(data_dir, replying(lambda text: MATH)) as server:
        chat = open_page(server.url)
        chat.ask("formulas, please")
        expect(chat.answer_text.locator(".katex")).to_have_count(3)
        expect(chat.answer_text.locator(".katex-display mfrac")).to_have_count(1)
        expect(chat.answer_text.locator("math")).to_have_count(3)  # for screen readers
        expect(chat.answer_text).to_contain_text("follow, for $5:")
        expect(chat.answer_text).to_contain_text("\\nonsense{x}")


def test_what_formulas_and_colours_need_is_fetched_only_then(
    data_dir: Path, built_page: Path, open_page: OpenPage
) -> None:
    fetched: list[str] = []

    def before(page: Page) -> None:
        page.on("request", lambda request: fetched.append(request.url))

    runner = replying(lambda text: f"{CODE}\n\n{MATH}" if "all" in text else "plain")
    with PageServer(data_dir, runner) as server:
        chat = open_page(server.url, before=before)
        chat.ask("nothing special")
        first = [url for url in fetched if "/assets/" in url]
        assert not any("common" in url or "formulas" in url for url in first)
        chat.ask("all of it")
        expect(chat.answer_text.locator(".katex").first).to_be_visible()
        expect(chat.answer_text.locator(".hljs-keyword").first).to_be_visible()
        assert any("formulas" in url for url in fetched)


def test_without_a_connection_formulas_and_code_stay_readable(
    data_dir: Path, built_page: Path, open_page: OpenPage
) -> None:
    def lost(route: Route) -> None:
        route.abort()

    with PageServer(data_dir, replying(lambda text: CODE + "\n\n" + MATH)) as server:
        chat = open_page(server.url, service_workers="block")
        chat.troubles.found.clear()  # the browser says that it blocks them
        chat.page.route("**/assets/{common,formulas,purify}*", lost)
        chat.ask("all of it")
        expect(chat.answer_text).to_contain_text("So a^2 and b follow")
        expect(chat.answer_text.locator("code")).to_contain_text("return 2 * x")


def test_tasks_deletions_elements_and_labels(data_dir: Path, built_page: Path, open_page: OpenPage) -> None:
    text = "- [x] done ~~gone~~\n- [ ] open\n\nH<sub>2</sub>O &amp; <kbd>Esc</kbd><br>next <b onclick=x>b</b>"
    text += "\n\nA title\n===\n\nSee [the docs][D], not [this][one].\n\n    indented()\n\n[d]: https://docs.example/x"
    with PageServer(data_dir, replying(lambda _: text)) as server:
        chat = open_page(server.url)
        chat.ask("all of it")
        expect(chat.answer_text.get_by_role("heading", name="A title")).to_have_attribute("data-level", "1")
        expect(chat.answer_text.locator("a")).to_have_text(["the docs (docs.example)"])
        expect(chat.answer_text.get_by_text("not [this][one].")).to_be_visible()
        expect(chat.answer_text.locator("pre")).to_have_text("indented()")
        expect(chat.answer_text).not_to_contain_text("https://docs.example")
        expect(chat.answer_text.get_by_role("img", name="Done")).to_have_count(1)
        expect(chat.answer_text.get_by_role("img", name="To do")).to_have_count(1)
        expect(chat.answer_text.locator("del")).to_have_text("gone")
        expect(chat.answer_text.locator("sub")).to_have_text("2")
        expect(chat.answer_text).to_contain_text("O & Esc")
        expect(chat.answer_text).to_contain_text("<b onclick=x>b</b>")
