"""N1 on the real process: clients that stop reading cost little, and cost nobody else anything."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from chatd.server import protocol as wire
from tests.e2e.frames import frame, opened
from tests.e2e.processes import (
    RawSocket,
    ToyProcess,
    client_of,
    completion,
    counts,
    get,
    raw_socket,
    resident_bytes,
    until_at_rest,
    verify,
)
from tests.support.live_server import Client

KIB, MIB = 1 << 10, 1 << 20
CLOSED_WITHIN_S = 30
NOISE_S = 0.5
"""What a busy machine adds to the worst gaps; to wait for a deaf client would take 20 s."""


async def gaps(client: Client, key: str, length: int) -> list[float]:
    """Seconds between the deltas of one answer."""
    created = await client.start(f"count:{length}", idempotency_key=key)
    found: list[float] = []
    last = time.monotonic()
    while not isinstance(event := await client.receive(), wire.AnyEnding):
        if isinstance(event, wire.ResponseDelta):
            found.append(time.monotonic() - last)
            last = time.monotonic()
    assert len(client.text[created.response_id]) == length
    return found


async def p99_of(clients: list[Client], name: str, length: int) -> float:
    every = await asyncio.gather(*(gaps(client, f"{name}{i}", length) for i, client in enumerate(clients)))
    ordered = sorted(gap for found in every for gap in found)
    return ordered[len(ordered) * 99 // 100]


async def deaf(server: ToyProcess, stack: AsyncExitStack, key: str, length: int, old: str) -> RawSocket:
    """A client that asks for an answer, and for an old one over and over, and reads nothing of it."""
    raw = await stack.enter_async_context(raw_socket(server, limit=1, receive_buffer=4 * KIB))
    await opened(server, raw)
    asked = wire.encode(wire.ResponseCreate(key, f"count:{length}"))
    again = wire.encode(wire.ResponseSubscribe(old, 0))
    raw.writer.write(frame(asked) + frame(again) * 4000)
    return raw


@pytest.mark.parametrize(
    ("readers", "length", "waits"), counts((4, 300, False), (50, 7900, True), seconds=(150, 600))
)
async def test_n1_half_of_the_clients_stop_reading(
    data_dir: Path, readers: int, length: int, waits: bool
) -> None:
    limits = ["--max-running", str(2 * readers + 2), "--grace", "60"]
    async with AsyncExitStack() as stack:
        pages = 1024 + 2 * readers * (length // 16 + 8)
        server = await stack.enter_async_context(ToyProcess(data_dir, *limits, step_s=0.002, pages=pages))
        clients = [await stack.enter_async_context(client_of(server)) for _ in range(2 * readers)]
        old = await clients[0].start("count:800")
        await clients[0].ending(old.response_id)
        baseline = await p99_of(clients, "before", length)
        before = resident_bytes(server.pid)
        keys = [f"deaf{number}" for number in range(readers)]
        raws = [await deaf(server, stack, key, length, old.response_id) for key in keys]
        during = await p99_of(clients[:readers], "during", length)
        assert during <= max(1.2 * baseline, baseline + NOISE_S)
        await until_at_rest(server, 60)
        assert resident_bytes(server.pid) - before < readers * 256 * KIB + 24 * MIB
        if waits:
            async with asyncio.timeout(CLOSED_WITHIN_S):
                while (await get(server, "/api/v1/status"))["connections"] > 2 * readers:  # noqa: ASYNC110
                    await asyncio.sleep(0.5)
        for raw in raws:
            raw.reset()
        async with client_of(server) as back:
            for key in keys:
                await back.send(wire.ResponseCreate(key, f"count:{length}"))
                response_id = (await back.until(wire.ResponseCreated)).response_id
                ending = await back.ending(response_id)
                assert ending.usage.output_tokens == length + 1
                assert len(back.text[response_id]) == length
        assert await server.end() == 0
    await verify(data_dir)


async def test_n1_deaf_clients_over_http_hold_up_nothing(data_dir: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ToyProcess(data_dir, "--drain-timeout", "1"))
        raws = [
            await stack.enter_async_context(raw_socket(server, limit=1, receive_buffer=4 * KIB))
            for _ in range(6)
        ]
        for raw in raws:
            raw.writer.write(completion(server, "count:1500") * 20)
        async with client_of(server) as client:
            created = await client.start("count:100")
            await client.ending(created.response_id)
        heard = await raws[0].until(lambda heard: b"[DONE]" in heard)
        assert b'"finish_reason":"stop"' in heard
        began = time.monotonic()
        assert await server.end() == 0  # although the others never read
        assert time.monotonic() - began < 15
        assert "Traceback" not in await server.errors()
        for raw in raws:
            raw.reset()
    await verify(data_dir)
