"""One answer over chatd.v1, whole, whatever becomes of the connection.

    connect -> create (idempotency key) -> events ... -> ending
       ^            or, once the response's id is known: subscribe after the last seq
       +------------ connection lost, or the server says "later" -----------+

The idempotency key makes it safe to send a create again whose answer was never heard; ``seq`` makes
every piece of text arrive once; what has arrived is acknowledged about once a second. A server that answers
"not ready" is there: it is waited for without limit.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus
from websockets.frames import Close

from chatd.cli.connect import ServerRefused, credentials, in_words, is_local, tls_of
from chatd.data_dir import ServerAddress
from chatd.errors import BadFrame, ContextTooLong, NotAllowed, NotReady, SetupError, Unauthorized
from chatd.server.protocol import (
    SUBPROTOCOL,
    AnyEnding,
    ClientEvent,
    CloseCode,
    ConversationWarm,
    Error,
    ResponseAck,
    ResponseCancel,
    ResponseCreate,
    ResponseCreated,
    ResponseDelta,
    ResponseSubscribe,
    ServerDraining,
    ServerEvent,
    SessionCreated,
    SessionHello,
    decode_server,
    encode,
)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
MOST_TRIES = 12
"""Failed tries in a row, about 40 s of pauses, before giving up."""
READY_PAUSE_S = 0.5
"""Between two looks at a server that is not ready yet."""
ACK_S = 1.0
"""Between two acknowledgements of what has arrived; the ending has one of its own."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The connection is gone, or the server said "later"; the next try comes in ``pause_s`` seconds."""

    reason: str
    pause_s: float


Heard = ServerEvent | Waiting


class _Later(Exception):
    """The server asked to come again."""


class _NotReady(Exception):
    """It is there, and will say the same until its model is."""


def socket_url(url: str) -> str:
    """http://host/chat -> ws://host/chat/ws"""
    return "ws" + url.removeprefix("http") + "/ws"


def open_socket(server: ServerAddress) -> connect:
    """A connection to ``server`` (loopback never goes through a proxy)."""
    return connect(
        socket_url(server.url),
        subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
        compression=None,
        proxy=None if is_local(server.url) else True,
        additional_headers=credentials(server),
        ssl=tls_of(server),
        max_size=None,
    )


async def hello(server: ServerAddress, going_on: str | None = None) -> SessionCreated:
    """What server this is. `SetupError` if there is none.

    It is told that conversation ``going_on`` will go on, so that it may fetch its KV from disk meanwhile.
    """
    try:
        async with open_socket(server) as socket:
            if going_on is not None:
                await socket.send(encode(ConversationWarm(going_on)), text=True)
            await socket.send(encode(SessionHello()), text=True)
            async for frame in socket:
                if isinstance(event := _known(frame), SessionCreated):
                    return event
    except (OSError, ConnectionClosed, InvalidHandshake) as error:
        raise SetupError(f"The server at {server.url} cannot be reached: {_why(error)}.") from None
    raise SetupError(f"The server at {server.url} closed the connection. It may be stopping; try again.")


def _why(error: Exception) -> str:
    match error:
        case ConnectionClosed() | InvalidMessage():
            return "the connection was cut"
        case InvalidStatus() if error.response.status_code == Unauthorized.http_status:
            return "it wants a key (in CHATD_KEY) that is good"
        case ConnectionClosed(rcvd=Close(code=CloseCode.UNAUTHORIZED)):
            return "the key was revoked"
        case InvalidStatus():
            return f"it answers with status {error.response.status_code}"
        case InvalidHandshake():
            return "it does not speak chatd.v1 there"
        case _:
            return in_words(error)


def _is_shut_out(error: Exception) -> bool:
    """Waiting does not help: the key is missing, wrong or revoked."""
    match error:
        case InvalidStatus():
            return error.response.status_code in (Unauthorized.http_status, NotAllowed.http_status)
        case ConnectionClosed(rcvd=Close(code=CloseCode.UNAUTHORIZED)):
            return True
        case _:
            return False


def _known(frame: str | bytes) -> ServerEvent | None:
    """None for a frame of a newer server that this client does not know."""
    try:
        return decode_server(frame)
    except BadFrame:
        return None


def _for_people(error: Error) -> str:
    """The server's message; where it speaks of a field of the wire, the option of `chatd chat` instead."""
    if error.code != ContextTooLong.code:
        return error.message
    facts = error.message.partition(". ")[0].rstrip(".")
    return (
        f"{facts}. Shorten the message, start a new conversation, or leave out the oldest turns: "
        "`chatd chat --truncate`, with --last to go on with this one."
    )


