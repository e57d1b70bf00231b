"""``chatd chat`` in a terminal and in a pipe, against a server that follows a script."""

import asyncio
import builtins
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from chatd.cli import chat
from chatd.cli.chat import next_message
from chatd.cli.chat_client import AnswerClient, Heard
from chatd.cli.connect import at
from chatd.data_dir import ServerAddress, hold_data_dir, write_address
from chatd.errors import SetupError
from chatd.server.protocol import (
    AnyEnding,
    Error,
    Failure,
    ResponseCancelled,
    ResponseCreate,
    ResponseFailed,
    ResponseIncomplete,
    ServerDraining,
    SessionCreated,
)
from tests.cli.scripted_server import Part, Peer, ScriptedServer, created, delta, ending
from tests.cli.terminals import CHATD, Terminal, environment, piped
from tests.support.live_server import live_lab

READY = {"/readyz": {"status": "ready", "progress": 1, "what": ""}}
VIEW: dict[str, Any] = {
    "id": "c7",
    "title": "Old bread",
    "tip_id": "m9",
    "messages": [
        {"id": "m8", "parent_id": None, "role": "user", "text": "Bread?"},
        {"id": "m9", "parent_id": "m8", "role": "assistant", "text": "Flour and water."},
        {"id": "m10", "parent_id": "m8", "role": "assistant", "text": "Another branch."},
    ],
}


async def greets(peer: Peer) -> None:
    await peer.take()
    await peer.say(SessionCreated("s1", "SmolLM2", 8192, "0.1.0", 15.0, "CNY"))


def answers(*texts: str, end: Any = None, dropped_turns: int = 0) -> Part:
    async def part(peer: Peer) -> None:
        frame = await peer.take()
        pieces = [delta(seq, text) for seq, text in enumerate(texts, 1)]
        begun = created(frame["idempotency_key"], dropped_turns=dropped_turns)
        await peer.say(begun, *pieces, end or ending())

    return part


async def test_a_pipe_gets_the_answer_and_nothing_else() -> None:
    async with ScriptedServer(answers("Because ", "of Rayleigh."), pages=READY) as server:
        code, out, err = await piped(["chat", "--url", server.url], "Why is the sky blue?\n")
    assert (code, out, err) == (0, "Because of Rayleigh.\n", "")
    assert server.received[0]["input"] == "Why is the sky blue?"
    assert "conversation_id" not in server.received[0]


async def test_a_pipe_is_told_of_turns_that_were_left_out() -> None:
    parts = answers("Yes.", dropped_turns=1), answers("No.", dropped_turns=3)
    async with ScriptedServer(*parts, pages=READY) as server:
        for text, turns in (("Yes.\n", "The oldest turn of"), ("No.\n", "The oldest 3 turns of")):
            code, out, err = await piped(["chat", "--url", server.url], "More?")
            assert (code, out) == (0, text)
            assert err.startswith(turns)


async def test_a_pipe_can_go_on_with_a_conversation() -> None:
    pages = READY | {
        "/api/v1/conversations?limit=1": {"conversations": [{"id": "c7"}], "next": None},
        "/api/v1/conversations/c7": VIEW,
    }
    async with ScriptedServer(answers("Yes."), pages=pages) as server:
        for option in (["--conversation", "c7"], ["--last"]):
            code, out, _ = await piped(["chat", "--url", server.url, *option], "More?")
            assert (code, out) == (0, "Yes.\n")
    assert [frame["conversation_id"] for frame in server.received] == ["c7", "c7"]


async def test_the_beginning_of_an_id_names_a_conversation() -> None:
    sessions = [{"session_id": one} for one in ("c7", "d1", "d2")]
    pages = READY | {"/api/v1/report": {"sessions": sessions}, "/api/v1/conversations/c7": VIEW}
    async with ScriptedServer(answers("Yes."), pages=pages) as server:
        said = {
            given: await piped(["chat", "--url", server.url, "--conversation", given], "More?")
            for given in ("c", "d", "e")
        }
    assert said["c"] == (0, "Yes.\n", "")
    assert server.received[0]["conversation_id"] == "c7"
    assert said["d"] == (2, "", "chatd: 2 conversations begin with d; give more of the id.\n")
    assert said["e"] == (2, "", "chatd: There is no conversation e; `chatd report` lists them.\n")


async def test_json_is_the_servers_events() -> None:
    async with ScriptedServer(answers("Hi"), pages=READY) as server:
        code, out, _ = await piped(["chat", "--json", "--url", server.url], "Hello")
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [event["type"].split(".", 1)[1] for event in events] == [
        "created",
        "output_text.delta",
        "completed",
    ]
    assert events[-1]["cost"]["total_nano"] == 68_500


