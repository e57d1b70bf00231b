"""A real WebSocket server that says what a test's script says, one script a connection."""

import json
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from chatd.server.protocol import (
    Cost,
    ResponseCompleted,
    ResponseCreated,
    ResponseDelta,
    ServerEvent,
    Timings,
    Usage,
    encode,
)

Part = Callable[["Peer"], Awaitable[None]]

COST = Cost("CNY", 68_500, 80_000, 11_500, 50_000, 18_500, "test-1")


class Peer:
    """The server's end of one connection."""

    def __init__(self, socket: ServerConnection, received: list[dict[str, Any]]) -> None:
        self._socket = socket
        self._received = received

    async def take(self) -> dict[str, Any]:
        frame: dict[str, Any] = json.loads(await self._socket.recv())
        self._received.append(frame)
        return frame

    async def say(self, *events: ServerEvent) -> None:
        for event in events:
            await self._socket.send(encode(event), text=True)

    async def say_raw(self, text: str) -> None:
        await self._socket.send(text)

    def cut(self) -> None:
        """End the TCP stream after what was said, without a close frame."""
        self._socket.transport.close()


class ScriptedServer:
    """Serves ``parts`` in order, one a connection, and the last one for all that follow.

    ``received`` are the client's frames of all connections; ``pages`` the JSON answers of HTTP paths.
    """

    def __init__(self, *parts: Part, pages: dict[str, Any] | None = None) -> None:
        self._parts: Sequence[Part] = parts
        self._pages = pages or {}
        self.connections = 0
        self.received: list[dict[str, Any]] = []
        self.url = ""

    async def __aenter__(self) -> "ScriptedServer":
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            0,
            subprotocols=["chatd.v1"],  # type: ignore[list-item]
            process_request=self._page,
        )
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, socket: ServerConnection) -> None:
        part = self._parts[min(self.connections, len(self._parts) - 1)]
        self.connections += 1
        await part(Peer(socket, self.received))

    def _page(self, socket: ServerConnection, request: Request) -> Response | None:
        if request.path == "/ws":
            return None
        page = self._pages.get(request.path)
        status = HTTPStatus.NOT_FOUND if page is None else HTTPStatus.OK
        return socket.respond(status, json.dumps(page))


def created(key: str, response_id: str = "r1", dropped_turns: int = 0) -> ResponseCreated:
    return ResponseCreated(response_id, key, "c1", "m1", "m2", dropped_turns, "")


def delta(seq: int, text: str, response_id: str = "r1", from_seq: int | None = None) -> ResponseDelta:
    return ResponseDelta(response_id, seq if from_seq is None else from_seq, seq, text)


def ending(kind: Callable[..., Any] = ResponseCompleted, last_seq: int = 3, **fields: Any) -> Any:
    facts: dict[str, Any] = {
        "response_id": "r1",
        "conversation_id": "c1",
        "message_id": "m2",
        "finish_reason": "end",
        "last_seq": last_seq,
        "usage": Usage(44, 40, 0, 4, 9, 53),
        "timings": Timings(1.0, 210.0, 41.0, 24.1, 600.0),
        "cost": COST,
    }
    return kind(**(facts | fields))
