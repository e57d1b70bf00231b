"""What one WebSocket may say and hear, as a state machine without sockets, clocks or tasks.

The law. For each response on this connection:

    response.create  -> error                                    (refused)
                     -> response.created, then listening         (accepted)
    response.subscribe -> error | listening from after_seq + 1
    listening        -> (queued | restoring)*, prefill*, deltas, one ending    (then closed again)

- Every accepted ``response.create`` is followed by exactly one of the four endings, unless the
  connection ends first. Nothing of that response follows its ending, until the client itself asks
  for it once more (the same idempotency key, or a subscribe).
- Deltas join: the first begins at ``after_seq + 1``, each next one where the last ended, and the
  ending comes only after the last piece. No piece is sent twice. A delta that would break this is
  not sent: the session listens anew from its own cursor, for the store has every piece.
- A response is listened to once per connection, however often its creation is repeated.
- ``response.ack`` has none. It counts for what this connection was sent, and for nothing else.
- ``cache.estimate`` has one answer, `cache.estimated` or an error; ``conversation.warm`` only an error.

Obligations of the caller. Feed everything in the order it happens; carry out the effects in the
order they come, `Send` before anything fed later. Answer each `Start` with `started` or
`refused`, each `Estimate` with `estimated` or `estimate_refused`, each `Listen` with
`listen_refused` or the stream's events, and stop the old stream of a response when a new
`Listen` for it comes.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from chatd.errors import ChatdError, Conflict, Draining, NotReady, Overloaded
from chatd.server import protocol as wire


@dataclass(frozen=True, slots=True)
class Send:
    event: wire.ServerEvent


@dataclass(frozen=True, slots=True)
class Start:
    """Create a response. ``ticket`` tells one request from another on this connection."""

    ticket: int
    request: wire.ResponseCreate


@dataclass(frozen=True, slots=True)
class Listen:
    """Feed the events of this response, pieces after ``after_seq`` only."""

    response_id: str
    after_seq: int


@dataclass(frozen=True, slots=True)
class Cancel:
    response_id: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """Say what this request would find. Its key tells it from others."""

    request: wire.CacheEstimate


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Bring a conversation's KV back from disk. May be left undone."""

    conversation_id: str


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The client has the text up to piece ``seq``; all ``tokens`` of a response that has ended."""

    response_id: str
    seq: int
    tokens: int | None = None


Effect = Send | Start | Listen | Cancel | Estimate | WarmUp | Acknowledge

MAX_ENDED = 64
"""Of how many responses whose ending was sent last an acknowledgement is still taken."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What `session.created` says about this connection and server."""

    session_id: str
    version: str
    heartbeat_s: float
    currency: str


@dataclass(slots=True)
class _Listening:
    cursor: int  # the last seq that was sent, or that the client said it has
    created: bool  # by an accepted response.create, so an ending is owed
    conversation_id: str | None = None  # not known of what was subscribed to
    resumed_at: int | None = None  # the cursor when we last had to listen anew