async def test_a_failed_answer_is_a_failed_command() -> None:
    broken = ending(
        ResponseFailed, error=Failure("bad_logits", "The model broke.", False), finish_reason="failed"
    )
    async with ScriptedServer(answers("Hal", end=broken), pages=READY) as server:
        code, out, err = await piped(["chat", "--url", server.url], "Hello")
    assert (code, out) == (1, "Hal\n")
    assert "The model broke." in err


async def test_a_cut_off_answer_says_so_beside_it() -> None:
    cut = ending(ResponseIncomplete, finish_reason="length")
    async with ScriptedServer(answers("Once upon", end=cut), pages=READY) as server:
        code, out, err = await piped(["chat", "--url", server.url], "Hello")
    assert (code, out) == (0, "Once upon\n")
    assert "cut off" in err


async def test_a_reader_that_had_enough_is_no_fault() -> None:
    async with ScriptedServer(answers("word " * 100_000), pages=READY) as server:
        command = f"echo hi | {' '.join(CHATD)} chat --url {server.url} | head -c 9"
        shell = await asyncio.create_subprocess_shell(
            command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment()
        )
        out, err = await shell.communicate()
    assert (out, err) == (b"word word", b"")


async def test_a_refused_message_says_why() -> None:
    async def refuses(peer: Peer) -> None:
        key = (await peer.take())["idempotency_key"]
        await peer.say(Error("exceeds_kv_pool", "9,000 of 8,192 tokens.", False, idempotency_key=key))

    async with ScriptedServer(refuses, pages=READY) as server:
        code, out, err = await piped(["chat", "--url", server.url], "Hello")
    assert (code, out, err) == (2, "", "chatd: 9,000 of 8,192 tokens.\n")


async def test_a_context_that_is_full_is_explained_in_the_terminals_own_words(data_dir: Path) -> None:
    """By the real server: its message is for programs."""
    async with live_lab(data_dir, lab={"context_length": 64}) as (server, _):
        code, out, err = await piped(["chat", "--url", server.url], "x" * 200)
        assert (code, out) == (2, "")
        assert err.startswith("chatd: The prompt has 2")
        assert "context holds 64 and needs one for the answer. Shorten" in err
        assert "chatd chat --truncate" in err
        assert "truncation:" not in err


async def test_truncate_asks_for_the_oldest_turns_to_be_left_out() -> None:
    async with ScriptedServer(answers("Yes."), pages=READY) as server:
        for options in ([], ["--truncate"]):
            code, _, _ = await piped(["chat", "--url", server.url, *options], "More?")
            assert code == 0
    assert [frame.get("params") for frame in server.received] == [None, {"truncation": "auto"}]


@pytest.mark.parametrize(
    ("args", "text", "wanted"),
    [
        (["--conversation", "c1", "--last"], "x", "exclude each other"),
        (["--url", "ftp://x"], "x", "http://127.0.0.1:8000"),
        (["--url", "http://127.0.0.1:9"], "x", "cannot be reached"),
        ([], "x", "chatd serve"),
    ],
)
async def test_mistakes_are_one_clear_message(
    tmp_path: Path, args: list[str], text: str, wanted: str
) -> None:
    code, out, err = await piped(["chat", "--data-dir", str(tmp_path), *args], text)
    assert (code, out) == (2, "")
    assert wanted in err
    assert "Traceback" not in err


async def test_nothing_piped_in_is_a_mistake() -> None:
    async with ScriptedServer(greets, pages=READY) as server:
        code, _, err = await piped(["chat", "--url", server.url], " \n")
    assert code == 2
    assert "standard input is empty" in err


@pytest.mark.parametrize("locale", ["C.UTF-8", "C", "POSIX"])
async def test_bytes_that_are_no_text_are_a_mistake(locale: str) -> None:
    async with ScriptedServer(greets, pages=READY) as server:
        code, out, err = await piped(["chat", "--url", server.url], b"Hi \xf0\x28\x8c", LC_ALL=locale)
    assert (code, out) == (2, "")
    assert err.endswith("Error: standard input is not UTF-8 text: byte 3 is 0xf0.\n")


async def test_text_is_utf_8_whatever_the_locale() -> None:
    async with ScriptedServer(answers("Oui."), pages=READY) as server:
        code, _, _ = await piped(["chat", "--url", server.url], "\ufeffça va ?\n", LC_ALL="POSIX")
    assert (code, server.received[0]["input"]) == (0, "ça va ?")


