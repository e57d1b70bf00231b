"""Waiting, following, typing, small screens, sub-paths, and the weight of the page."""

import gzip
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.web.chat_page import ChatPage
from tests.web.conftest import OpenPage, first_load
from tests.web.page_server import PageServer, replying

pytestmark = pytest.mark.browser

MOST_FIRST_LOAD_BYTES = 120 * 1024
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def test_the_place_in_the_queue_is_shown(data_dir: Path, built_page: Path, open_page: OpenPage) -> None:
    with PageServer(data_dir, replying(str.upper), max_running=1) as server:
        chat = open_page(server.url)
        server.pace.allow(1)
        chat.send("the first")
        expect(chat.answer_text).to_have_text("T")
        for _ in range(2):
            chat.sidebar.get_by_role("link", name="New chat").click()
            chat.send("a later one")
        expect(chat.sidebar.get_by_role("img", name="Answering")).to_have_count(3)
        server.pace.allow(3)  # steps of the first, in which the others hear of their places
        expect(chat.answer.get_by_text("In the queue, number 2")).to_be_visible()
        server.pace.free()
        chat.wait_ended()


def test_progress_of_a_long_prompt_is_shown(data_dir: Path, built_page: Path, open_page: OpenPage) -> None:
    with PageServer(data_dir, replying(lambda text: "read"), step_tokens=16) as server:
        chat = open_page(server.url)
        server.pace.allow(0)
        chat.send("word " * 300)
        expect(chat.answer.get_by_text(re.compile(r"Reading [\d,]+ of [\d,]+ tokens"))).to_be_visible()
        server.pace.free()
        chat.wait_ended()


def test_the_end_is_followed_only_from_the_end(data_dir: Path, built_page: Path, open_page: OpenPage) -> None:
    lines = "\n\n".join(f"paragraph {number}" for number in range(60))
    with PageServer(data_dir, replying(lambda text: lines)) as server:
        chat = open_page(server.url)
        server.pace.allow(400)
        chat.send("many lines")
        expect(chat.answer_text.get_by_text("paragraph 25")).to_be_in_viewport()
        jump = chat.page.get_by_role("button", name="Jump to the newest text")
        expect(jump).to_have_count(0)
        chat.page.mouse.move(640, 300)
        chat.page.mouse.wheel(0, -400)
        expect(jump).to_be_visible()
        top = chat.page.locator(".scroller").evaluate("element => element.scrollTop")
        server.pace.free()
        chat.wait_ended()
        assert chat.page.locator(".scroller").evaluate("element => element.scrollTop") == top
        expect(chat.answer_text.get_by_text("paragraph 59")).not_to_be_in_viewport()
        jump.click()
        expect(chat.answer_text.get_by_text("paragraph 59")).to_be_in_viewport()
        expect(jump).to_have_count(0)


def test_the_end_is_followed_though_text_becomes_shorter_and_longer(chat: ChatPage) -> None:
    """As a formula does that is set, or code that is coloured: nobody scrolled."""
    chat.ask("line\n\n" * 60 + "end")
    chat.page.locator(".prose p").first.evaluate(
        """async (paragraph) => {
            for (const height of ["500px", "20px", "600px"]) {
                paragraph.style.height = height;
                paragraph.offsetHeight;  // laid out: the end is nearer, or further
                if (height === "500px") await new Promise(requestAnimationFrame);
            }
        }"""
    )
    expect(chat.answer_text.get_by_text("end")).to_be_in_viewport()
    expect(chat.page.get_by_role("button", name="Jump to the newest text")).to_have_count(0)


def test_enter_sends_and_shift_enter_does_not(chat: ChatPage) -> None:
    chat.composer.fill("two")
    chat.page.keyboard.press("Shift+Enter")
    chat.page.keyboard.type("lines")
    expect(chat.composer).to_have_value("two\nlines")
    chat.page.keyboard.press("Enter")
    chat.wait_ended()
    assert chat.messages()[0]["text"] == "two\nlines"


def test_enter_that_ends_a_composition_does_not_send(chat: ChatPage) -> None:
    input_method = chat.page.context.new_cdp_session(chat.page)
    chat.composer.focus()
    input_method.send("Input.imeSetComposition", {"text": "ni", "selectionStart": 2, "selectionEnd": 2})
    enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
    input_method.send("Input.dispatchKeyEvent", {"type": "rawKeyDown", **enter})
    input_method.send("Input.insertText", {"text": "你好"})
    expect(chat.composer).to_have_value("你好")
    # Some browsers end the composition first and tell by the key code alone.
    input_method.send("Input.dispatchKeyEvent", {"type": "rawKeyDown", **enter, "windowsVirtualKeyCode": 229})
    expect(chat.questions).to_have_count(0)
    chat.page.keyboard.press("Enter")
    expect(chat.questions).to_contain_text("你好")