class AnswerClient:
    """Asks for one answer and hears it to its end. Use once."""

    def __init__(
        self,
        server: ServerAddress,
        create: ResponseCreate,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        look: Callable[[], ServerAddress | None] = lambda: None,
    ) -> None:
        """``look`` says where the server is now, and with what token, if that may have changed."""
        self._server = server
        self._create = create
        self._sleep = sleep
        self._clock = clock
        self._look = look
        self._acknowledged_at = clock()
        self._response_id = ""
        self._seq = 0
        self._tries = 0
        self._id_known = asyncio.Event()
        self._cancel_wanted = asyncio.Event()

    def cancel(self) -> None:
        """Ask the server to stop, now or as soon as the response has an id. The ending still comes."""
        self._cancel_wanted.set()

    async def run(self, heard: Callable[[Heard], None]) -> AnyEnding:
        """Tell ``heard`` each event of this answer once, and return its ending.

        `ServerRefused` if the server will not do it, `SetupError` if it cannot be reached for good.
        Cancelled, it leaves the answer running on the server for the server's grace period.
        """
        while True:
            self._server = self._look() or self._server
            try:
                async with open_socket(self._server) as socket:
                    return await self._hear(socket, heard)
            except _NotReady as error:
                self._tries = 0
                waiting = Waiting(str(error), READY_PAUSE_S)
            except (OSError, ConnectionClosed, InvalidHandshake, _Later) as error:
                if _is_shut_out(error) and not self._is_another():
                    raise SetupError(
                        f"The server at {self._server.url} lets nobody in: {_why(error)}."
                    ) from None
                waiting = self._failed_try(error)
            heard(waiting)
            await self._sleep(waiting.pause_s)

    def _is_another(self) -> bool:
        """Whether the server that was asked is not the one to ask: it restarted, and has another token."""
        now = self._look()
        return now is not None and now != self._server

    def _failed_try(self, error: Exception) -> Waiting:
        """How long to wait. `SetupError` after too many in a row."""
        self._tries += 1
        reached = isinstance(error, _Later)
        reason = str(error).rstrip(".") if reached else _why(error)
        if self._tries >= MOST_TRIES:
            what = "does not take the message" if reached else "cannot be reached"
            raise SetupError(f"The server at {self._server.url} {what}: {reason}.")
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._tries - 1))
        return Waiting(reason if reached else f"the server cannot be reached: {reason}", pause)

    async def _hear(self, socket: ClientConnection, heard: Callable[[Heard], None]) -> AnyEnding:
        canceller = asyncio.create_task(self._send_cancel(socket))
        try:
            await socket.send(encode(self._opening()), text=True)
            async for frame in socket:
                event = _known(frame)
                if event is None or not self._is_new(event):
                    continue
                heard(event)
                await self._acknowledge(socket, event)
                if isinstance(event, AnyEnding):
                    return event
            raise _Later("the connection was closed")
        finally:
            canceller.cancel()
            await asyncio.gather(canceller, return_exceptions=True)

    async def _acknowledge(self, socket: ClientConnection, event: ServerEvent) -> None:
        """Say what has arrived: at the end, and now and then before. A lost connection shows elsewhere."""
        now = self._clock()
        is_due = isinstance(event, ResponseDelta) and now - self._acknowledged_at >= ACK_S
        if is_due or isinstance(event, AnyEnding):
            self._acknowledged_at = now
            with contextlib.suppress(ConnectionClosed):
                await socket.send(encode(ResponseAck(self._response_id, self._seq)), text=True)

    def _opening(self) -> ClientEvent:
        return ResponseSubscribe(self._response_id, self._seq) if self._response_id else self._create

    async def _send_cancel(self, socket: ClientConnection) -> None:
        await self._cancel_wanted.wait()
        await self._id_known.wait()
        await socket.send(encode(ResponseCancel(self._response_id)), text=True)

    def _is_new(self, event: ServerEvent) -> bool:
        """Take note of the event. False: it does not bear on this answer, or was heard before."""
        match event:
            case ResponseCreated(idempotency_key=key) if key == self._create.idempotency_key:
                is_new = not self._response_id
                self._response_id = event.response_id
                self._id_known.set()
            case ResponseDelta(response_id=rid) if rid == self._response_id:
                is_new = event.seq > self._seq
                self._seq = max(self._seq, event.seq)
            case Error() if self._is_mine(event):
                if event.code == NotReady.code:
                    raise _NotReady(event.message.rstrip("."))
                if event.retryable:
                    raise _Later(event.message)
                raise ServerRefused(_for_people(event))
            case ServerDraining():
                is_new = True
            case _:
                return getattr(event, "response_id", "") == self._response_id != ""
        self._tries = 0
        return is_new

    def _is_mine(self, event: Error) -> bool:
        """Errors that name nothing answer the only request on this socket."""
        names = {event.idempotency_key or "", event.response_id or ""} - {""}
        return not names or not names.isdisjoint({self._create.idempotency_key, self._response_id})
