"""One answer arrives whole and once, whatever becomes of the connection."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from chatd.cli.chat_client import MOST_TRIES, AnswerClient, Heard, Waiting, hello, socket_url
from chatd.cli.connect import ServerRefused, at
from chatd.errors import SetupError
from chatd.ids import ResponseId
from chatd.server.protocol import (
    AnyEnding,
    Error,
    ResponseCancelled,
    ResponseCompleted,
    ResponseCreate,
    ResponseDelta,
    SessionCreated,
)
from tests.cli.scripted_server import Peer, ScriptedServer, created, delta, ending
from tests.support.accounts import caller
from tests.support.live_server import live_lab

CREATE = ResponseCreate("key-1", input="Hello")


class Pauses:
    """Sleeps that take no time and are counted."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)


def text_of(heard: list[Heard]) -> str:
    return "".join(event.delta for event in heard if isinstance(event, ResponseDelta))


async def whole(peer: Peer) -> None:
    frame = await peer.take()
    await peer.say(
        created(frame["idempotency_key"]), delta(1, "Hel"), delta(2, "lo"), delta(3, "!"), ending()
    )


async def test_an_answer_from_create_to_ending() -> None:
    heard: list[Heard] = []
    async with ScriptedServer(whole) as server:
        end = await AnswerClient(at(server.url), CREATE).run(heard.append)
    assert isinstance(end, ResponseCompleted)
    assert heard[-1] is end
    assert text_of(heard) == "Hello!"
    assert server.received == [{"type": "response.create", "idempotency_key": "key-1", "input": "Hello"}]


@pytest.mark.parametrize("cut_after", [0, 1, 2, 3])
async def test_o1_a_cut_connection_is_resumed_after_the_last_piece(cut_after: int) -> None:
    pieces = [delta(1, "Hel"), delta(2, "lo"), delta(3, "!")]

    async def breaks(peer: Peer) -> None:
        await peer.take()
        await peer.say(created("key-1"), *pieces[:cut_after])
        peer.cut()

    async def resumes(peer: Peer) -> None:
        frame = await peer.take()
        await peer.say(*pieces[frame["after_seq"] :], ending())

    heard: list[Heard] = []
    async with ScriptedServer(breaks, resumes) as server:
        await AnswerClient(at(server.url), CREATE, Pauses()).run(heard.append)
    assert text_of(heard) == "Hello!"
    assert server.received[1] == {"type": "response.subscribe", "response_id": "r1", "after_seq": cut_after}
    assert len([event for event in heard if isinstance(event, Waiting)]) == 1


async def test_what_has_arrived_is_acknowledged_once_a_second_and_at_the_end() -> None:
    now = 100.0

    async def slow(peer: Peer) -> None:
        await peer.take()
        await peer.say(created("key-1"), delta(1, "Hel"), delta(2, "lo"))
        await peer.take()
        await peer.say(delta(3, "!"), ending())
        await peer.take()

    def heard(event: Heard) -> None:
        nonlocal now
        now += 0.6

    async with ScriptedServer(slow) as server:
        await AnswerClient(at(server.url), CREATE, clock=lambda: now).run(heard)
    acknowledged = [frame for frame in server.received if frame["type"] == "response.ack"]
    assert acknowledged == [{"type": "response.ack", "response_id": "r1", "seq": seq} for seq in (1, 3)]


async def test_pieces_that_come_twice_are_heard_once() -> None:
    async def repeats(peer: Peer) -> None:
        await peer.take()
        await peer.say(
            created("key-1"), delta(1, "a"), delta(1, "a"), created("key-1"), delta(2, "b"), ending()
        )

    heard: list[Heard] = []
    async with ScriptedServer(repeats) as server:
        await AnswerClient(at(server.url), CREATE).run(heard.append)
    assert text_of(heard) == "ab"
    assert len(heard) == 4


async def test_a_create_nobody_answered_is_sent_again_under_its_key() -> None:
    async def deaf(peer: Peer) -> None:
        await peer.take()
        peer.cut()

    heard: list[Heard] = []
    async with ScriptedServer(deaf, deaf, whole) as server:
        await AnswerClient(at(server.url), CREATE, pauses := Pauses()).run(heard.append)
    assert [frame["idempotency_key"] for frame in server.received] == ["key-1"] * 3
    assert pauses.seconds == [0.2, 0.4]
    assert text_of(heard) == "Hello!"


async def test_later_is_tried_again_and_no_is_not() -> None:
    async def busy(peer: Peer) -> None:
        await peer.take()
        await peer.say(Error("overloaded", "Too much is waiting.", True, idempotency_key="key-1"))

    async def refuses(peer: Peer) -> None:
        await peer.take()
        await peer.say(Error("context_length_exceeded", "Too long: 9 of 8.", False, idempotency_key="key-1"))

    heard: list[Heard] = []
    async with ScriptedServer(busy, whole) as server:
        await AnswerClient(at(server.url), CREATE, Pauses()).run(heard.append)
    assert heard[0] == Waiting("Too much is waiting", 0.2)
    async with ScriptedServer(busy) as server:
        with pytest.raises(SetupError, match="does not take the message: Too much is waiting"):
            await AnswerClient(at(server.url), CREATE, Pauses()).run(heard.append)
    async with ScriptedServer(refuses) as server:
        with pytest.raises(ServerRefused, match="9 of 8"):
            await AnswerClient(at(server.url), CREATE, Pauses()).run(heard.append)
    assert server.connections == 1


