"""The server dies, or ends, in mid-stream: nothing that was shown is missing, and all goes on."""

import asyncio
import itertools
import random
import signal
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from chatd.server import protocol as wire
from tests.e2e.processes import ToyProcess, client_of, counts, get, verify
from tests.support.live_server import Client

CANCEL_EVERY = 5
"""Turns of a watcher."""
_keys = itertools.count(1)
ENDINGS = {"completed", "incomplete", "cancelled", "failed"}


class Watcher:
    """Has one conversation on one socket until the server is gone, and keeps what it was shown."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.asked: list[wire.ResponseCreate] = []
        self.created: list[wire.ResponseCreated] = []
        self.endings: dict[str, wire.AnyEnding] = {}
        self.text: dict[str, str] = {}
        self.seq: dict[str, int] = {}
        self.errors: list[wire.Error] = []

    async def watch(self, server: ToyProcess) -> None:
        async with client_of(server) as client:
            self.text, self.seq, self.errors = client.text, client.seq, client.errors
            try:
                await self._talk(client)
            except ConnectionClosed:
                return

    async def _talk(self, client: Client) -> None:
        at: str | None = None
        for turn in range(1000):
            text = f"{self.number} {turn}" if turn % 2 else "count:40"
            key = f"{next(_keys)}"
            params = {"max_tokens": 30 + self.number}
            request = wire.ResponseCreate(key, text, conversation_id=at, params=params)
            await client.send(request)
            created = await client.until(wire.ResponseCreated)
            at = created.conversation_id
            self.asked.append(request)
            self.created.append(created)
            if turn % CANCEL_EVERY == CANCEL_EVERY - 1:
                await client.send(wire.ResponseCancel(created.response_id))
            self.endings[created.response_id] = await client.ending(created.response_id)


async def killed(server: ToyProcess, watchers: list[Watcher], after_s: float) -> None:
    """Let ``watchers`` watch, and kill the server when it has answered for ``after_s``."""
    async with asyncio.TaskGroup() as tasks:
        for watcher in watchers:
            tasks.create_task(watcher.watch(server))
        while not any(watcher.text for watcher in watchers):  # noqa: ASYNC110 - any of many
            await asyncio.sleep(0.005)
        await asyncio.sleep(after_s)
        await server.end(signal.SIGKILL)
    assert [watcher.errors for watcher in watchers if watcher.errors] == []
    log = await server.errors()
    assert not [words for words in ("the store failed", "Traceback", "is locked") if words in log]


async def all_is_there(server: ToyProcess, watcher: Watcher) -> None:
    """What was shown is in the store; each response has one ending, the one that was shown if one was."""
    for created in watcher.created:
        view = await get(server, f"/api/v1/conversations/{created.conversation_id}")
        message = next(m for m in view["messages"] if m["id"] == created.message_id)
        [response] = message["responses"]
        assert response["response_id"] == created.response_id
        assert response["status"] in ENDINGS
        shown = watcher.text.get(created.response_id, "")
        assert message["text"].startswith(shown)
        if (ending := watcher.endings.get(created.response_id)) is not None:
            assert message["text"] == shown
            assert response["finish_reason"] == ending.finish_reason
            assert response["cost"]["total_nano"] == ending.cost.total_nano
        else:  # it may have ended just as the server died
            assert response["status"] != "failed" or response["error"]["code"] == "server_died"
            assert response["usage"]["output_tokens"] >= watcher.seq.get(created.response_id, 0)


async def goes_on(server: ToyProcess, watcher: Watcher) -> None:
    """A subscriber hears the rest and the ending, the old key replays, the next prompt has all the text."""
    last = watcher.created[-1]
    seen = watcher.seq.get(last.response_id, 0)
    async with client_of(server) as client:
        await client.send(wire.ResponseSubscribe(last.response_id, seen))
        ending = await client.ending(last.response_id)
    whole = watcher.text.get(last.response_id, "") + client.text.get(last.response_id, "")
    assert ending.last_seq >= seen
    view = await get(server, f"/api/v1/conversations/{last.conversation_id}")
    # Not always the last message: the server may have died with the next question stored and unconfirmed.
    [answer] = [m for m in view["messages"] if m["id"] == last.message_id]
    assert answer["text"] == whole
    async with client_of(server) as client:
        await client.send(watcher.asked[-1])
        assert await client.until(wire.ResponseCreated) == last
        assert await client.ending(last.response_id) == ending
        assert client.text.get(last.response_id, "") == whole
        follow = await client.start("count:5", conversation_id=last.conversation_id)
        done = await client.ending(follow.response_id)
    stored = sum(len(message["text"].encode()) for message in view["messages"])
    assert done.usage.prompt_tokens >= stored + len("count:5")
    assert client.text[follow.response_id] == "01234"


@pytest.mark.parametrize(("rounds", "streams"), counts((2, 8), (50, 16), seconds=(150, 1800)))
async def test_kill_9_at_a_random_moment(data_dir: Path, rounds: int, streams: int) -> None:
    """Of sessions that wait, are cancelled, come back from disk and are preempted: the pool is small."""
    draw, watchers = random.Random(rounds), list[Watcher]()
    for _ in range(rounds):
        async with ToyProcess(data_dir, "--max-running", "5", step_s=0.002, pages=120) as server:
            await check(server, watchers)
            watchers = [Watcher(number) for number in range(streams)]
            await killed(server, watchers, draw.uniform(0, 0.6))
    async with ToyProcess(data_dir) as server:
        await check(server, watchers)
        assert await server.end() == 0
    assert (await verify(data_dir))["runs"] == rounds + 1


async def check(server: ToyProcess, watchers: list[Watcher]) -> None:
    """After a restart."""
    for watcher in watchers:
        if watcher.created:
            await all_is_there(server, watcher)
            await goes_on(server, watcher)
    verdict = await get(server, "/api/v1/report/verify")
    assert verdict["ok"], verdict["findings"]
