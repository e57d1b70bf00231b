"""A server with keys: the page asks for one, keeps a cookie that no script reads, and is shown out."""

import pytest
from playwright.sync_api import expect

from chatd.ids import Namespace
from chatd.store.key_records import KeyScope, Limits
from tests.web.conftest import OpenPage
from tests.web.page_server import PageServer
from tests.web.test_everyone import AXE

pytestmark = pytest.mark.browser


def make_key(server: PageServer, name: str) -> str:
    """Its secret."""
    chat = frozenset({KeyScope.CHAT})
    made = server.wait_for(server.state.keys.create(name, Namespace(name), chat, Limits()))
    server.on_loop(server.state.show_out)
    return made[1]


def test_a_key_lets_the_page_in_and_revoking_it_shows_it_out(server: PageServer, open_page: OpenPage) -> None:
    secret = make_key(server, "ann")
    chat = open_page(server.url)
    page = chat.page
    page.get_by_label("Key").fill("chatd-nonsense")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_have_text("The key is unknown or revoked.")
    page.evaluate(AXE.read_text())
    assert page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"] == []
    page.get_by_label("Key").fill(secret)
    page.get_by_role("button", name="Log in").click()
    chat.ask("hello")
    expect(chat.answer_text).to_have_text("You said: hello")
    assert page.evaluate("document.cookie") == ""
    page.reload()
    expect(chat.answer_text).to_have_text("You said: hello")

    async def revoke() -> None:
        await server.state.keys.revoke("ann")
        server.state.show_out()

    server.wait_for(revoke())
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert page.get_by_text("hello").count() == 0


def test_a_login_address_is_good_once(server: PageServer, open_page: OpenPage) -> None:
    make_key(server, "ann")
    token = server.on_loop(lambda: server.state.keys.new_login_token("ann"))
    first = open_page(f"{server.url}#login={token}")
    expect(first.page.get_by_label("Connected")).to_be_visible()
    assert token not in first.page.url
    second = open_page(f"{server.url}#login={token}")
    expect(second.page.get_by_role("alert")).to_contain_text("was used")


def test_logging_out(server: PageServer, open_page: OpenPage) -> None:
    make_key(server, "ann")
    token = server.on_loop(lambda: server.state.keys.new_login_token("ann"))
    chat = open_page(f"{server.url}#login={token}")
    expect(chat.page.get_by_label("Connected")).to_be_visible()
    chat.page.get_by_role("button", name="Settings").click()
    expect(chat.page.get_by_text("Logged in with the key ann, account ann.")).to_be_visible()
    chat.page.get_by_role("button", name="Log out").click()
    expect(chat.page.get_by_role("heading", name="Log in")).to_be_visible()
    assert chat.page.context.cookies() == []
