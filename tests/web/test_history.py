"""A long list, search in it and in what was said, pins, and chats as files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Download, FilePayload, Locator, expect

from chatd.imports.files import read_bytes
from tests.web.chat_page import ChatPage
from tests.web.conftest import OpenPage
from tests.web.history import LOCAL, fill_history, fill_list
from tests.web.page_server import PageServer, replying

pytestmark = pytest.mark.browser

MOST_TASK_MS = 100
"""On two cores that do other work too; without, none is over 50."""
WATCH = """() => {
    window.long = [];
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) window.long.push(entry.duration);
    }).observe({ type: "longtask" });
}"""


@pytest.fixture(scope="module", params=[False], ids=["en"])
def used(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[PageServer]:
    """Weeks of use, which the tests leave as they are."""
    data_dir = tmp_path_factory.mktemp("used")
    fill_history(data_dir, chinese=request.param)
    with PageServer(data_dir, replying(str.upper)) as running:
        yield running


def open_search(chat: ChatPage) -> None:
    expect(chat.page.get_by_label("Connected")).to_be_visible()
    chat.page.keyboard.press("Control+k")


def search_for(chat: ChatPage, words: str) -> Locator:
    """The hits, once there are any."""
    open_search(chat)
    chat.page.get_by_role("combobox").fill(words)
    hits = chat.page.get_by_role("option").filter(has=chat.page.locator("mark"))
    expect(hits.first).to_be_visible()
    return hits


@pytest.mark.parametrize("many", [1_000, pytest.param(10_000, marks=pytest.mark.full)])
def test_thousands_of_conversations_scroll_smoothly(
    data_dir: Path, built_page: Path, open_page: OpenPage, many: int
) -> None:
    fill_list(data_dir, many)
    with PageServer(data_dir, replying(str.upper)) as server:
        chat = open_page(server.url)
        rows = chat.sidebar.get_by_role("listitem")
        expect(chat.sidebar.get_by_role("link", name="number 0", exact=True)).to_be_visible()
        assert rows.count() < 60, "rows out of sight are not in the page"
        chat.page.evaluate(WATCH)
        scroller = chat.sidebar.locator(".list")
        newest = chat.sidebar.get_by_role("button", name="To the newest chats")
        expect(newest).to_have_count(0)
        chat.sidebar.get_by_role("button", name="To the oldest chats").click()
        expect(chat.sidebar.get_by_role("link", name=f"number {many - 1}", exact=True)).to_be_in_viewport()
        expect(chat.sidebar.get_by_role("button", name="To the oldest chats")).to_have_count(0)
        newest.click()
        expect(chat.sidebar.get_by_role("link", name="number 0", exact=True)).to_be_in_viewport()
        scroller.evaluate("list => { list.scrollTop = list.scrollHeight / 2; }")
        expect(chat.sidebar.get_by_role("link", name=f"number {many // 2}", exact=True)).to_be_visible()
        chat.page.mouse.move(100, 400)
        for _ in range(3):  # tries: the rest is the machine's
            chat.page.evaluate("window.long = []")
            for _ in range(30):
                chat.page.mouse.wheel(0, 600)
                chat.page.evaluate("new Promise(requestAnimationFrame)")
            if not (slow := chat.page.evaluate(f"window.long.filter((ms) => ms > {MOST_TASK_MS})")):
                break
        assert slow == []
        assert rows.count() < 60


def test_search_finds_titles_and_texts_and_leads_to_the_message(
    used: PageServer, open_page: OpenPage
) -> None:
    chat = open_page(used.url)
    hits = search_for(chat, "frost")
    titles = hits.filter(has_text="Frost and early potatoes").filter(has_not_text="Answer")
    expect(titles.first.locator("mark")).to_have_text("Frost")
    said = hits.filter(has_text="Six weeks before the last frost").first
    expect(said.locator("mark")).to_have_text("frost")
    said.click()
    expect(chat.page.get_by_role("dialog")).to_have_count(0)
    found = chat.page.locator("li.sought")
    expect(found).to_contain_text("Six weeks before the last frost.")
    expect(found).to_be_in_viewport()
    assert "/" not in chat.conversation_id


def test_search_by_keys_alone_and_nothing_found(used: PageServer, open_page: OpenPage) -> None:
    chat = open_page(used.url)
    field = chat.page.get_by_role("combobox")
    expect(chat.sidebar.get_by_role("listitem").nth(6)).to_be_visible()
    open_search(chat)
    expect(field).to_be_focused()
    expect(chat.page.get_by_role("option")).to_have_count(6)  # the newest
    field.fill("no such words")
    expect(chat.page.get_by_role("status").filter(has_text="Nothing was found.")).to_be_visible()
    field.fill("leeks potatoes")
    expect(chat.page.locator("mark").first).to_be_visible()
    field.press("ArrowDown")
    chosen = chat.page.get_by_role("option", selected=True)
    assert chosen.get_attribute("id") == field.get_attribute("aria-activedescendant")
    field.press("ArrowUp")
    field.press("Enter")
    expect(chat.page.get_by_role("heading", level=1)).to_have_text("A week of suppers")
    chat.page.keyboard.press("Control+k")
    chat.page.keyboard.press("Escape")
    expect(field).to_have_count(0)


@pytest.mark.parametrize("used", [True], indirect=True, ids=["zh"])
def test_search_in_chinese(used: PageServer, open_page: OpenPage) -> None:
    chat = open_page(used.url)
    for words in ("霜", "六周 霜冻"):
        chat.page.goto(used.url)
        search_for(chat, words).filter(has_text="在最后一次霜冻之前六周播种").first.click()
        expect(chat.page.locator("li.sought")).to_contain_text("在最后一次霜冻之前六周播种")


def test_an_input_method_may_use_enter_for_itself(chat: ChatPage) -> None:
    chat.ask("ni hao")
    input_method = chat.page.context.new_cdp_session(chat.page)
    chat.page.keyboard.press("Control+k")
    field = chat.page.get_by_role("combobox")
    field.fill("ni")
    expect(chat.page.locator("mark").first).to_be_visible()
    enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 229}
    input_method.send("Input.dispatchKeyEvent", {"type": "rawKeyDown", **enter})
    expect(field).to_be_visible()


def test_a_hit_on_another_branch_shows_that_branch(chat: ChatPage) -> None:
    chat.ask("the first wording")
    chat.questions.first.hover()
    chat.questions.first.get_by_role("button", name="Edit").click()
    chat.page.get_by_label("Edit your message").fill("the second one")
    chat.page.keyboard.press("Enter")
    chat.wait_ended()
    expect(chat.answer_text).to_have_text("You said: the second one")
    search_for(chat, "wording").filter(has_text="You said").first.click()
    expect(chat.answer_text).to_have_text("You said: the first wording")
    expect(chat.page.locator("li.sought")).to_contain_text("You said: the first wording")


def test_pins_stay_on_top_here_and_elsewhere(chat: ChatPage, open_page: OpenPage) -> None:
    chat.ask("the older one")
    chat.sidebar.get_by_role("link", name="New chat").click()
    expect(chat.questions).to_have_count(0)
    chat.ask("the newer one")
    other = open_page(chat.url, beside=chat)
    expect(other.sidebar.get_by_role("listitem")).to_have_count(2)
    _press(chat, "the older one", "Pin")
    for page in (chat, other):
        expect(page.sidebar.get_by_role("list", name="Pinned").get_by_role("link")).to_have_text(
            "the older one"
        )
    chat.page.reload()
    expect(chat.sidebar.get_by_role("listitem").first).to_contain_text("the older one")
    _press(chat, "the older one", "Unpin")
    expect(chat.sidebar.get_by_role("list", name="Pinned")).to_have_count(0)


def test_what_is_written_stays_while_reports_are_on_show(chat: ChatPage) -> None:
    chat.ask("first")
    chat.composer.fill("half a thought")
    chat.sidebar.get_by_role("link", name="Reports").click()
    expect(chat.page.get_by_role("heading", level=1)).to_have_text("Reports")
    expect(chat.composer).not_to_be_visible()
    chat.page.go_back()
    expect(chat.composer).to_have_value("half a thought")
    expect(chat.answer_text).to_have_text("You said: first")


def test_chats_go_out_and_come_in_as_files(
    chat: ChatPage,
) -> None:
    chat.ask("take me *along*")
    chat.page.get_by_role("button", name="Settings").click()
    markdown = _saved(chat, "Markdown")
    assert markdown.suggested_filename == "take me along .md"
    assert markdown.path().read_text("utf-8") == (
        "# take me *along*\n\n## You\n\ntake me *along*\n\n## Answer\n\nYou said: take me *along*\n"
    )
    whole = _saved(chat, "JSON").path().read_bytes()
    lines = _saved(chat, "JSON Lines").path().read_bytes()
    assert [one.title for one in read_bytes(whole, LOCAL, 0).conversations] == ["take me *along*"]
    assert read_bytes(lines, LOCAL, 0) == read_bytes(whole, LOCAL, 0)
    _bring(chat, "same.jsonl", lines)
    expect(chat.page.get_by_text("0 chats were added. 1 was here already.")).to_be_visible()
    mapping = {
        "q": {"parent": None, "message": _foreign("user", "Whence?")},
        "a": {"parent": "q", "message": _foreign("assistant", "Thence.")},
    }
    chatgpt = [{"id": "c", "title": "From elsewhere", "mapping": mapping}]
    _bring(chat, "conversations.json", json.dumps(chatgpt).encode())
    expect(chat.page.get_by_text("1 chat was added.")).to_be_visible()
    _bring(chat, "half.json", json.dumps([*chatgpt, 7]).encode())
    expect(chat.page.get_by_text("0 chats were added. 1 was here already.")).to_be_visible()
    expect(chat.page.get_by_text("conversation 2 is of no kind")).to_be_visible()
    _bring(chat, "broken.json", b"{}")
    expect(
        chat.page.get_by_text("This file cannot be imported: conversation 1 is of no kind")
    ).to_be_visible()
    chat.page.keyboard.press("Escape")
    chat.sidebar.get_by_role("link", name="From elsewhere").click()
    expect(chat.answer_text).to_have_text("Thence.")
    chat.ask("and on")
    expect(chat.answer_text).to_have_text("You said: and on")
    search_for(chat, "Thence").first.click()
    expect(chat.page.locator("li.sought")).to_contain_text("Thence.")


def _foreign(role: str, text: str) -> dict[str, Any]:
    """A message as ChatGPT exports it."""
    return {"author": {"role": role}, "content": {"content_type": "text", "parts": [text]}}


def _press(chat: ChatPage, title: str, name: str) -> None:
    chat.sidebar.get_by_role("link", name=title).hover()
    group = chat.sidebar.get_by_role("group", name=f"Actions for “{title}”")
    group.get_by_role("button", name=name, exact=True).click()


def _saved(chat: ChatPage, name: str) -> Download:
    with chat.page.expect_download() as download:
        chat.page.get_by_role("link", name=name, exact=True).click()
    return download.value


def _bring(chat: ChatPage, name: str, content: bytes) -> None:
    picker = chat.page.locator("dialog input[type=file]")
    picker.set_input_files(FilePayload(name=name, mimeType="application/json", buffer=content))
