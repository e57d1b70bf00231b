"""Nothing is lost and nothing is doubled: reloads, lost connections, lost confirmations, restarts."""

import json
import random
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import WebSocketRoute, expect

from tests.web.chat_page import ChatPage
from tests.web.conftest import OpenPage
from tests.web.page_server import PageServer, replying

pytestmark = pytest.mark.browser

STORY = "".join(f"Sentence {n} of a story with `code` and **stress**. " for n in range(12))


@pytest.fixture
def teller(data_dir: Path, built_page: Path) -> PageServer:
    return PageServer(data_dir, replying(lambda text: STORY))


CUTS = [1, *sorted(random.Random(7).sample(range(2, len(STORY)), 20))]


def test_reloads_at_20_random_points_of_a_stream_resume_exactly(
    teller: PageServer, open_page: OpenPage
) -> None:
    """What was shown is shown again, and then comes only what follows it."""
    with teller as server:
        chat = open_page(server.url)
        server.pace.allow(CUTS[0])
        chat.send("tell me")
        for cut, following in zip(CUTS, [*CUTS[1:], len(STORY)], strict=True):
            expect(chat.answer_text).to_have_text(_plain(STORY[:cut]))
            chat.page.reload()
            expect(chat.answer_text).to_have_text(_plain(STORY[:cut]))
            expect(chat.answer).to_have_attribute("data-state", "streaming")
            server.pace.allow(following - cut)
        server.pace.free()
        chat.wait_ended()
        expect(chat.answer_text).to_have_text(_plain(STORY))


def test_a_lost_connection_is_resumed_after_the_last_piece(teller: PageServer, open_page: OpenPage) -> None:
    with teller as server:
        chat = open_page(server.url)
        server.pace.allow(50)
        chat.send("tell me")
        expect(chat.answer_text).to_have_text(_plain(STORY[:50]))
        for more in (1, 30, 60):
            server.cut_connections()
            server.pace.allow(more)
        server.pace.free()
        chat.wait_ended()
        expect(chat.answer_text).to_have_text(_plain(STORY))
        expect(chat.page.get_by_label("Connected")).to_be_visible()


def test_a_continued_answer_survives_a_reload(teller: PageServer, open_page: OpenPage) -> None:
    with teller as server:
        chat = open_page(server.url)
        server.pace.allow(40)
        chat.send("tell me")
        expect(chat.answer_text).to_have_text(_plain(STORY[:40]))
        chat.stop_button.click()
        expect(chat.answer.get_by_text("Stopping")).to_be_visible()
        server.wait_for_a_stop()
        server.pace.free()
        chat.wait_ended("cancelled")
        kept = len(chat.messages()[-1]["text"])
        server.pace.allow(30)
        chat.press("Continue")
        expect(chat.answer_text).to_have_text(_plain(STORY[: kept + 30]))
        chat.page.reload()
        expect(chat.answer_text).to_have_text(_plain(STORY[: kept + 30]))
        server.pace.free()
        chat.wait_ended()
        expect(chat.answer_text).to_have_text(_plain(STORY))


def test_an_answer_that_a_dead_server_left_can_go_on(
    teller: PageServer, data_dir: Path, tmp_path: Path, open_page: OpenPage
) -> None:
    left = tmp_path / "as it was left"
    with teller as server:
        chat = open_page(server.url)
        for _ in range(4):  # both servers count their ids from 1: these keep the answers' apart
            origin = {"origin": chat.url[:-1]}
            chat.page.request.post(chat.url + "api/v1/conversations", data={}, headers=origin)
        server.pace.allow(40)
        chat.send("tell me")
        expect(chat.answer_text).to_have_text(_plain(STORY[:40]))
        shutil.copytree(data_dir, left)  # what a killed process leaves: nothing was ended
        conversation = chat.conversation_id
    expect(chat.trouble).to_contain_text("Answers under way go on if the server still runs.")
    with PageServer(left, replying(lambda text: STORY)) as server:
        chat = open_page(f"{server.url}#/c/{conversation}")
        chat.wait_ended("failed")
        broken = "The answer broke off. The server stopped while it was writing this answer."
        expect(chat.answer.get_by_text(broken)).to_be_visible()
        expect(chat.answer.get_by_role("button", name="Try again")).to_be_visible()
        chat.press("Continue")
        chat.wait_ended()
        expect(chat.answer_text).to_have_text(_plain(STORY))
        assert len(chat.messages()) == 2


