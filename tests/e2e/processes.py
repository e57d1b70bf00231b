"""Servers as processes of their own, what is asked of them from outside, and raw sockets to them."""

import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect

from chatd.cli.connect import get_json
from chatd.data_dir import ServerAddress, live_server
from chatd.server.protocol import SUBPROTOCOL
from tests.cli.servers import ChatdProcess
from tests.cli.terminals import piped
from tests.support.live_server import Client

GRACE_S = 0.3
RST = struct.pack("ii", 1, 0)
"""SO_LINGER that makes closing a reset."""


def counts(scaled: Sequence[Any], full: Sequence[Any], *, seconds: tuple[int, int]) -> list[Any]:
    """Values of a test's parameters for the default and for the full run, and what time each may take."""
    limit, full_limit = (pytest.mark.timeout(limit) for limit in seconds)
    return [pytest.param(*scaled, marks=limit), pytest.param(*full, marks=[pytest.mark.full, full_limit])]


class ToyProcess(ChatdProcess):
    """``chatd serve`` with the toy model of `tests.support.toy_serve`.

    ``hold`` is a path that, while there is a file, holds up the engine.
    """

    command = (sys.executable, "-m", "tests.support.toy_serve")

    def __init__(self, data_dir: Path, *options: str, step_s: float = 0, pages: int = 4096) -> None:
        super().__init__(data_dir, Path("toy"), "--grace", str(GRACE_S), *options)
        at = self._options.index("--json")
        del self._options[at]
        self.hold = data_dir.parent / "hold"
        self.extra = {"TOY_STEP_S": str(step_s), "TOY_HOLD": str(self.hold), "TOY_PAGES": str(pages)}

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.until("ready")
        return self


async def get(server: ChatdProcess, path: str) -> Any:
    """JSON of the native interface."""
    return await asyncio.to_thread(get_json, address_of(server), path)


def address_of(server: ChatdProcess) -> ServerAddress:
    """With the operator's token."""
    address = live_server(server.data_dir)
    assert address is not None
    return address


async def engine_of(server: ChatdProcess) -> dict[str, Any]:
    """Levels and counters of the engine, as ``/api/v1/status`` has them."""
    engine: dict[str, Any] = (await get(server, "/api/v1/status"))["engine"]
    return engine


def is_at_rest(engine: dict[str, Any]) -> bool:
    """Nothing runs or waits, and every page is free or only kept to be found again."""
    held = engine["total_pages"] - engine["free_pages"] - engine["evictable_pages"]
    return (engine["running"], engine["waiting"], held) == (0, 0, 0)


async def until_at_rest(server: ChatdProcess, seconds: float) -> None:
    """`TimeoutError` unless the engine is at rest within ``seconds``."""
    async with asyncio.timeout(seconds):
        while not is_at_rest(await engine_of(server)):  # noqa: ASYNC110 - it is another process's
            await asyncio.sleep(0.02)


async def verify(data_dir: Path) -> dict[str, Any]:
    """What ``chatd report --verify`` finds; it must exit with 0."""
    code, out, err = await piped(["report", "--verify", "--json", "--data-dir", str(data_dir)])
    assert (code, err) == (0, ""), out + err
    verdict: dict[str, Any] = json.loads(out)
    assert verdict["ok"]
    assert verdict["findings"] == []
    return verdict


def resident_bytes(pid: int) -> int:
    """RSS of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


@contextlib.asynccontextmanager
async def client_of(server: ChatdProcess, **options: Any) -> AsyncIterator[Client]:
    """A chatd.v1 client; ``options`` as `websockets.connect` takes them, its ``uri`` too."""
    chosen = {"subprotocols": [SUBPROTOCOL], "compression": None, "proxy": None, **options}
    uri = chosen.pop("uri", "ws" + server.url.removeprefix("http") + "/ws")
    async with connect(uri, **chosen) as opened:
        yield Client(opened)


def port_of(server: ChatdProcess) -> int:
    port = urlsplit(server.url).port
    assert port
    return port


class RawSocket:
    """A TCP connection that says exactly the bytes it is given."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    async def until(self, holds: Callable[[bytes], bool]) -> bytes:
        """All that came, as soon as ``holds`` of it; or as the other side ends."""
        heard = b""
        while not holds(heard) and (chunk := await self.reader.read(1 << 16)):
            heard += chunk
        return heard

    async def rest(self) -> bytes:
        """All that comes until the other side ends."""
        with contextlib.suppress(ConnectionError):
            return await self.until(lambda heard: False)
        return b""

    def reset(self) -> None:
        """Cut the connection with RST."""
        kernel = self.writer.get_extra_info("socket")
        kernel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def raw_socket(
    server: ChatdProcess, *, limit: int = 1 << 16, receive_buffer: int | None = None
) -> AsyncIterator[RawSocket]:
    """Twice ``limit`` bytes are taken before somebody reads, besides the kernel's ``receive_buffer``."""
    kernel = socket.socket()
    if receive_buffer is not None:
        kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    kernel.setblocking(False)
    await asyncio.get_running_loop().sock_connect(kernel, ("127.0.0.1", port_of(server)))
    reader, writer = await asyncio.open_connection(sock=kernel, limit=limit)
    try:
        yield RawSocket(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def post(server: ChatdProcess, path: str, body: Any, **headers: str) -> bytes:
    """An HTTP/1.1 POST of JSON as bytes."""
    raw = json.dumps(body).encode()
    fields = {"host": f"127.0.0.1:{port_of(server)}", "content-type": "application/json", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{head}content-length: {len(raw)}\r\n\r\n".encode() + raw


def completion(server: ChatdProcess, text: str, **fields: Any) -> bytes:
    """A streamed chat completion as bytes."""
    body = {"model": "toy", "stream": True, "messages": [{"role": "user", "content": text}], **fields}
    return post(server, "/v1/chat/completions", body)
