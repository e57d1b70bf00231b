"""B1 over the wire: whatever is asked for and given up, at whatever moment and in whatever way."""

import asyncio
import random
from pathlib import Path

import pytest

from chatd.server import protocol as wire
from chatd.text.chat_template import ChatMessage
from tests.e2e.processes import (
    GRACE_S,
    ToyProcess,
    client_of,
    completion,
    counts,
    engine_of,
    raw_socket,
    until_at_rest,
    verify,
)
from tests.support.chat_lab import toy_template
from tests.support.engines import request, toy_tokenizer
from tests.support.lab import reference
from tests.support.live_server import Client
from tests.support.patience import NOISE_S

BY_SOCKET = ("cancel", "close", "reset")
MOMENTS = ("asked", "created", "queued", "prefill", "first", "middle", "end")
AT_ONCE = 24


def expected(text: str, max_tokens: int) -> str:
    """What a cold server answers."""
    spans = toy_template().render([ChatMessage("user", text)], add_generation_prompt=True)
    return reference(request("r", toy_tokenizer().encode_prompt(spans), max_tokens))


class Aborts:
    """One way, place and time after the other, drawn from a seed."""

    def __init__(self, server: ToyProcess, seed: int) -> None:
        self.server = server
        self.draw = random.Random(seed)
        self.seen: dict[str, int] = {}

    async def one(self, number: int) -> None:
        way = self.draw.choice([*BY_SOCKET, "sse close", "sse reset"])
        moment = self.draw.choice(MOMENTS)
        prompt = f"{self.draw.randrange(6)} " * self.draw.choice([4, 100, 300])
        length = self.draw.randrange(1, 60)
        self.seen[f"{way} {moment}"] = self.seen.get(f"{way} {moment}", 0) + 1
        if way in BY_SOCKET:
            await self._by_socket(way, moment, f"k{number}", prompt, length)
        else:
            await self._by_sse(way, moment, prompt, length)

    async def _by_socket(self, way: str, moment: str, key: str, prompt: str, length: int) -> None:
        async with client_of(self.server) as client:
            await client.send(wire.ResponseCreate(key, prompt, params={"max_tokens": length}))
            if moment == "asked" and way != "cancel":
                return client.reset() if way == "reset" else None
            created = await client.until(wire.ResponseCreated)
            ended = await self._until(client, moment, length)
            if way == "reset":
                return client.reset()
            if way == "cancel":
                await client.send(wire.ResponseCancel(created.response_id))
                if not ended:
                    await client.ending(created.response_id)
        return None

    async def _until(self, client: Client, moment: str, length: int) -> bool:
        """Hear events until the moment has come; True if the ending came before it."""
        wanted = {"first": 1, "middle": max(1, length // 2), "end": length}.get(moment, 0)
        while moment not in ("asked", "created"):
            event = await client.receive()
            if isinstance(event, wire.AnyEnding):
                return True
            if isinstance(event, wire.ResponseQueued) and moment == "queued":
                return False
            if isinstance(event, wire.ResponsePrefill) and moment in ("queued", "prefill"):
                return False
            if isinstance(event, wire.ResponseDelta) and event.seq >= wanted:
                return False
        return False

    async def _by_sse(self, way: str, moment: str, prompt: str, length: int) -> None:
        deltas = {"prefill": 1, "first": 2, "middle": 1 + length // 2, "end": length}.get(moment, 0)
        async with raw_socket(self.server) as raw:
            await raw.send(completion(self.server, prompt, max_tokens=length))
            if moment != "asked":
                await raw.until(lambda heard: heard.count(b"data: ") > deltas or b"[DONE]" in heard)
            if way == "sse reset":
                raw.reset()


@pytest.mark.parametrize(("count", "seed"), counts((80, 1), (1000, 2), seconds=(150, 300)))
async def test_b1_abort_anywhere(data_dir: Path, count: int, seed: int) -> None:
    limits = ["--max-running", "8", "--step-tokens", "64"]
    async with ToyProcess(data_dir, *limits, step_s=0.001, pages=160) as server:
        aborts, numbers = Aborts(server, seed), iter(range(count))

        async def worker() -> None:
            for number in numbers:
                await aborts.one(number)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(worker())
        await until_at_rest(server, GRACE_S + 1 + NOISE_S)
        counters = (await engine_of(server))["counters"]
        assert counters["submitted"] == counters["finished"]
        assert len(aborts.seen) >= min(30, count // 4)
        async with client_of(server) as client:
            created = await client.start(
                "5 " * 300 + "and then?", params={"max_tokens": 40, "temperature": 0}
            )
            ending = await client.ending(created.response_id)
            assert client.text[created.response_id] == expected("5 " * 300 + "and then?", 40)
            assert ending.usage.output_tokens == 40
        live = await verify(data_dir)
        assert await server.end() == 0
    after = await verify(data_dir)
    assert after["responses"] == live["responses"] >= count * 0.8
