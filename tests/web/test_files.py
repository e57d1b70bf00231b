"""Text files in a message: picked, pasted, dropped; and what is none."""

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.web.chat_page import ChatPage

pytestmark = pytest.mark.browser

NOTES = {"name": "notes.md", "mimeType": "text/markdown", "buffer": b"# Notes\n```js\nx\n```\n"}
AS_TEXT = "File: notes.md\n````md\n# Notes\n```js\nx\n```\n\n````\n\nwhat is this?"


def pick(chat: ChatPage, *files: Any) -> None:
    chat.page.locator("input[type=file]").set_input_files(list(files))


def transfer(chat: ChatPage, event: str, name: str, text: str) -> None:
    """Pastes or drops a file as the browser would."""
    chat.composer.evaluate(
        """(area, [event, name, text]) => {
            const data = new DataTransfer();
            data.items.add(new File([text], name));
            const init = { bubbles: true, cancelable: true, clipboardData: data, dataTransfer: data };
            const kind = event === "paste" ? ClipboardEvent : DragEvent;
            area.dispatchEvent(new kind(event, init));
        }""",
        [event, name, text],
    )


def test_a_file_goes_as_plain_text_with_its_size(chat: ChatPage) -> None:
    pick(chat, NOTES)
    added = chat.page.get_by_role("list", name="Added files").get_by_role("listitem")
    expect(added).to_contain_text("notes.md")
    expect(added).to_contain_text("about ")
    chat.composer.fill("what is this?")
    chat.send_button.click()
    chat.wait_ended()
    assert chat.messages()[0]["text"] == AS_TEXT
    expect(added).to_have_count(0)
    question = chat.questions.last
    expect(question.locator("summary")).to_contain_text("notes.md")
    expect(question.locator("p")).to_have_text("what is this?")
    question.locator("summary").click()
    expect(question.locator("pre")).to_have_text("# Notes\n```js\nx\n```", use_inner_text=True)


@pytest.mark.parametrize("event", ["paste", "drop"])
def test_a_file_can_be_pasted_and_dropped(chat: ChatPage, event: str) -> None:
    if event == "drop":
        transfer(chat, "dragover", "data.csv", "")
        expect(chat.page.get_by_text("Drop text files to add them")).to_be_visible()
    transfer(chat, event, "data.csv", "a,b\n1,2")
    expect(chat.page.get_by_role("list", name="Added files")).to_contain_text("data.csv")
    expect(chat.page.get_by_text("Drop text files to add them")).to_have_count(0)
    expect(chat.send_button).to_be_enabled()


def test_files_belong_to_the_draft(chat: ChatPage) -> None:
    pick(chat, NOTES)
    chat.composer.fill("half a thought")
    chat.page.reload()
    expect(chat.composer).to_have_value("half a thought")
    chat.page.get_by_role("button", name="Remove notes.md").click()
    chat.page.reload()
    expect(chat.composer).to_have_value("half a thought")
    expect(chat.page.get_by_role("list", name="Added files")).to_have_count(0)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("photo.png", b"\x89PNG\r\n\x1a\n\x00\x00", "photo.png is no text file."),
        ("big.log", b"x" * (512 * 1024 + 1), "big.log is too large: at most 512 KiB fit into a message."),
    ],
)
def test_what_is_no_text_or_too_large_is_refused(
    chat: ChatPage, name: str, content: bytes, said: str
) -> None:
    pick(chat, {"name": name, "mimeType": "application/octet-stream", "buffer": content})
    expect(chat.page.get_by_text(said).first).to_be_visible()
    expect(chat.page.get_by_role("list", name="Added files")).to_have_count(0)