async def test_a_conversation_in_a_terminal() -> None:
    cut = ending(ResponseIncomplete, finish_reason="length")
    parts = (
        greets,
        answers("Hello \x1b[31mthere", end=cut),
        answers("More."),
        answers("Again."),
        answers("Fresh."),
    )
    async with ScriptedServer(*parts, pages=READY) as server, Terminal("chat", "--url", server.url) as person:
        await person.until("SmolLM2 · 8,192 tokens of context")
        await person.until("> ")
        person.type("Hi\n")
        await person.until("Hello \ufffd[31mthere")
        await person.until("/continue")
        await person.until(
            "44 in (40 reused) · 9 out · first token 0.21 s · 24.1 tokens/s · 0.000069 CNY · 14 % saved"
        )
        for typed, shown in [
            ("/continue\n", "More."),
            ("/retry\n", "Again."),
            ("/nonsense\n", "/help lists them"),
            ("/new\n", "A new conversation"),
            ("/retry\n", "no answer in this conversation"),
            ("two \\\nlines\n", "Fresh."),
        ]:
            await person.until("> ")
            person.type(typed)
            await person.until(shown)
        await person.until("> ")
        person.type("\x04")
        assert await person.exit_code() == 0
    asked = [
        {k: v for k, v in frame.items() if k not in ("type", "idempotency_key")}
        for frame in server.received[1:]
    ]
    assert asked == [{"input": "Hi"}, {"continue": "m2"}, {"regenerate": "m2"}, {"input": "two \nlines"}]


async def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on() -> None:
    async def long(peer: Peer) -> None:
        await peer.say(created((await peer.take())["idempotency_key"]), delta(1, "Once upon a time"))
        await peer.take()
        await peer.say(ending(ResponseCancelled, finish_reason="cancelled"))

    async with (
        ScriptedServer(greets, long, answers("Sure."), pages=READY) as server,
        Terminal("chat", "--url", server.url) as person,
    ):
        await person.until("> ")
        person.type("A story\n")
        await person.until("Once upon a time")
        person.press_ctrl_c()
        await person.until("Stopped; /continue goes on.")
        await person.until("44 in")
        await person.until("> ")
        person.type("Shorter\n")
        await person.until("Sure.")
        await person.until("> ")
        person.type("\x04")
        assert await person.exit_code() == 0
    assert server.received[2] == {"type": "response.cancel", "response_id": "r1"}
    assert server.received[3]["conversation_id"] == "c1"


@pytest.mark.parametrize(
    ("keys", "left"), [(["^C", "Hi"], False), (["^C", "^C"], True), (["^C", "^D"], True)]
)
def test_ctrl_c_at_the_prompt_leaves_at_the_second_time(
    monkeypatch: pytest.MonkeyPatch, keys: list[str], left: bool
) -> None:
    """Not in a terminal: CPython loses an interrupt that comes between the prompt and the first key."""
    pressed = {"^C": KeyboardInterrupt, "^D": EOFError}
    script = iter(keys)

    def typed(prompt: str) -> str:
        key = next(script)
        if key in pressed:
            raise pressed[key]
        return key

    monkeypatch.setattr(builtins, "input", typed)
    console = Console(file=(out := io.StringIO()))
    if left:
        with pytest.raises((KeyboardInterrupt, EOFError)):
            next_message("> ", console)
    else:
        assert next_message("> ", console) == "Hi"
    assert "Ctrl-C again" in out.getvalue()


async def test_a_second_ctrl_c_leaves_a_server_that_does_not_answer() -> None:
    async def deaf(peer: Peer) -> None:
        await peer.say(created((await peer.take())["idempotency_key"]), delta(1, "Once"))
        await peer.take()
        asked_to_stop.set()
        await peer.take()

    asked_to_stop = asyncio.Event()
    async with (
        ScriptedServer(greets, deaf, pages=READY) as server,
        Terminal("chat", "--url", server.url) as person,
    ):
        await person.until("> ")
        person.type("A story\n")
        await person.until("Once")
        person.press_ctrl_c()
        await asked_to_stop.wait()
        person.press_ctrl_c()
        assert await person.exit_code() == 0


def cut_short(*, shut_down: bool) -> Part:
    """An answer that somebody else than this client ends."""

    async def part(peer: Peer) -> None:
        await peer.say(created((await peer.take())["idempotency_key"]), delta(1, "Once upon"))
        if shut_down:
            await peer.say(ServerDraining(5.0))
        await peer.say(ending(ResponseCancelled, finish_reason="cancelled", last_seq=1))

    return part