async def test_a_model_that_loads_is_waited_for_without_limit() -> None:
    loads = 3 * MOST_TRIES

    async def loading(peer: Peer) -> None:
        await peer.take()
        message = f"the model is loading, {server.connections} %"
        if server.connections <= loads:
            await peer.say(Error("not_ready", message, True, idempotency_key="key-1"))
        else:
            await peer.say(created("key-1"), delta(1, "Hello!"), ending(last_seq=1))

    heard: list[Heard] = []
    async with ScriptedServer(loading) as server:
        await AnswerClient(at(server.url), CREATE, pauses := Pauses()).run(heard.append)
    assert text_of(heard) == "Hello!"
    assert heard[:loads] == [Waiting(f"the model is loading, {n} %", 0.5) for n in range(1, loads + 1)]
    assert pauses.seconds == [0.5] * loads
    assert {frame["idempotency_key"] for frame in server.received} == {"key-1"}


async def test_other_responses_and_unknown_frames_do_not_matter() -> None:
    async def chatty(peer: Peer) -> None:
        await peer.take()
        await peer.say_raw('{"type": "from.the.future"}')
        await peer.say(
            created("somebody-else", "r9"), delta(1, "no", "r9"), Error("x", "y", True, response_id="r9")
        )
        await peer.say(
            created("key-1"), delta(1, "no", "r9"), delta(1, "yes"), ending(response_id="r9"), ending()
        )

    heard: list[Heard] = []
    async with ScriptedServer(chatty) as server:
        await AnswerClient(at(server.url), CREATE).run(heard.append)
    assert text_of(heard) == "yes"
    assert len(heard) == 3


@pytest.mark.parametrize("early", [True, False])
async def test_cancel_is_sent_once_the_response_has_an_id(early: bool) -> None:
    async def long(peer: Peer) -> None:
        await peer.take()
        await peer.say(created("key-1"), delta(1, "Once upon"))
        await peer.take()
        await peer.say(ending(ResponseCancelled, finish_reason="cancelled", last_seq=1))

    def heard(event: Heard) -> None:
        if isinstance(event, ResponseDelta):
            client.cancel()

    async with ScriptedServer(long) as server:
        client = AnswerClient(at(server.url), CREATE)
        if early:
            client.cancel()
        end = await client.run(heard)
    assert isinstance(end, ResponseCancelled)
    assert server.received[1] == {"type": "response.cancel", "response_id": "r1"}
    assert len(server.received) == 2


async def test_giving_up_says_which_server() -> None:
    async with ScriptedServer(whole) as server:
        url = server.url
    heard: list[Heard] = []
    with pytest.raises(SetupError, match=url) as caught:
        await AnswerClient(at(url), CREATE, pauses := Pauses()).run(heard.append)
    assert caught.value.message.endswith("cannot be reached: nothing listens at that address.")
    assert heard[0] == Waiting("the server cannot be reached: nothing listens at that address", 0.2)
    assert len(pauses.seconds) == len(heard) == MOST_TRIES - 1
    assert max(pauses.seconds) == 5.0


async def test_hello_names_the_server() -> None:
    session = SessionCreated("s1", "SmolLM2", 8192, "0.1.0", 15.0, "CNY")

    async def greets(peer: Peer) -> None:
        assert (await peer.take())["type"] == "session.hello"
        await peer.say(session)

    async with ScriptedServer(greets) as server:
        assert await hello(at(server.url)) == session
    with pytest.raises(SetupError, match="cannot be reached"):
        await hello(at(server.url))


def test_socket_addresses() -> None:
    assert socket_url("http://127.0.0.1:8000") == "ws://127.0.0.1:8000/ws"
    assert socket_url("https://example.org/chat") == "wss://example.org/chat/ws"


async def test_who_has_no_good_key_is_told_at_once(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the key in the environment is taken; so is the operator's token, where the data folder is."""
    heard: list[Heard] = []
    async with live_lab(data_dir, lab={}) as (server, _):
        server.state.admin_token = "the token"
        who = await caller(server, "ann")
        place = at(server.url)
        for key in ("", f"{who.secret}x"):
            monkeypatch.setenv("CHATD_KEY", key)
            for asking in (AnswerClient(place, CREATE).run(heard.append), hello(place)):
                with pytest.raises(SetupError, match="a key"):
                    await asking
        monkeypatch.setenv("CHATD_KEY", who.secret)
        assert isinstance(await AnswerClient(place, CREATE).run(heard.append), AnyEnding)
        monkeypatch.setenv("CHATD_KEY", "")
        assert (await hello(replace(place, token="the token"))).model == "toy"


async def test_a_server_that_restarted_is_asked_with_the_token_it_has_now(data_dir: Path) -> None:
    """It was still starting when the data folder was read; whoever is refused reads it once more."""
    heard: list[Heard] = []
    async with live_lab(data_dir, lab={}) as (server, _):
        server.state.admin_token = "new"
        await caller(server, "ann")
        old, new = (replace(at(server.url), token=token) for token in ("old", "new"))
        found = [old, new]
        client = AnswerClient(old, CREATE, Pauses(), look=lambda: found.pop(0) if len(found) > 1 else new)
        assert isinstance(await client.run(heard.append), AnyEnding)
    assert len([event for event in heard if isinstance(event, Waiting)]) == 1


async def test_the_last_acknowledgement_arrives_although_the_client_leaves_at_once(data_dir: Path) -> None:
    async with live_lab(data_dir, lab={}) as (server, lab):
        for number in range(5):
            create = ResponseCreate(f"key-{number}", input="Hello", params={"max_tokens": 8})
            ending = await AnswerClient(at(server.url), create).run(lambda event: None)
            rid = ResponseId(ending.response_id)
            async with asyncio.timeout(10):
                while (row := await lab.record(rid)).acknowledged != row.output_tokens:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert row.output_tokens > 0
