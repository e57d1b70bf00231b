"""O3 and D6: the process ends in order whatever hangs on it, and its health tells the truth."""

import asyncio
import contextlib
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed

from chatd.server import protocol as wire
from tests.e2e.processes import (
    RawSocket,
    ToyProcess,
    client_of,
    completion,
    post,
    raw_socket,
    verify,
)
from tests.support.live_server import Client

LONG: dict[str, Any] = {"params": {"max_tokens": 8000, "ignore_eos": True}}


async def close_code(client: Client) -> int:
    """Read to the end; the code the server closed with."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            await client.receive()
    await client.socket.wait_closed()
    code = client.socket.close_code
    assert code is not None
    return code


async def half_said(server: ToyProcess, stack: AsyncExitStack) -> list[RawSocket]:
    """Connections that stand still in the middle of something: nothing, a head, a body, an upgrade."""
    whole = post(server, "/v1/chat/completions", {"messages": []})
    parts = b"", b"GET / HT", whole[:-5], b"GET /ws HTTP/1.1\r\nUpgrade: websocket\r\n"
    raws = []
    for part in parts:
        raw = await stack.enter_async_context(raw_socket(server))
        await raw.send(part)
        raws.append(raw)
    return raws


async def test_o3_sigterm_under_load(data_dir: Path) -> None:
    """100 sockets, 10 of them with a stream, streams over HTTP, readers that stopped, and half requests."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ToyProcess(data_dir, "--drain-timeout", "1", step_s=0.002))
        clients = [await stack.enter_async_context(client_of(server)) for _ in range(100)]
        created = [await client.start("long", **LONG) for client in clients[:10]]
        await asyncio.gather(*(client.until(wire.ResponseDelta) for client in clients[:10]))
        streams = [await stack.enter_async_context(raw_socket(server)) for _ in range(4)]
        for stream in streams:
            await stream.send(completion(server, "long", max_tokens=8000, ignore_eos=True))
            await stream.until(lambda heard: b"content" in heard)
        await half_said(server, stack)
        began = time.monotonic()
        codes = [
            asyncio.create_task(close_code(client)) for client in clients[5:]
        ]  # the first five do not read
        assert await server.end() == 0
        assert time.monotonic() - began < 15
        assert set(await asyncio.gather(*codes)) == {1012}
        for client, one in zip(clients[5:10], created[5:], strict=True):
            assert client.text[one.response_id]
        for client in clients[:5]:
            client.reset()
        assert "Traceback" not in await server.errors()
    verdict = await verify(data_dir)
    assert verdict["responses"] == 14


async def test_o3_with_an_engine_that_does_not_move(data_dir: Path) -> None:
    async with ToyProcess(data_dir, "--drain-timeout", "1") as server, client_of(server) as client:
        server.hold.touch()
        await client.start("hello")
        began = time.monotonic()
        assert await server.end() == 0
        assert time.monotonic() - began < 30
    await verify(data_dir)