def test_the_figures_are_whole_lines_at_every_width(chat: ChatPage) -> None:
    """What opens the X-ray stands beside them, never on a line of its own."""
    chat.ask("first")
    chat.ask("second")
    for width in range(360, 1441, 90):
        chat.page.set_viewport_size({"width": width, "height": 800})
        sign, figures = (
            chat.answer.locator(f".line {part}").evaluate(
                "element => element.getBoundingClientRect().toJSON()"
            )
            for part in (".sign", "ul")
        )
        assert sign["left"] >= figures["right"], width
        assert figures["top"] <= sign["top"] < sign["bottom"] <= figures["bottom"], width
        assert sign["right"] <= width
        assert chat.page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everything_fits_a_phone(server: PageServer, open_page: OpenPage, theme: str) -> None:
    chat = open_page(server.url, color_scheme=theme, **PHONE)
    chat.ask(
        "a_very_long_word_without_any_place_to_break_it_" * 4
        + " and `code_of_the_same_kind_"
        + "x" * 80
        + "`"
    )
    chat.press("Answer again")
    chat.wait_ended()
    assert chat.page.evaluate("() => document.documentElement.scrollWidth") == 390
    overflowing = chat.page.evaluate(
        """() => [...document.querySelectorAll('main *, header *, form *')]
            .filter((element) => !element.closest('pre'))
            .filter((element) => element.getBoundingClientRect().right > innerWidth + 0.5)
            .map((element) => element.outerHTML.slice(0, 80))"""
    )
    assert overflowing == []
    expect(chat.sidebar).not_to_be_visible()
    chat.page.get_by_role("button", name="Show conversations").click()
    expect(chat.sidebar).to_be_visible()
    chat.sidebar.get_by_role("link", name="New chat").click()
    expect(chat.sidebar).not_to_be_visible()
    expect(chat.questions).to_have_count(0)


def test_on_a_phone_the_placeholder_is_one_whole_line(server: PageServer, open_page: OpenPage) -> None:
    chat = open_page(server.url, **PHONE)
    expect(chat.composer).to_have_attribute("placeholder", "Write a message")
    height = "element => element.getBoundingClientRect().height"
    empty = chat.composer.evaluate(height)
    chat.composer.evaluate("element => element.placeholder = 'A placeholder in a wordy language ' .repeat(4)")
    chat.composer.fill("x")
    chat.composer.fill("")
    assert chat.composer.evaluate(height) == empty
    assert chat.page.evaluate("() => document.documentElement.scrollWidth") == 390


def test_on_a_phone_every_conversation_can_be_renamed_and_deleted(
    server: PageServer, open_page: OpenPage
) -> None:
    chat = open_page(server.url, **PHONE)
    for title in ("the older one", "the newer one"):
        chat.page.goto(chat.url)
        chat.ask(title)
    chat.page.get_by_role("button", name="Show conversations").click()
    older = chat.sidebar.get_by_role("group", name="Actions for “the older one”")
    older.get_by_role("button", name="Rename").click()
    chat.page.get_by_label("Title of the conversation").fill("renamed")
    chat.page.keyboard.press("Enter")
    renamed = chat.sidebar.get_by_role("group", name="Actions for “renamed”")
    renamed.get_by_role("button", name="Delete").click()
    expect(chat.sidebar.get_by_role("listitem")).to_have_count(1)


def test_lists_tables_and_quotes_fit_a_phone(data_dir: Path, built_page: Path, open_page: OpenPage) -> None:
    wide = "| " + " | ".join(["a column with words"] * 8) + " |\n" + "|---" * 8 + "|\n"
    nested = "1. one\n   - two\n     - three " + "x" * 200 + "\n\n> quoted " + "y" * 200 + "\n\n"
    with PageServer(data_dir, replying(lambda text: nested + wide + "| cell " * 8 + "|")) as server:
        chat = open_page(server.url, **PHONE)
        chat.ask("a table")
        expect(chat.answer_text.locator("ol > li > ul > li > ul > li")).to_have_count(1)
        expect(chat.answer_text.locator("td")).to_have_count(8)
        assert chat.page.evaluate("() => document.documentElement.scrollWidth") == 390


def test_the_page_works_under_a_sub_path(data_dir: Path, built_page: Path, open_page: OpenPage) -> None:
    with PageServer(data_dir, replying(str.upper), prefix="/deep/chat") as server:
        chat = open_page(server.url)
        chat.ask("below")
        expect(chat.answer_text).to_have_text("BELOW")
        expect(chat.sidebar.get_by_role("link", name="below")).to_be_visible()


def test_every_control_has_a_name(chat: ChatPage) -> None:
    chat.ask("name them")
    nameless = chat.page.evaluate(
        """() => [...document.querySelectorAll('button, a, input, textarea')]
            .filter((element) => !(element.getAttribute('aria-label') || element.textContent.trim()))
            .map((element) => element.outerHTML)"""
    )
    assert nameless == []
    expect(chat.status).to_have_count(1)


def test_the_first_load_is_light(built_page: Path) -> None:
    total = sum(len(gzip.compress(path.read_bytes(), 9)) for path in first_load(built_page))
    assert total <= MOST_FIRST_LOAD_BYTES, f"{total:,} bytes"


def test_the_page_names_no_other_host(built_page: Path) -> None:
    text = "".join(
        path.read_text() for path in built_page.rglob("*") if path.suffix in (".js", ".css", ".html", ".svg")
    )
    hosts = set(re.findall(r"https?://([\w.-]+)", text))
    assert hosts <= {"www.w3.org", "svelte.dev", "github.com"}  # names of XML namespaces; texts of errors
    first = "".join(path.read_text() for path in first_load(built_page))
    assert "innerHTML=" not in first.replace(" ", "")
