"""Connections of a benchmark: HTTP/1.1 and WebSockets. Nothing else of it opens one.

HTTP is spoken over asyncio's streams by h11, which uvicorn brings too.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import h11
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake

from chatd.bench.answers import Refused
from chatd.server.protocol import SUBPROTOCOL

READ_BYTES = 1 << 16
MOST_ERROR_BYTES = 1 << 20
BROKEN = "connection"
"""The code of a turn whose connection could not be had, or broke."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server is. ``url`` has no slash at its end; ``headers`` go with each request."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None

    @property
    def socket_url(self) -> str:
        return "ws" + self.url.removeprefix("http") + "/ws"

    def context(self) -> ssl.SSLContext | None:
        """None for a server that does not speak TLS."""
        if urlsplit(self.url).scheme == "http":
            return None
        return self.tls or ssl.create_default_context()


class HttpLine:
    """One connection for one request; broken ones raise `Refused`. `open` it, `send`, read, `close` it.

    Keeping connections would gain nothing: they are opened before a turn's clock runs, and servers close idle
    ones when they like (llama.cpp's does after each stream).
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._parts = urlsplit(place.url)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._h11 = h11.Connection(h11.CLIENT)

    async def open(self) -> None:
        secure = self._parts.scheme == "https"
        port = self._parts.port or (443 if secure else 80)
        try:
            self._streams = await asyncio.open_connection(
                self._parts.hostname, port, ssl=self._place.context()
            )
        except OSError as error:
            raise _broken(error) from error

    def close(self) -> None:
        """Idempotent."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def send(self, method: str, path: str, body: object = None) -> int:
        """Send a request, with ``body`` as JSON, and return the status of its answer. Then read `chunks`."""
        assert self._streams
        raw = b"" if body is None else json.dumps(body).encode()
        headers = [("host", self._parts.netloc), ("connection", "close"), *self._place.headers.items()]
        if body is not None:
            headers += [("content-type", "application/json"), ("content-length", str(len(raw)))]
        request = h11.Request(method=method, target=self._parts.path + path, headers=headers)
        parts = [request, *([h11.Data(data=raw)] if raw else []), h11.EndOfMessage()]
        try:
            self._streams[1].write(b"".join(self._h11.send(part) or b"" for part in parts))
            await self._streams[1].drain()
        except OSError as error:
            raise _broken(error) from error
        event = await self._event()
        while isinstance(event, h11.InformationalResponse):
            event = await self._event()
        assert isinstance(event, h11.Response)
        return event.status_code

    async def chunks(self) -> AsyncIterator[bytes]:
        """The answer's body as it comes."""
        while isinstance(event := await self._event(), h11.Data):
            yield bytes(event.data)

    async def body(self) -> Any:
        """All of it as JSON; None if it is no JSON, or longer than an error has any reason to be."""
        raw = b""
        async for chunk in self.chunks():
            raw += chunk if len(raw) < MOST_ERROR_BYTES else b""
        try:
            return json.loads(raw)
        except ValueError:
            return None

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        assert self._streams
        try:
            while (event := self._h11.next_event()) is h11.NEED_DATA:
                self._h11.receive_data(await self._streams[0].read(READ_BYTES))
        except (OSError, h11.RemoteProtocolError) as error:
            raise _broken(error) from error
        return event


def _broken(error: Exception) -> Refused:
    words = "it speaks no HTTP/1.1, or broke off" if isinstance(error, h11.ProtocolError) else str(error)
    return Refused(BROKEN, words or type(error).__name__)


async def ask_json(place: Place, method: str, path: str, body: object = None) -> Any:
    """One request on a connection of its own. `Refused` for an error of the server or of the connection."""
    line = HttpLine(place)
    await line.open()
    try:
        status, found = await line.send(method, path, body), await line.body()
    finally:
        line.close()
    if status >= 400:
        raise refusal(status, found)
    return found


def refusal(status: int, body: Any) -> Refused:
    """An error as OpenAI's servers write it, or as others do."""
    error = body.get("error", body) if isinstance(body, dict) else {}
    error = error if isinstance(error, dict) else {"message": error}
    code = error.get("code")
    message = str(error.get("message") or error.get("detail") or f"status {status}")
    return Refused(code if isinstance(code, str) and code else f"http_{status}", message)


async def open_socket(place: Place) -> ClientConnection:
    """A WebSocket that speaks chatd.v1."""
    try:
        return await connect(
            place.socket_url,
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
            compression=None,
            proxy=None,
            additional_headers=place.headers,
            ssl=place.context(),
            max_size=None,
        )
    except (OSError, InvalidHandshake) as error:
        raise _broken(error) from error
