"""Both wires against servers: what is sent, what is noted, what is said when it goes wrong."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from chatd.bench import on_chatd
from chatd.bench.answers import Answer, Refused, Run
from chatd.bench.drive import drive, open_talks, run_of
from chatd.bench.load import Load, Range
from chatd.bench.on_chatd import ChatdTarget
from chatd.bench.on_openai import Lines, OpenAITarget
from chatd.bench.plan import SessionPlan, TextPlan, TurnPlan, plan
from chatd.bench.sockets import Place, ask_json
from chatd.bench.trial import learn
from chatd.bench.words import Wording
from tests.bench_command.peers import peer_of
from tests.support.chat_lab import counter_ids
from tests.support.live_server import live_lab

LOAD = Load(
    sessions=2, turns=2, shared_prefix_len=30, input_len=Range(10, 10), output_len=Range(4, 4), seed=1
)
TURN = TurnPlan(0, 0.0, (TextPlan("a", 5),), 4)
new_key = counter_ids("key")
SESSION = SessionPlan(0, 0.0, TextPlan("s", 3), (TURN,))


def over_http(url: str, wording: Wording = Wording()) -> OpenAITarget:  # noqa: B008 - frozen
    return OpenAITarget(Place(url), "tiny", wording, time.perf_counter)


def over_socket(url: str, wording: Wording = Wording()) -> ChatdTarget:  # noqa: B008 - frozen
    return ChatdTarget(Place(url), wording, new_key, time.perf_counter)


async def driven(load: Load, target: ChatdTarget | OpenAITarget) -> Run:
    sessions = plan(load)
    run = run_of(sessions)
    try:
        await drive(sessions, await open_talks(sessions, target), run)
    finally:
        await target.close()
    return run


async def asked_once(target: OpenAITarget | ChatdTarget, turn: TurnPlan) -> None:
    try:
        talk = await target.talk(SESSION)
        await talk.ask(turn, Answer(0, 0, turn.output_len, 0.0))
    finally:
        await target.close()


async def refusal(target: OpenAITarget | ChatdTarget, turn: TurnPlan = TURN) -> Refused:
    with pytest.raises(Refused) as refused:
        await asked_once(target, turn)
    return refused.value


def test_lines_of_a_stream_may_be_cut_anywhere() -> None:
    stream = b': hello\n\ndata: {"a": 1}\r\n\r\ndata:two\n\ndata: [DONE]\n\n'
    for cut in range(len(stream)):
        lines = Lines()
        assert lines.feed(stream[:cut]) + lines.feed(stream[cut:]) == [b'{"a": 1}', b"two", b"[DONE]"]


async def test_the_openai_wire_sends_the_whole_history_and_notes_what_comes() -> None:
    async with peer_of(cached={"prompt_tokens_details": {"cached_tokens": 7}}) as peer:
        run = await driven(LOAD, over_http(peer.url))
    assert {len(body["messages"]) for body in peer.asked} == {2, 4}
    last = max(peer.asked, key=lambda body: len(body["messages"]))
    assert [message["role"] for message in last["messages"]] == ["system", "user", "assistant", "user"]
    assert last["messages"][2]["content"] == " word" * 4
    asked_for = ("max_tokens", "temperature", "ignore_eos", "stream", "stream_options", "model")
    assert [last[name] for name in asked_for] == [4, 0, True, True, {"include_usage": True}, "tiny"]
    first, later = (next(one for one in run.good if one.turn == turn) for turn in (0, 1))
    assert (first.prompt_tokens, first.output_tokens, first.reused, first.gpu_hit) == (
        3 + 30 + 10,
        4,
        7,
        None,
    )
    assert later.prompt_tokens == 3 + 30 + 10 + 4 + 10
    assert [tokens for _, tokens in first.arrivals] == [1, 1, 1, 1]


async def test_each_turn_has_a_connection_of_its_own() -> None:
    """Servers may close one whenever nothing is asked, and the client hears of it too late."""
    async with raw_server(ONE_ANSWER) as url:
        run = await driven(replace(LOAD, turns=4), over_http(url))
    assert (len(run.good), run.skipped) == (8, 0)


async def test_llama_cpps_word_for_reuse_is_known() -> None:
    async with peer_of(timings={"cache_n": 11}) as peer:
        run = await driven(LOAD, over_http(peer.url))
    assert {one.reused for one in run.good} == {11}


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"dislikes": "ignore_eos"}, "http_400", "Unknown field: ignore_eos"),
        ({"usage": False}, "no_usage", "without usage"),
    ],
)
async def test_a_peer_that_cannot_take_the_load_is_named(
    options: dict[str, object], code: str, words: str
) -> None:
    async with peer_of(**options) as peer:
        refused = await refusal(over_http(peer.url))
    assert refused.code == code
    assert words in refused.message


async def test_chatd_over_its_own_wire_says_where_prompts_came_from_and_keeps_nothing(data_dir: Path) -> None:
    async with live_lab(data_dir, lab={}) as (server, _):
        wording = await learn(lambda words: over_socket(server.url, words))
        run = await driven(LOAD, over_socket(server.url, wording))
        left = await ask_json(Place(server.url), "GET", "/api/v1/conversations")
    assert left["conversations"] == []
    assert 4 < wording.tokens_per_word < 6, "a byte is a token, a word has some four"
    assert [one.output_tokens for one in run.good] == [4] * 4
    assert all(sum(tokens for _, tokens in one.arrivals) == 4 for one in run.good)
    for one in run.good:
        assert one.reused == (one.gpu_hit or 0) + (one.disk_hit or 0)
        assert one.queue_s is not None
    first, later = (one for one in run.good if one.session == 0)
    assert later.reused == (first.prompt_tokens or 0) + 4 - 1, "all but the token that was sampled last"


async def test_a_conversation_whose_socket_could_not_be_had_is_deleted_too(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_socket(place: Place) -> NoReturn:
        raise Refused("connection", "too many open files")

    monkeypatch.setattr(on_chatd, "open_socket", no_socket)
    async with live_lab(data_dir, lab={}) as (server, _):
        assert (await refusal(over_socket(server.url))).message == "too many open files"
        left = await ask_json(Place(server.url), "GET", "/api/v1/conversations")
    assert left["conversations"] == []


async def test_both_wires_send_the_same_words(data_dir: Path) -> None:
    """So a comparison over one is as good as over the other."""
    async with live_lab(data_dir, lab={}) as (server, _):
        own = await driven(LOAD, over_socket(server.url))
        other = await driven(LOAD, over_http(server.url))
    prompts = [sorted(one.prompt_tokens or 0 for one in run.good) for run in (own, other)]
    assert prompts[0] == prompts[1]
    assert len(prompts[0]) == 4


async def test_a_prompt_too_long_is_refused_on_both_wires_with_the_servers_code(data_dir: Path) -> None:
    long = TurnPlan(0, 0.0, (TextPlan("a", 3000),), 4)
    async with live_lab(data_dir, lab={}) as (server, _):
        assert (await refusal(over_socket(server.url), long)).code == "context_length_exceeded"
        assert (await refusal(over_http(server.url), long)).code == "context_length_exceeded"


@contextlib.asynccontextmanager
async def raw_server(answer: bytes) -> AsyncIterator[str]:
    """Says ``answer`` to whatever comes, then hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


EVENTS = (
    b'data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n'
)
ONE_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(EVENTS), EVENTS)
NO_OBJECT = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ndata: 3\n\n"
BROKEN_OFF = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\ndata: {}\n"


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", BROKEN_OFF])
@pytest.mark.parametrize("target", [over_http, over_socket])
async def test_what_is_no_server_or_breaks_off_is_a_connection_error(
    answer: bytes, target: Callable[[str], OpenAITarget | ChatdTarget]
) -> None:
    async with raw_server(answer) as url:
        assert (await refusal(target(url))).code == "connection"


async def test_events_that_are_no_objects_are_named() -> None:
    async with raw_server(NO_OBJECT) as url:
        refused = await refusal(over_http(url))
    assert (refused.code, refused.message) == ("connection", "an event of the stream is no object")
