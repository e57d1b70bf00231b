"""/ws: the pump between one WebSocket and its `Session`, one task group for each connection.

    reader     socket -> session -> effects          never waits for a response
    listeners  one stream each -> session -> outbox  take the next event when the last one was written
    writer     outbox -> socket                      the only one that waits for the client
    heart      a pong when nothing was written for a while

A client that stops reading holds up its own writer, and through it its own listeners; their streams
merge what comes in the meantime. After ``send_timeout_s`` it is closed. What one connection can hold is
`OUTBOX_BYTES` plus one event a response, plus the transport's buffer.
"""

import contextlib
from collections import deque

import anyio
from anyio.abc import TaskGroup
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from chatd.engine.stream import Delta, Ended, PrefillEvent, QueuedEvent, RestoringEvent, StreamEvent
from chatd.errors import ChatdError, RateLimited
from chatd.ids import ConversationId, ResponseId
from chatd.server import protocol as wire
from chatd.server.allowance import Allowance
from chatd.server.commands import command_of
from chatd.server.estimates import estimated_of
from chatd.server.session import (
    Acknowledge,
    Cancel,
    Effect,
    Estimate,
    Identity,
    Listen,
    Send,
    Session,
    Start,
    WarmUp,
)
from chatd.server.state import AppState, Service
from chatd.server.views import ending_of
from chatd.server.visitors import Visitor, visitor_of
from chatd.store.records import ResponseRecord

OUTBOX_BYTES = 64 * 1024
"""Unwritten bytes above which no more frames are read from the client."""
WARM_BURST, WARM_PER_S = 10, 1.0
"""Conversations one connection may have warmed; more hints are dropped."""
MAX_CALLS = 16
"""Calls of the service under way for one connection; more frames wait."""
CLOSE_S = 1.0
"""How long closing may take before the connection is left to the transport."""


async def serve_socket(socket: WebSocket) -> None:
    """The route. ``socket`` has passed the Host and Origin checks, and the doorman."""
    state: AppState = socket.app.state.chatd
    if wire.SUBPROTOCOL not in socket.scope["subprotocols"]:
        await socket.accept()
        await socket.close(wire.CloseCode.WRONG_SUBPROTOCOL, f"offer the subprotocol {wire.SUBPROTOCOL}")
        return
    await socket.accept(wire.SUBPROTOCOL)
    await Pump(socket, state, visitor_of(socket)).run()


