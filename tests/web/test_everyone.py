"""The page for everyone: axe finds nothing on any view, keyboards reach everything, phones and paper too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.web.chat_page import ChatPage
from tests.web.conftest import ROOT, OpenPage
from tests.web.history import fill_history
from tests.web.page_server import PageServer
from tests.web.views import DESKTOP, PHONE, VIEWS, Variant, prepare, rich_server, visit_in

pytestmark = pytest.mark.browser

AXE = ROOT / "web/node_modules/axe-core/axe.min.js"

FORMS = [
    Variant("phone", "light", "en", is_phone=True),
    Variant("desktop-zh", "light", "zh-CN"),
    Variant("desktop", "light", "en"),
    Variant("phone-zh", "light", "zh-CN", is_phone=True),
]
"""Each is looked at in both themes."""
AGAIN = {"search_nothing", "settings_data", "reports_below", "reports_what_if", "cache_below", "full"}
"""Views of what another one has too."""
ONCE = {name: FORMS[at % len(FORMS)] for at, name in enumerate(VIEWS) if name not in AGAIN}
ONCE |= {"sidebar": FORMS[0], "history": FORMS[3]}  # on a phone a drawer
ALL = [
    pytest.param(name, form, marks=[] if ONCE.get(name) == form else pytest.mark.full)
    for name in VIEWS
    for form in FORMS
]


@pytest.fixture(scope="module")
def shared(built_page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """One for all views: none of them looks at what the others left."""
    data_dir = tmp_path_factory.mktemp("views")
    for chinese in (False, True):
        fill_history(data_dir, chinese=chinese)
    with rich_server(data_dir) as server:
        prepare(server)
        yield server


@pytest.mark.parametrize(("name", "variant"), ALL, ids=lambda value: getattr(value, "name", value))
def test_axe_finds_nothing(browser: Browser, shared: PageServer, name: str, variant: Variant) -> None:
    visit = visit_in(browser, shared, variant)
    try:
        VIEWS[name](visit)
        visit.page.evaluate(AXE.read_text())
        light, dark = (_violations(visit.page, theme) for theme in ("light", "dark"))
    finally:
        shared.pace.free()
        visit.page.context.close()
    assert (light, dark) == ([], [])


def _violations(page: Page, theme: Literal["light", "dark"]) -> list[tuple[str, list[str]]]:
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.evaluate("Promise.all(document.getAnimations().map((one) => one.finished))")
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [(each["id"], [node["html"][:160] for node in each["nodes"]]) for each in found["violations"]]


def test_the_tab_key_goes_through_the_page_in_reading_order(chat: ChatPage) -> None:
    chat.ask("order")
    chat.page.get_by_role("link", name="Skip to the message field").focus()
    names = []
    for _ in range(17):
        names.append(
            chat.page.evaluate(
                """() => {
                    const { activeElement } = document;
                    return activeElement.getAttribute("aria-label") || activeElement.textContent.trim();
                }"""
            )
        )
        chat.page.keyboard.press("Tab")
    wanted = [
        *("Skip to the message field", "New chat", "Hide conversations", "Search chats", "order", "Pin"),
        *("Rename", "Delete", "Reports", "Cache", "Settings", "Keyboard shortcuts", "Copy", "Edit"),
        *("Where the prompt's tokens came from", "Copy", "Answer again"),
    ]
    assert names == wanted
    expect(chat.page.get_by_role("button", name="Add text files")).to_be_focused()
    chat.page.keyboard.press("Tab")
    expect(chat.composer).to_be_focused()


def test_the_skip_link_leads_to_the_message_field(chat: ChatPage) -> None:
    chat.page.get_by_role("link", name="Skip to the message field").press("Enter")
    expect(chat.composer).to_be_focused()


def test_one_polite_region_speaks_and_the_transcript_does_not(server: PageServer, chat: ChatPage) -> None:
    server.pace.allow(4)
    chat.send("quietly")
    expect(chat.status).to_have_text("The answer has started.")
    live = chat.page.locator("[aria-live], [role=status], [role=alert], [role=log]")
    expect(live).to_have_count(1)
    expect(live).to_have_attribute("aria-live", "polite")
    expect(chat.answer).to_have_attribute("aria-busy", "true")
    server.pace.free()
    chat.wait_ended()
    expect(chat.answer).to_have_attribute("aria-busy", "false")


def test_with_a_phones_keyboard_open_the_message_field_stays_in_view(
    server: PageServer, open_page: OpenPage
) -> None:
    chat = open_page(server.url, **PHONE)
    chat.ask("line\n\n" * 30 + "end")
    chat.composer.tap()
    chat.page.set_viewport_size({"width": 390, "height": 400})  # as `resizes-content` makes it
    expect(chat.composer).to_be_in_viewport(ratio=1)
    expect(chat.send_button).to_be_in_viewport(ratio=1)
    expect(chat.answer.get_by_role("button", name="Copy", exact=True)).to_be_in_viewport()
    chat.page.keyboard.press("Enter")  # a phone has no other key for a new line
    expect(chat.questions).to_have_count(1)


def test_where_the_keyboard_covers_the_page_it_shrinks_to_what_is_seen(
    server: PageServer, open_page: OpenPage
) -> None:
    """As on iOS, whose viewport stays as it is."""
    chat = open_page(server.url, **PHONE)
    expect(chat.page.get_by_label("Connected")).to_be_visible()
    chat.page.evaluate(
        """() => {
            Object.defineProperty(visualViewport, "height", { value: 500 });
            visualViewport.dispatchEvent(new Event("resize"));
        }"""
    )
    box = chat.composer.bounding_box()
    assert box
    assert box["y"] + box["height"] <= 500


def test_reduced_motion_moves_nothing(server: PageServer, open_page: OpenPage) -> None:
    chat = open_page(server.url, reduced_motion="reduce")
    server.pace.allow(3)
    chat.send("calmly")
    expect(chat.answer_text).to_have_text("You")
    # What is left of them takes a hundredth of a millisecond, but for the frame it ends in.
    assert chat.page.evaluate(
        """() => Promise.race([
            Promise.allSettled(document.getAnimations().map((one) => one.finished)).then(() => true),
            new Promise((resolve) => setTimeout(resolve, 5000, false)),
        ])"""
    )
    server.pace.free()


def test_on_paper_there_is_what_was_said_and_nothing_to_press(chat: ChatPage) -> None:
    for number in range(3):
        chat.ask(f"question {number} " + "long " * 120)
    chat.page.emulate_media(media="print")
    for gone in (chat.sidebar, chat.composer, chat.send_button):
        expect(gone).not_to_be_visible()
    expect(chat.questions.first).to_be_visible()
    height = "document.querySelector('.column').getBoundingClientRect().height"
    assert chat.page.evaluate("document.documentElement.scrollHeight") >= chat.page.evaluate(height)
    assert len(chat.page.pdf()) > 10_000


@pytest.mark.parametrize("form", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_composition_is_never_cut_by_a_shortcut(
    server: PageServer, open_page: OpenPage, form: dict[str, object]
) -> None:
    chat = open_page(server.url, **form)
    chat.composer.focus()
    for key, code in (("ArrowUp", 38), ("Enter", 229), ("Escape", 229), ("?", 229)):
        chat.composer.evaluate(
            """(area, [key, keyCode]) => area.dispatchEvent(new KeyboardEvent("keydown",
                { key, keyCode, isComposing: true, bubbles: true, cancelable: true }))""",
            [key, code],
        )
    expect(chat.page.get_by_role("dialog")).to_have_count(0)
    expect(chat.questions).to_have_count(0)
    expect(chat.composer).to_be_focused()