class Session:
    """One connection. Every method returns the effects to carry out, in order."""

    def __init__(self, identity: Identity, *, max_responses: int) -> None:
        self._identity = identity
        self._max_responses = max_responses
        self._model: tuple[str, int, float | None] | None = None
        self._draining = False
        self._tickets = 0
        self._pending: dict[int, wire.ResponseCreate] = {}
        self._listening: dict[str, _Listening] = {}
        self._ended: dict[str, wire.AnyEnding] = {}  # of what was sent to its end, the last ones
        self._updates: dict[str, wire.ConversationUpdated] = {}  # wait for an ending to go first

    @property
    def busy(self) -> bool:
        """Something asked for has not been answered to its end."""
        return bool(self._pending or self._listening)

    @property
    def is_ready(self) -> bool:
        """`model_ready` was fed."""
        return self._model is not None

    # --- from the server ------------------------------------------------------------------------

    def model_ready(self, name: str, context_length: int, temperature: float | None = None) -> None:
        """From now on responses may be asked for."""
        self._model = (name, context_length, temperature)

    def draining(self, deadline_s: float) -> list[Effect]:
        """The server shuts down: say so once, and refuse what is new."""
        if self._draining:
            return []
        self._draining = True
        return [Send(wire.ServerDraining(deadline_s))]

    def heartbeat(self) -> list[Effect]:
        """Nothing was sent for a heartbeat's time, whatever the responses are doing."""
        return [Send(wire.Pong())]

    def conversation(self, update: wire.ConversationUpdated) -> list[Effect]:
        """A conversation changed. Said after the ending of a response in it that is being heard."""
        waiting = self._updates.get(update.conversation_id)
        if waiting is not None and waiting.system_changed:
            update = replace(update, system_changed=True)
        self._updates[update.conversation_id] = update
        return self._release()

    def _release(self) -> list[Effect]:
        held = {listening.conversation_id for listening in self._listening.values()}
        free = [] if None in held else [id for id in self._updates if id not in held]
        return [Send(self._updates.pop(id)) for id in free]

    # --- from the client ------------------------------------------------------------------------

    def frame(self, frame: str | bytes) -> list[Effect]:
        """One frame as it came: text, or ``bytes`` if it was binary."""
        event = wire.decode_client(frame)
        match event:
            case wire.Error():
                return [Send(event)]
            case wire.SessionHello():
                return [Send(self._created())]
            case wire.Ping():
                return [Send(wire.Pong())]
            case wire.ResponseCreate():
                return self._create(event)
            case wire.ResponseSubscribe():
                return self._subscribe(event)
            case wire.ResponseCancel():
                return self._cancel(event)
            case wire.ResponseAck():
                return self._acknowledge(event)
            case wire.CacheEstimate():
                return self._estimate(event)
            case wire.ConversationWarm():
                return self._warm(event)

    def _created(self) -> wire.SessionCreated:
        name, context_length, temperature = self._model or (None, None, None)
        return wire.SessionCreated(
            session_id=self._identity.session_id,
            model=name,
            context_length=context_length,
            version=self._identity.version,
            heartbeat_s=self._identity.heartbeat_s,
            currency=self._identity.currency,
            temperature=temperature,
        )

    def _create(self, request: wire.ResponseCreate) -> list[Effect]:
        if (why := self._why_not(is_new=True)) is not None:
            return [Send(wire.error_event(why, idempotency_key=request.idempotency_key))]
        self._tickets += 1
        self._pending[self._tickets] = request
        return [Start(self._tickets, request)]

    def _subscribe(self, request: wire.ResponseSubscribe) -> list[Effect]:
        why = self._why_not(is_new=False)
        if request.response_id in self._listening:
            why = Conflict("this connection is hearing that response already")
        if why is not None:
            return [Send(wire.error_event(why, response_id=request.response_id))]
        self._listening[request.response_id] = _Listening(request.after_seq, created=False)
        return [Listen(request.response_id, request.after_seq)]

    def _cancel(self, request: wire.ResponseCancel) -> list[Effect]:
        if self._model is None:
            return [Send(wire.error_event(_loading(), response_id=request.response_id))]
        return [Cancel(request.response_id)]

    def _acknowledge(self, ack: wire.ResponseAck) -> list[Effect]:
        """Clients say more than they were sent only by mistake. Part of what has ended is let go: the whole
        comes as well, unless the client is gone."""
        if (listening := self._listening.get(ack.response_id)) is not None:
            return [Acknowledge(ack.response_id, min(ack.seq, listening.cursor))]
        ending = self._ended.get(ack.response_id)
        if ending is None or ack.seq < ending.last_seq:
            return []
        return [Acknowledge(ack.response_id, ending.last_seq, ending.usage.output_tokens)]

    def _estimate(self, request: wire.CacheEstimate) -> list[Effect]:
        if (why := self._why_not(is_new=True)) is not None:
            return [Send(wire.error_event(why, idempotency_key=request.idempotency_key))]
        return [Estimate(request)]

    def _warm(self, request: wire.ConversationWarm) -> list[Effect]:
        """Before the model is there, or while the server stops, there is nothing to warm: no error either."""
        return [] if self._model is None or self._draining else [WarmUp(request.conversation_id)]

    def _why_not(self, *, is_new: bool) -> ChatdError | None:
        if self._draining and is_new:
            return Draining("the server is shutting down; connect again in a moment")
        if self._model is None:
            return _loading()
        if len(self._pending) + len(self._listening) >= self._max_responses:
            return Overloaded(f"this connection has {self._max_responses} responses open; let one end first")
        return None

    # --- answers to effects ---------------------------------------------------------------------

    def started(
        self,
        ticket: int,
        *,
        response_id: str,
        conversation_id: str,
        user_message_id: str | None,
        message_id: str,
        dropped_turns: int = 0,
        miss: str = "",
    ) -> list[Effect]:
        """`Start` succeeded (or named a response that was there before)."""
        key = self._pending.pop(ticket).idempotency_key
        created = wire.ResponseCreated(
            response_id, key, conversation_id, user_message_id, message_id, dropped_turns, miss
        )
        if (listening := self._listening.get(response_id)) is not None:
            listening.created, listening.conversation_id = True, conversation_id
            return [Send(created)]
        self._listening[response_id] = _Listening(0, created=True, conversation_id=conversation_id)
        return [Send(created), Listen(response_id, 0)]

    def refused(self, ticket: int, error: ChatdError) -> list[Effect]:
        """`Start` failed: nothing was created."""
        key = self._pending.pop(ticket).idempotency_key
        return [Send(wire.error_event(error, idempotency_key=key))]

    def listen_refused(self, response_id: str, error: ChatdError) -> list[Effect]:
        """`Listen` failed. Raises ``error`` if an ending is owed: then only the connection can end."""
        if self._listening.pop(response_id).created:
            raise error
        return [Send(wire.error_event(error, response_id=response_id)), *self._release()]

    def cancel_refused(self, response_id: str, error: ChatdError) -> list[Effect]:
        """`Cancel` failed. Where it succeeds there is nothing to feed: the stream ends."""
        return [Send(wire.error_event(error, response_id=response_id))]

    def estimated(self, event: wire.CacheEstimated) -> list[Effect]:
        """`Estimate` succeeded."""
        return [Send(event)]

    def estimate_refused(self, idempotency_key: str, error: ChatdError) -> list[Effect]:
        """`Estimate` failed."""
        return [Send(wire.error_event(error, idempotency_key=idempotency_key))]

    def warm_refused(self, conversation_id: str, error: ChatdError) -> list[Effect]:
        """`WarmUp` failed because there is no such conversation."""
        return [Send(wire.error_event(error, conversation_id=conversation_id))]

    # --- the stream of one response -------------------------------------------------------------

    def status(
        self, event: wire.ResponseQueued | wire.ResponseRestoring | wire.ResponsePrefill
    ) -> list[Effect]:
        """A place in the queue, or progress of the prompt."""
        return [Send(event)] if event.response_id in self._listening else []

    def delta(self, event: wire.ResponseDelta) -> list[Effect]:
        """Text. What was sent before is dropped; what does not join makes the session listen anew."""
        listening = self._listening.get(event.response_id)
        if listening is None or event.seq <= listening.cursor:
            return []
        if event.from_seq != listening.cursor + 1:
            return self._listen_anew(event.response_id, listening)
        listening.cursor = event.seq
        return [Send(event)]

    def ended(self, ending: wire.AnyEnding) -> list[Effect]:
        """The ending: sent if all text went before it."""
        listening = self._listening.get(ending.response_id)
        if listening is None:
            return []
        if listening.cursor < ending.last_seq:
            return self._listen_anew(ending.response_id, listening)
        del self._listening[ending.response_id]
        self._ended[ending.response_id] = ending
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        return [Send(ending), *self._release()]

    def _listen_anew(self, response_id: str, listening: _Listening) -> list[Effect]:
        if listening.resumed_at == listening.cursor:
            raise RuntimeError(f"the stream of {response_id} skips piece {listening.cursor + 1}")
        listening.resumed_at = listening.cursor
        return [Listen(response_id, listening.cursor)]


def _loading() -> NotReady:
    return NotReady("the model is still loading; /readyz says how far it is")