class Outbox:
    """Frames in the order the session made them, written by one writer."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.put_count = 0
        self._written_count = 0
        self._frames: deque[bytes] = deque()
        self._changed = anyio.Event()

    def put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self.held_bytes += len(frame)
        self.put_count += 1
        self._change()

    async def head(self) -> bytes:
        """The oldest frame; it stays until `written`. Cancelled, it changes nothing."""
        while not self._frames:
            await self._changed.wait()
        return self._frames[0]

    def written(self) -> None:
        """The oldest frame is with the transport."""
        self.held_bytes -= len(self._frames.popleft())
        self._written_count += 1
        self._change()

    async def until_written(self, count: int) -> None:
        """Wait until the first ``count`` frames are written."""
        while self._written_count < count:
            await self._changed.wait()

    async def until_below(self, held_bytes: int) -> None:
        while self.held_bytes >= held_bytes:
            await self._changed.wait()

    async def change(self) -> None:
        """Wait until a frame comes or goes."""
        await self._changed.wait()

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class _Stalled(Exception):
    """The client took no data for ``send_timeout_s``."""


class _ShownOut(Exception):
    """Who came in would not be let in now."""


class Pump:
    """Carries one connection. `run` returns when it is over, with every stream closed."""

    def __init__(self, socket: WebSocket, state: AppState, visitor: Visitor) -> None:
        settings = state.settings
        identity = Identity(state.new_id(), state.version, settings.heartbeat_s, state.currency)
        self._socket = socket
        self._state = state
        self.visitor = visitor
        self._session = Session(identity, max_responses=settings.max_responses)
        self._outbox = Outbox()
        self._unwelcome = anyio.Event()
        self._calls = anyio.Semaphore(MAX_CALLS)
        self._warming = Allowance(WARM_BURST, WARM_PER_S)
        self._last_sent = state.clock()
        self._tasks: TaskGroup

    @property
    def held_bytes(self) -> int:
        """Bytes of frames the transport has not taken yet."""
        return self._outbox.held_bytes

    async def until_idle(self) -> None:
        """Wait until no answer is under way and all is written. Never returns for a lost connection."""
        while self._session.busy or self._outbox.held_bytes:
            await self._outbox.change()

    def drain(self, deadline_s: float) -> None:
        """Say that the server shuts down."""
        self._carry_out(self._session.draining(deadline_s))

    def show_out(self) -> None:
        """Close the connection: its key was revoked, or the like."""
        self._unwelcome.set()

    async def _leave(self) -> None:
        await self._unwelcome.wait()
        raise _ShownOut

    def conversation(self, update: wire.ConversationUpdated) -> None:
        """A conversation of this account changed, here or elsewhere."""
        self._carry_out(self._session.conversation(update))

    async def run(self) -> None:
        """Until either side closes. A fault of ours closes with 1011 and is raised."""
        try:
            async with anyio.create_task_group() as self._tasks:
                self._state.connections.add(self)
                if not self._state.keys.is_good(self.visitor):  # revoked while it came in
                    self.show_out()
                self._tasks.start_soon(self._write)
                self._tasks.start_soon(self._beat)
                self._tasks.start_soon(self._leave)
                await self._read()
                self._tasks.cancel_scope.cancel()
        except* WebSocketDisconnect:
            pass
        except* _Stalled:
            await self._close(wire.CloseCode.SLOW_READER, "no data was taken for too long")
        except* _ShownOut:
            await self._close(wire.CloseCode.UNAUTHORIZED, "log in again")
        except* Exception:
            await self._close(wire.CloseCode.INTERNAL, "internal error")
            raise
        finally:
            self._state.connections.discard(self)

    async def _close(self, code: int, reason: str) -> None:
        if self._socket.application_state is WebSocketState.CONNECTED:
            with anyio.move_on_after(CLOSE_S, shield=True), contextlib.suppress(WebSocketDisconnect):
                await self._socket.close(code, reason)

    # --- the four tasks -------------------------------------------------------------------------

    async def _read(self) -> None:
        while (message := await self._socket.receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            self._meet_model()
            self._carry_out(self._session.frame(message["bytes"] if text is None else text))
            async with self._calls:  # wait while too many calls are under way
                pass
            await self._outbox.until_below(OUTBOX_BYTES)

    def _meet_model(self) -> None:
        service = self._state.service
        if service is not None and not self._session.is_ready:
            backend = service.backend
            self._session.model_ready(backend.model_name, backend.context_length, backend.temperature)

    async def _write(self) -> None:
        while True:
            frame = await self._outbox.head()
            with anyio.move_on_after(self._state.settings.send_timeout_s) as scope:
                await self._socket.send_text(frame.decode())
            if scope.cancelled_caught:
                raise _Stalled
            self._last_sent = self._state.clock()
            self._outbox.written()

    async def _beat(self) -> None:
        while True:
            quiet_s = self._state.clock() - self._last_sent
            left_s = self._state.settings.heartbeat_s - quiet_s
            if left_s > 0:
                await anyio.sleep(left_s)
            else:
                self._carry_out(self._session.heartbeat())
                await self._outbox.until_written(self._outbox.put_count)

    async def _listen(self, listen: Listen) -> None:
        response_id = listen.response_id
        try:
            async with self._calls:
                stream = await self._service().subscribe(
                    self.visitor.namespace, ResponseId(response_id), listen.after_seq
                )
            try:
                while self._hear(response_id, await stream.get()):
                    await self._outbox.until_written(self._outbox.put_count)
            finally:
                stream.close()
        except ChatdError as error:
            self._carry_out(self._session.listen_refused(response_id, error))

    # --- effects --------------------------------------------------------------------------------

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(event):
                    self._outbox.put(wire.encode(event))
                case Start():
                    self._tasks.start_soon(self._start, effect)
                case Listen():
                    self._tasks.start_soon(self._listen, effect)
                case Cancel(response_id):
                    self._tasks.start_soon(self._cancel, ResponseId(response_id))
                case Estimate(request):
                    self._tasks.start_soon(self._estimate, request)
                case Acknowledge(response_id, seq, tokens):
                    self._service().acknowledge(self.visitor.namespace, ResponseId(response_id), seq, tokens)
                case WarmUp(conversation_id):
                    if self._warming.take(self._state.clock()):
                        self._tasks.start_soon(self._warm, ConversationId(conversation_id))

    def _hear(self, response_id: str, event: StreamEvent[ResponseRecord]) -> bool:
        """Feed one event of a stream; False when this stream is over for the session."""
        effects = self._fed(response_id, event)
        self._carry_out(effects)
        return not isinstance(event, Ended) and not any(isinstance(effect, Listen) for effect in effects)

    def _fed(self, response_id: str, event: StreamEvent[ResponseRecord]) -> list[Effect]:
        session = self._session
        match event:
            case QueuedEvent(position):
                return session.status(wire.ResponseQueued(response_id, position))
            case RestoringEvent(done, total):
                return session.status(wire.ResponseRestoring(response_id, done, total))
            case PrefillEvent(total, gpu_hit, disk_hit, computed, done):
                return session.status(
                    wire.ResponsePrefill(response_id, total, gpu_hit, disk_hit, computed, done)
                )
            case Delta(from_seq, seq, text):
                return session.delta(wire.ResponseDelta(response_id, from_seq, seq, text))
            case Ended(record):
                return session.ended(ending_of(record))

    async def _start(self, start: Start) -> None:
        """Once begun, a creation is finished even if the client goes: the key will find it again."""
        async with self._calls:
            with anyio.CancelScope(shield=True):
                try:
                    service = self._state.ready_service()
                    command = command_of(start.request)
                    started = await service.create(self.visitor.namespace, command, self.visitor)
                except ChatdError as error:
                    self._carry_out(self._session.refused(start.ticket, error))
                else:
                    self._carry_out(
                        self._session.started(
                            start.ticket,
                            response_id=started.response_id,
                            conversation_id=started.conversation_id,
                            user_message_id=started.user_message_id,
                            message_id=started.message_id,
                            dropped_turns=started.dropped_turns,
                            miss=started.miss,
                        )
                    )

    async def _cancel(self, response_id: ResponseId) -> None:
        """Carried out even if the client goes."""
        async with self._calls:
            with anyio.CancelScope(shield=True):
                try:
                    await self._service().cancel(self.visitor.namespace, response_id)
                except ChatdError as error:
                    self._carry_out(self._session.cancel_refused(response_id, error))

    async def _estimate(self, request: wire.CacheEstimate) -> None:
        key = request.idempotency_key
        async with self._calls:
            try:
                service = self._state.ready_service()
                self._state.looks.take(self.visitor, self._state.clock())
                found = await service.estimate(self.visitor.namespace, command_of(request))
            except ChatdError as error:
                self._carry_out(self._session.estimate_refused(key, error))
            else:
                self._carry_out(self._session.estimated(estimated_of(found, key)))

    async def _warm(self, conversation_id: ConversationId) -> None:
        """Carried out even if the client goes: it may be back with a message in a moment."""
        async with self._calls:
            with anyio.CancelScope(shield=True):
                try:
                    self._state.looks.take(self.visitor, self._state.clock())
                    await self._service().cache.warm(self.visitor.namespace, conversation_id)
                except RateLimited:
                    pass  # it is a hint
                except ChatdError as error:
                    self._carry_out(self._session.warm_refused(conversation_id, error))

    def _service(self) -> Service:
        """For what may go on while the server drains."""
        return self._state.service or self._state.ready_service()
