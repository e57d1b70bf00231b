"""Visit: one HTTP request while it is answered, and how whoever made it is shown out.

An answer may go on for minutes. When its key is revoked, or the page logs out, the application is told that
the client has gone, and lets go of everything as it does then. The client, which is still there, gets a
refusal; or, if an answer had begun, just its end.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chatd.server.visitors import Visitor


class Visit:
    """Give the application `receive` and `send` in the place of the server's, then call `end`."""

    def __init__(self, visitor: Visitor, receive: Receive, send: Send) -> None:
        self.visitor = visitor
        self._receive = receive
        self._send = send
        self._unwelcome = asyncio.Event()
        self._has_body = False
        self._is_told = False
        self._begun = False
        self._over = False

    def show_out(self) -> None:
        """What it waits for from now on, or already, is its own end. What it does meanwhile is done."""
        self._unwelcome.set()

    async def receive(self) -> Message:
        """Cancelled, it loses nothing."""
        if self._has_body:
            return await self._parting()
        message = await self._receive()
        self._has_body = not message.get("more_body", False)
        return message

    async def _parting(self) -> Message:
        """The client goes, or is to go."""
        going = [asyncio.ensure_future(self._receive()), asyncio.ensure_future(self._unwelcome.wait())]
        try:
            await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
            if self._unwelcome.is_set():
                self._is_told = True
                return {"type": "http.disconnect"}
            message = going[0].result()
            assert isinstance(message, dict)
            return message
        finally:
            for one in going:
                one.cancel()
            await asyncio.gather(*going, return_exceptions=True)

    async def send(self, message: Message) -> None:
        if self._is_told and not self._begun:
            return  # it is for somebody who may not hear it any more
        self._begun = True
        self._over = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)

    async def end(self, scope: Scope, refusal: ASGIApp) -> None:
        """Once the application has returned."""
        if self._is_told and not self._begun:
            await refusal(scope, self._receive, self._send)
        elif self._is_told and not self._over:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
