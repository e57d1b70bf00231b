"""uvicorn's sans-I/O WebSocket with an end for peers that do not read.

What a peer has not taken sits in the transport's buffer, and asyncio closes a transport only once that
buffer is empty: a client that stops reading could keep its connection, and our shutdown, for
ever. Here each way of ending a connection aborts it if the polite way takes too long, and no
peer can make the buffer grow by itself.
"""

import asyncio
import socket
from asyncio.transports import BaseTransport, Transport
from typing import cast

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

WRITE_BUFFER_BYTES = 64 * 1024
KERNEL_BUFFER_BYTES = 64 * 1024
"""Left alone, Linux lets up to 4 MB of what was "sent" wait for a client that does not read."""
MAX_FRAGMENTS = 1024
"""Of one message. Browsers cut at 64 KiB and more; empty fragments do not count towards the size limit."""
CLOSE_S = 5.0
"""For the closing handshake, once the application is done with the connection."""
ABORT_S = 0.5
"""For a peer that was given up already, or that must go because the server does."""


class SocketProtocol(WebSocketsSansIOProtocol):
    """Given to uvicorn as ``ws``."""

    _abort_timer: asyncio.TimerHandle | None = None
    _lost = False

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        cast(Transport, transport).set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        kernel = transport.get_extra_info("socket")
        kernel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        super().connection_lost(exc)

    def handle_ping(self) -> None:
        """No pong into a full buffer: a flood of pings would be a flood of memory."""
        pong = b"".join(self.conn.data_to_send())
        if self.writable.is_set():
            self.transport.write(pong)

    def handle_cont(self, event: Frame) -> None:
        if self.close_sent:
            return
        if len(self.frames) >= MAX_FRAGMENTS:
            self.conn.fail(1009, "too many fragments")
            self.handle_parser_exception()
        else:
            super().handle_cont(event)

    def keepalive_timeout(self) -> None:
        """Tell the application at once, not when the buffer has drained."""
        super().keepalive_timeout()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1011})
        self.disconnected = True
        self.writable.set()
        self._abort_after(ABORT_S)

    def shutdown(self) -> None:
        super().shutdown()
        self._abort_after(ABORT_S)

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "websocket.close":
            self.writable.set()  # nothing follows a close frame, so it may join a full buffer
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True  # by a refusal; or uvicorn logs that the application forgot it

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self._abort_after(CLOSE_S)

    def _abort_after(self, delay_s: float) -> None:
        """Or earlier, if that was said before."""
        timer, due = self._abort_timer, self.loop.time() + delay_s
        if self._lost or (timer is not None and timer.when() <= due):
            return
        if timer is not None:
            timer.cancel()
        self._abort_timer = self.loop.call_at(due, self.transport.abort)
