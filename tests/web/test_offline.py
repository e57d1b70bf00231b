"""The server is away: what was seen is still there, and says so; then it is brought up to date."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.web.chat_page import ChatPage
from tests.web.conftest import OpenPage
from tests.web.page_server import PageServer, replying

pytestmark = pytest.mark.browser

KEPT = "navigator.serviceWorker.ready.then(() => caches.keys()).then((names) => names.length > 0)"


def go_offline(chat: ChatPage) -> None:
    assert chat.page.evaluate(KEPT)
    chat.page.context.set_offline(True)


def test_an_open_conversation_can_be_reloaded_offline(server: PageServer, chat: ChatPage) -> None:
    chat.ask("remember me")
    chat.ask("and **me**")
    go_offline(chat)
    server.cut_connections()
    chat.page.reload()
    expect(chat.answers).to_have_count(2)
    expect(chat.answer_text).to_have_text("You said: and me")
    expect(chat.trouble).to_contain_text("You are offline.")
    expect(chat.trouble).to_contain_text("This is what was kept in this browser.")
    expect(chat.sidebar.get_by_role("link", name="remember me")).to_be_visible()
    expect(chat.answer.get_by_role("list", name="Figures of this answer")).to_be_visible()
    chat.composer.fill("written offline")
    chat.page.context.set_offline(False)
    expect(chat.trouble).to_have_count(0)
    chat.send_button.click()
    chat.wait_ended()
    expect(chat.answer_text).to_have_text("You said: written offline")


def test_code_has_its_colours_offline_though_none_was_seen_before(
    server: PageServer, open_page: OpenPage
) -> None:
    colours = "**/assets/common-*.js"
    chat = open_page(server.url, before=lambda page: page.route(colours, lambda route: route.abort()))
    chat.ask("\n```python\nimport this\n```")
    expect(chat.answer.locator("pre")).to_contain_text("import this")
    expect(chat.answer.locator(".hljs-keyword")).to_have_count(0)
    go_offline(chat)
    server.cut_connections()
    chat.page.unroute(colours)
    chat.page.reload()
    expect(chat.trouble).to_contain_text("You are offline.")
    expect(chat.answer.locator(".hljs-keyword")).to_have_text("import")


def test_half_an_answer_that_was_seen_is_kept_and_then_made_whole(
    data_dir: Path, built_page: Path, open_page: OpenPage
) -> None:
    with PageServer(data_dir, replying(lambda text: "one two three four")) as server:
        chat = open_page(server.url)
        server.pace.allow(7)
        chat.send("count")
        expect(chat.answer_text).to_have_text("one two")
        go_offline(chat)
        server.cut_connections()
        chat.page.reload()
        expect(chat.answer_text).to_have_text("one two")
        expect(chat.trouble).to_contain_text("You are offline.")
        server.pace.free()
        chat.page.context.set_offline(False)
        chat.wait_ended()
        expect(chat.answer_text).to_have_text("one two three four")


def test_what_was_never_seen_says_that_it_cannot_be_loaded(server: PageServer, chat: ChatPage) -> None:
    made = chat.page.request.post(
        chat.url + "api/v1/conversations", data={"title": "unseen"}, headers={"origin": chat.url[:-1]}
    ).json()
    go_offline(chat)
    server.cut_connections()
    chat.page.goto(f"{chat.url}#/c/{made['id']}")
    expect(chat.page.get_by_text("The conversation could not be loaded.")).to_be_visible()


def test_what_is_deleted_is_not_kept(server: PageServer, chat: ChatPage) -> None:
    chat.ask("forget me")
    address = chat.page.url
    chat.sidebar.get_by_role("link", name="forget me").hover()
    chat.sidebar.get_by_role("button", name="Delete").click()
    chat.page.get_by_role("button", name="Dismiss").click()
    expect(chat.sidebar.get_by_text("Nothing here yet")).to_be_visible()
    go_offline(chat)
    server.cut_connections()
    chat.page.goto(address)
    chat.page.reload()
    expect(chat.page.get_by_text("The conversation could not be loaded.")).to_be_visible()
    assert "forget me" not in chat.page.evaluate("JSON.stringify(Object.entries(localStorage))")