@pytest.mark.parametrize("then", ["reconnect", "reload"])
def test_a_lost_confirmation_never_doubles(server: PageServer, open_page: OpenPage, then: str) -> None:
    line = BadLine(closes=then == "reconnect")
    chat = open_page(server.url, before=lambda page: page.route_web_socket("**/ws", line.connect))
    chat.send("only once")
    while not line.lost_it:  # the test's own time-out is the limit
        chat.page.wait_for_timeout(10)
    expect(chat.questions).to_have_count(1)
    if then == "reload":
        chat.page.reload()
    chat.wait_ended()
    expect(chat.answer_text).to_have_text("You said: only once")
    expect(chat.questions).to_have_count(1)
    assert [message["role"] for message in chat.messages()] == ["user", "assistant"]
    assert len(chat.api("conversations")["conversations"]) == 1


def test_two_tabs_and_another_device_show_the_same_answer_even_if_a_tab_closes(
    server: PageServer, chat: ChatPage, open_page: OpenPage
) -> None:
    server.pace.allow(5)
    chat.send("seen everywhere")
    expect(chat.answer_text).to_have_text("You s")
    tab = open_page(chat.page.url, beside=chat)
    device = open_page(chat.page.url)
    for other in (tab, device):
        expect(other.answer_text).to_have_text("You s")
    chat.page.close()
    server.pace.free()
    for other in (tab, device):
        other.wait_ended()
        expect(other.answer_text).to_have_text("You said: seen everywhere")


def test_what_another_tab_wrote_appears(chat: ChatPage, open_page: OpenPage) -> None:
    chat.ask("first")
    other = open_page(chat.page.url, beside=chat)
    expect(other.answer_text).to_have_text("You said: first")
    other.ask("second")
    expect(chat.answer_text).to_have_text("You said: second")
    expect(chat.questions).to_have_count(2)


def test_what_is_asked_while_the_model_loads_is_answered_later(
    data_dir: Path, built_page: Path, open_page: OpenPage
) -> None:
    with PageServer(data_dir, replying(str.upper), model_loaded=False) as server:
        server.state.progress, server.state.loading = 0.43, "layer 13 of 30"
        chat = open_page(server.url)
        expect(chat.trouble).to_contain_text("Loading the model: 43%")
        expect(chat.page.get_by_role("progressbar")).to_be_visible()
        chat.send("early bird")
        expect(chat.answer.get_by_text("Waiting for the model")).to_be_visible()
        server.finish_loading()
        chat.wait_ended()
        expect(chat.answer_text).to_have_text("EARLY BIRD")
        expect(chat.trouble).to_have_count(0)


def test_stop_before_anything_was_sent_takes_the_message_back(
    data_dir: Path, built_page: Path, open_page: OpenPage
) -> None:
    with PageServer(data_dir, replying(str.upper), model_loaded=False) as server:
        chat = open_page(server.url)
        chat.send("not yet")
        chat.stop_button.click()
        expect(chat.composer).to_have_value("not yet")
        expect(chat.questions).to_have_count(0)
        server.finish_loading()
        expect(chat.page.get_by_label("Connected")).to_be_visible()
        assert chat.api("conversations")["conversations"] == []


def _plain(text: str) -> str:
    """What is shown of ``text``: marks that are closed are not, and the last space collapses."""
    parts = text.split("**")
    if len(parts) % 2 == 0:  # an unclosed mark stays
        parts[-2:] = ["**".join(parts[-2:])]
    shown = "".join(parts)
    ticks = shown.split("`")
    if len(ticks) % 2 == 0:
        ticks[-2:] = ["`".join(ticks[-2:])]
    return "".join(ticks).strip()


class BadLine:
    """The first connection loses the confirmation: the page cannot know whether it was heard.

    Then it breaks (``closes``), or it stays open and nothing comes any more.
    """

    def __init__(self, *, closes: bool) -> None:
        self.lost_it = False
        self._closes = closes
        self._connections = 0

    def connect(self, route: WebSocketRoute) -> None:
        server = route.connect_to_server()
        self._connections += 1
        if self._connections == 1:
            server.on_message(lambda frame: self._forward(route, frame))

    def _forward(self, route: WebSocketRoute, frame: str | bytes) -> None:
        if json.loads(frame)["type"] == "response.created":
            self.lost_it = True
            if self._closes:
                route.close(code=1011, reason="lost")
        elif not self.lost_it:
            route.send(frame)
