"""The cache's page: what is where, what chats share, and what is done to it."""

import re

import pytest
from playwright.sync_api import expect

from chatd.ids import Namespace
from chatd.store.key_records import KeyScope, Limits
from tests.web.chat_page import ChatPage
from tests.web.conftest import OpenPage
from tests.web.page_server import PageServer
from tests.web.views import PHONE

pytestmark = pytest.mark.browser

PREFIX = "Here is a page of notes that several questions begin with. " * 4


@pytest.fixture
def page(chat: ChatPage) -> ChatPage:
    """Two chats that begin alike, and one that does not."""
    for text in (PREFIX + "What is it about?", PREFIX + "Who wrote it?", "Something else."):
        chat.sidebar.get_by_role("link", name="New chat").click()
        expect(chat.questions).to_have_count(0)
        chat.ask(text)
    chat.sidebar.get_by_role("link", name="Cache").click()
    expect(chat.page.locator("[data-chat]")).to_have_count(3)
    return chat


def pages(page: ChatPage, kind: str) -> int:
    text = page.page.locator(f"[data-pages={kind}] strong").inner_text()
    return int(text.replace(",", ""))


def test_it_shows_what_is_where_and_what_is_shared(
    page: ChatPage, server: PageServer, open_page: OpenPage
) -> None:
    state = server.on_loop(lambda: server.lab.service.engine_state)
    assert pages(page, "free") == state.free_pages
    assert pages(page, "kept") == state.evictable_pages
    assert sum(pages(page, kind) for kind in ("held", "kept", "free")) == state.total_pages
    expect(page.page.get_by_text("The server keeps nothing on disk.")).to_be_visible()
    expect(page.page.locator("[data-card=evicted] strong")).to_have_text("0")
    shared = page.page.locator("li.shared")
    expect(shared).to_have_count(1)
    expect(shared.locator("[data-stretch]").first).to_contain_text("shared by 2 chats")
    expect(shared.get_by_role("link")).to_have_count(2)
    figures = re.compile(r"100% of [\d,]+ tokens in memory, [\d,]+ shared")
    expect(page.page.get_by_text(figures)).to_have_count(2)
    tree = page.api("operator/cache/tree")
    whole = sum(each["tokens"] for each in tree["stretches"])
    assert whole < sum(each["tokens"] for each in tree["conversations"]), "what is shared is kept once"
    chart = page.page.locator("figure").filter(has_text="What came and went")
    expect(chart.locator("canvas")).to_be_visible(timeout=10_000)
    phone = open_page(f"{server.url}#/cache", **PHONE)
    expect(phone.page.locator("[data-chat]")).to_have_count(3)
    assert phone.page.evaluate("document.documentElement.scrollWidth") == 390


def test_pin_unpin_clear(page: ChatPage) -> None:
    other = page.page.locator("[data-chat]").filter(has_text="Something else.")
    kept = page.page.locator("[data-chat]").nth(1)
    kept.get_by_role("button", name="Keep in the cache").click()
    expect(kept.get_by_text("kept", exact=True)).to_be_visible()
    expect(page.page.locator(".pins li")).to_have_count(1)
    clear = page.page.get_by_role("button", name="Clear the cache")
    clear.click()
    expect(page.page.get_by_text("the next turns are computed anew")).to_be_visible()
    page.page.get_by_role("button", name="Cancel").click()
    expect(other).to_contain_text("100% of")
    clear.click()
    clear.click()
    expect(other).not_to_contain_text("100% of")  # but for what the pinned one begins with too
    page.page.locator(".pins").get_by_role("button", name="Keep no longer").click()
    expect(page.page.locator(".pins")).to_have_count(0)


def test_with_keys_the_page_is_for_the_operator_alone(server: PageServer, open_page: OpenPage) -> None:
    def key(name: str, *scopes: KeyScope) -> str:
        made = server.state.keys.create(name, Namespace(name), frozenset(scopes), Limits())
        return server.wait_for(made)[1]

    plain, admin = key("ann", KeyScope.CHAT, KeyScope.REPORT), key("root", *KeyScope)
    chat = open_page(server.url)
    chat.page.get_by_label("Key").fill(plain)
    chat.page.get_by_role("button", name="Log in").click()
    expect(chat.sidebar.get_by_role("link", name="Reports")).to_be_visible()
    expect(chat.sidebar.get_by_role("link", name="Cache")).to_have_count(0)
    chat.page.goto(f"{server.url}#/cache")
    expect(chat.page.get_by_text("Only the operator may see the cache")).to_be_visible()
    other = open_page(server.url)
    other.page.get_by_label("Key").fill(admin)
    other.page.get_by_role("button", name="Log in").click()
    other.sidebar.get_by_role("link", name="Cache").click()
    expect(other.page.get_by_role("heading", name="Memory")).to_be_visible()
