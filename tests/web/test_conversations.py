"""The list: select, rename, delete and undo, and the drafts that belong to each conversation."""

import pytest
from playwright.sync_api import Locator, expect

from tests.web.chat_page import ChatPage
from tests.web.conftest import OpenPage

pytestmark = pytest.mark.browser


def test_rename(chat: ChatPage) -> None:
    chat.ask("a first message")
    _row_button(chat, "a first message", "Rename").click()
    chat.page.get_by_label("Title of the conversation").fill("A better name")
    chat.page.keyboard.press("Enter")
    expect(chat.page.get_by_role("heading", level=1)).to_have_text("A better name")
    chat.page.reload()
    expect(chat.sidebar.get_by_role("link", name="A better name")).to_be_visible()


def test_escape_leaves_the_name_alone(chat: ChatPage) -> None:
    chat.ask("as it was")
    _row_button(chat, "as it was", "Rename").click()
    chat.page.get_by_label("Title of the conversation").fill("nothing")
    chat.page.keyboard.press("Escape")
    expect(chat.sidebar.get_by_role("link", name="as it was")).to_be_visible()
    assert chat.api("conversations")["conversations"][0]["title"] == "as it was"


def test_delete_can_be_undone(chat: ChatPage) -> None:
    chat.ask("keep me")
    _row_button(chat, "keep me", "Delete").click()
    expect(chat.sidebar.get_by_role("link", name="keep me")).to_have_count(0)
    expect(chat.questions).to_have_count(0)
    chat.page.get_by_role("button", name="Undo").click()
    expect(chat.answer_text).to_have_text("You said: keep me")
    expect(chat.sidebar.get_by_role("link", name="keep me")).to_have_attribute("aria-current", "page")


def test_an_undone_delete_does_not_pull_away_from_what_was_opened_since(chat: ChatPage) -> None:
    chat.ask("stay here")
    chat.sidebar.get_by_role("link", name="New chat").click()
    expect(chat.questions).to_have_count(0)
    chat.ask("deleted and back")
    _row_button(chat, "deleted and back", "Delete").click()
    chat.sidebar.get_by_role("link", name="stay here").click()
    chat.page.get_by_role("button", name="Undo").click()
    expect(chat.sidebar.get_by_role("link", name="deleted and back")).to_be_visible()
    expect(chat.answer_text).to_have_text("You said: stay here")


@pytest.mark.parametrize("by", ["dismissing the notice", "leaving the page"])
def test_delete_without_undo_deletes(chat: ChatPage, by: str) -> None:
    chat.ask("forget me")
    conversation_id = chat.conversation_id
    _row_button(chat, "forget me", "Delete").click()
    if by == "leaving the page":
        chat.page.goto("about:blank")
    else:
        chat.page.get_by_role("button", name="Dismiss").click()
    address = f"{chat.url}api/v1/conversations/{conversation_id}"
    while chat.page.request.get(address).status != 404:  # the test's own time-out is the limit
        pass
    chat.page.goto(chat.url)
    expect(chat.sidebar.get_by_text("Nothing here yet")).to_be_visible()


def test_an_address_selects_a_conversation(chat: ChatPage, open_page: OpenPage) -> None:
    chat.ask("linked to")
    other = open_page(chat.page.url)
    expect(other.answer_text).to_have_text("You said: linked to")
    chat.page.goto(chat.url + "#/c/nowhere")
    expect(chat.page.get_by_text("does not exist, or was deleted")).to_be_visible()
    chat.page.go_back()
    expect(chat.answer_text).to_have_text("You said: linked to")


def test_long_lists_come_in_pages_as_they_are_scrolled(chat: ChatPage) -> None:
    for number in range(70):
        made = chat.page.request.post(
            chat.url + "api/v1/conversations",
            data={"title": f"number {number}"},
            headers={"origin": chat.url[:-1]},
        )
        assert made.status == 201
    chat.page.reload()
    expect(chat.sidebar.get_by_role("link", name="number 69")).to_be_visible()
    assert chat.sidebar.get_by_role("listitem").count() < 60
    chat.sidebar.locator(".list").hover()
    chat.page.mouse.wheel(0, 10_000)
    expect(chat.sidebar.get_by_role("link", name="number 0", exact=True)).to_be_visible()


def test_each_conversation_has_its_draft(chat: ChatPage) -> None:
    chat.ask("one")
    chat.composer.fill("half a thought")
    chat.sidebar.get_by_role("link", name="New chat").click()
    expect(chat.composer).to_have_value("")
    chat.composer.fill("another")
    chat.page.reload()
    expect(chat.composer).to_have_value("another")
    chat.sidebar.get_by_role("link", name="one").click()
    expect(chat.composer).to_have_value("half a thought")
    chat.send_button.click()
    chat.wait_ended()
    chat.page.reload()
    expect(chat.answer_text).to_have_text("You said: half a thought")
    expect(chat.composer).to_have_value("")


def _row_button(chat: ChatPage, title: str, name: str) -> Locator:
    link = chat.sidebar.get_by_role("link", name=title)
    link.hover()
    return chat.sidebar.get_by_role("group", name=f"Actions for “{title}”").get_by_role("button", name=name)