async def test_a_server_that_shuts_down_is_told_from_a_stop() -> None:
    parts = cut_short(shut_down=True), answers("a time.")
    async with (
        ScriptedServer(greets, *parts, pages=READY) as server,
        Terminal("chat", "--url", server.url) as person,
    ):
        await person.until("> ")
        person.type("A story\n")
        await person.until("The server shut down in the middle of this answer; once it runs again, /continue")
        await person.until("> ")
        assert "topped" not in person.shown
        person.type("/continue\n")
        await person.until("a time.")
        await person.until("> ")
        person.type("\x04")
        assert await person.exit_code() == 0
    assert server.received[-1]["continue"] == "m2"


@pytest.mark.parametrize("shut_down", [True, False])
async def test_a_pipe_is_told_of_a_shutdown(shut_down: bool) -> None:
    async with ScriptedServer(cut_short(shut_down=shut_down), pages=READY) as server:
        code, out, err = await piped(["chat", "--url", server.url], "A story")
    assert (code, out) == (130, "Once upon\n")
    assert err.startswith("The server shut down in the middle of this answer") is shut_down
    assert ("conversation c1" in err) is shut_down


async def test_a_message_outlives_a_restart_of_the_server() -> None:
    async def loading(peer: Peer) -> None:
        key = (await peer.take())["idempotency_key"]
        await peer.say(Error("not_ready", "the model is loading, 43 %", True, idempotency_key=key))

    async with (
        ScriptedServer(greets, loading, loading, answers("Here."), pages=READY) as server,
        Terminal("chat", "--url", server.url) as person,
    ):
        await person.until("> ")
        person.type("Still there?\n")
        await person.until("the model is loading, 43 %")
        await person.until("Here.")
        await person.until("> ")
        person.type("\x04")
        assert await person.exit_code() == 0
    assert "Errno" not in person.shown
    assert len({frame["idempotency_key"] for frame in server.received[1:]}) == 1


async def test_a_server_that_restarted_elsewhere_is_found_by_its_data_folder(data_dir: Path) -> None:
    async with (
        ScriptedServer(greets, pages=READY) as first,
        ScriptedServer(answers("Here."), pages=READY) as second,
    ):
        with hold_data_dir(data_dir):
            write_address(data_dir, at(first.url))
            async with Terminal("chat", "--data-dir", str(data_dir)) as person:
                await person.until("> ")
                write_address(data_dir, at(second.url))
                person.type("Still there?\n")
                await person.until("Here.")
                await person.until("> ")
                person.type("\x04")
                assert await person.exit_code() == 0


async def test_a_pipe_says_once_that_it_waits() -> None:
    async def loading(peer: Peer) -> None:
        key = (await peer.take())["idempotency_key"]
        await peer.say(Error("not_ready", "the model is loading, 43 %", True, idempotency_key=key))

    async with ScriptedServer(loading, loading, answers("Here."), pages=READY) as server:
        code, out, err = await piped(["chat", "--url", server.url], "Still there?")
    assert (code, out, err) == (0, "Here.\n", "Waiting: the model is loading, 43 %.\n")


def test_a_message_that_nobody_took_is_sent_again_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under its own key, so that a server that did take it answers once."""
    sent: list[ResponseCreate] = []

    class Unreachable(AnswerClient):
        def __init__(self, server: ServerAddress, create: ResponseCreate, **others: Any) -> None:
            super().__init__(server, create, **others)
            sent.append(create)

        async def run(self, heard: Callable[[Heard], None]) -> AnyEnding:
            raise SetupError("The server cannot be reached.")

    monkeypatch.setattr(chat, "AnswerClient", Unreachable)
    console = Console(file=(out := io.StringIO()))
    talk = chat.Talk(at("http://127.0.0.1:9"), {})
    with asyncio.Runner() as runner:
        for line in ("Hello", "/retry", "/retry"):
            assert chat._obey(runner, talk, line, console, as_json=True)
    assert "/retry sends it again" in out.getvalue()
    assert sent[0].input == "Hello"
    assert sent == [sent[0]] * 3


async def test_going_on_shows_where_it_was() -> None:
    pages = READY | {"/api/v1/conversations/c7": VIEW}
    async with (
        ScriptedServer(greets, pages=pages) as server,
        Terminal("chat", "--url", server.url, "--conversation", "c7") as person,
    ):
        await person.until("Going on with Old bread")
        await person.until("> Bread?")
        await person.until("Flour and water.")
        await person.until("> ")
        person.type("/quit\n")
        assert await person.exit_code() == 0
        assert "Another branch" not in person.shown
