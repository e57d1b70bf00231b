"""Hub: all running responses on the loop's side, and who reads them.

Laws:

- A response is here from before its ledger row is opened until its ending was published, so that whoever
  learns its id finds it either here or ended in the store.
- A response that nobody reads is ended ``grace_s`` after its last reader left. It is never ended because
  a reader is slow.
- Readers come and go in any number; each has a stream of its own and none waits for another.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence

from chatd.engine.messages import CacheAnswer, EngineState, FinishReason, StepOutput, Update
from chatd.engine.stream import Delta, Ended
from chatd.errors import ChatdError, InvalidParameter, NotFound
from chatd.ids import ConversationId, Namespace, ResponseId, Rid
from chatd.server.engine_calls import EngineCalls
from chatd.server.flush import Flusher
from chatd.server.live import LiveResponse, ResponseStream
from chatd.store.records import ResponseRecord, StoredPiece
from chatd.store.store import Store

ATTACH_S = 5.0
"""The least time a response waits for its first reader."""
READ_CHARS = 64 * 1024
"""Text read back from the store at once, for a reader that is behind."""

Taken = Delta | Ended[ResponseRecord]


class Hub:
    """``abort`` ends a request in the engine; it may be called for any rid at any time. What the engine says
    that is about no response goes to ``calls``."""

    def __init__(
        self, store: Store, flusher: Flusher, calls: EngineCalls, abort: Callable[[Rid], None]
    ) -> None:
        self.state = EngineState()
        self._calls = calls
        self._store = store
        self._flusher = flusher
        self._abort = abort
        self._live: dict[ResponseId, LiveResponse] = {}
        self._reapers: dict[ResponseId, asyncio.TimerHandle] = {}
        self._waiters: dict[ResponseId, list[asyncio.Event]] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def open_count(self) -> int:
        """Responses that have not ended yet."""
        return len(self._live)

    def count_of(self, namespace: Namespace) -> int:
        """Responses of that account that have not ended yet."""
        return sum(live.namespace == namespace for live in self._live.values())

    def find(self, namespace: Namespace, response_id: ResponseId) -> LiveResponse | None:
        """The running response of that account, if there is one."""
        live = self._live.get(response_id)
        return live if live is not None and live.namespace == namespace else None

    def add(self, live: LiveResponse) -> None:
        self._live[live.id] = live
        self._idle.clear()

    def discard(self, live: LiveResponse) -> None:
        """It has ended, or never began. Idempotent."""
        self._live.pop(live.id, None)
        self._disarm(live)
        for waiter in self._waiters.pop(live.id, ()):
            waiter.set()
        if not self._live:
            self._idle.set()

    def on_step(self, out: StepOutput) -> None:
        """Take in one step's updates. Cheap: a dict look-up and an append for each."""
        self.state, self._flusher.counters = out.state, out.counters
        for update in out.updates:
            live = self._live.get(ResponseId(update.rid))
            if live is not None:
                live.apply(update)
                self._flusher.changed(live)
            else:
                self._take(update)

    def _take(self, update: Update) -> None:
        if isinstance(update, CacheAnswer):
            self._calls.take(update)

    def cancel(self, live: LiveResponse) -> None:
        """Ask the engine to end it. Its ending comes as any other does."""
        live.cancelled = True
        self._abort(Rid(live.id))

    def attach(self, live: LiveResponse, after_seq: int) -> ResponseStream:
        """A stream of a running response from ``after_seq`` on."""
        stream = self._stream(
            live.namespace,
            live.id,
            after_seq,
            known_seq=live.published_seq,
            on_taken=lambda event: self._taken(live, event),
            on_close=lambda: self._detach(live, stream),
        )
        live.attach(stream)
        self._disarm(live)
        return stream

    def replay(self, record: ResponseRecord, after_seq: int) -> ResponseStream:
        """A stream of a response that has ended: the rest of its text and its ending, from the store."""

        def taken(event: Taken) -> None:
            if isinstance(event, Ended) and record.delivered < record.output_tokens:
                self._flusher.delivered(record.id, record.output_tokens)

        stream = self._stream(
            record.namespace, record.id, after_seq, known_seq=record.last_seq, on_taken=taken
        )
        stream.put(Ended(record, record.last_seq))
        return stream

    def acknowledged(self, live: LiveResponse, seq: int) -> None:
        """A reader has what was published up to piece ``seq``."""
        count = live.tokens_at(min(seq, live.published_seq))
        if count > live.acknowledged:
            live.acknowledged = count
            self._flusher.acknowledged(live.id, count)

    def await_reader(self, live: LiveResponse) -> None:
        """It just began: give its first reader time to come."""
        if not live.streams:
            self._arm(live, max(live.grace_s, ATTACH_S))

    def desert(self, live: LiveResponse) -> None:
        """Whoever started it is gone already."""
        if not live.streams and live.id in self._live:
            self._arm(live, live.grace_s)

    def abandon(self, reason: FinishReason, error: ChatdError | None = None) -> None:
        """The engine does not answer any more: end what is open by ourselves."""
        for live in self.open_responses():
            live.abandon(reason, error)
            if live.urgent:
                self._flusher.changed(live)

    def open_in(self, namespace: Namespace, conversation_id: ConversationId) -> list[LiveResponse]:
        """Those that write in that conversation."""
        mine = (live for live in self._live.values() if live.namespace == namespace)
        return [live for live in mine if live.written_in == conversation_id]

    async def gone(self, live: LiveResponse) -> None:
        """Wait until its ending was published. Cancelled, it leaves nothing behind but a waiter's flag."""
        if live.id in self._live:
            ended = asyncio.Event()
            self._waiters.setdefault(live.id, []).append(ended)
            await ended.wait()

    async def idle(self) -> None:
        """Wait until nothing is open. Cancelled, it leaves nothing behind."""
        await self._idle.wait()

    def open_responses(self) -> list[LiveResponse]:
        return list(self._live.values())

    def _stream(
        self,
        namespace: Namespace,
        response_id: ResponseId,
        after_seq: int,
        *,
        known_seq: int,
        on_taken: Callable[[Taken], None],
        on_close: Callable[[], None] | None = None,
    ) -> ResponseStream:
        if after_seq > known_seq:
            raise InvalidParameter(
                f"after_seq is {after_seq}, but only {known_seq} pieces were sent.", param="after_seq"
            )

        async def read_after(seq: int) -> Delta:
            return await self._read_after(response_id, seq)

        return ResponseStream(
            read_after, after_seq=after_seq, known_seq=known_seq, on_taken=on_taken, on_close=on_close
        )

    async def _read_after(self, response_id: ResponseId, seq: int) -> Delta:
        rows = await self._store.pieces_after(response_id, seq)
        if not rows:
            raise NotFound("This response was deleted.")
        return first_stretch(rows)

    def _taken(self, live: LiveResponse, event: Taken) -> None:
        count = live.tokens_at(event.seq) if isinstance(event, Delta) else event.record.output_tokens
        if count > live.delivered:
            live.delivered = count
            self._flusher.delivered(live.id, count)

    def _detach(self, live: LiveResponse, stream: ResponseStream) -> None:
        live.streams.discard(stream)
        if not live.streams and live.id in self._live:
            self._arm(live, live.grace_s)

    def _arm(self, live: LiveResponse, delay_s: float) -> None:
        self._disarm(live)
        if delay_s <= 0:
            self.cancel(live)
        else:
            loop = asyncio.get_running_loop()
            self._reapers[live.id] = loop.call_later(delay_s, self.cancel, live)

    def _disarm(self, live: LiveResponse) -> None:
        reaper = self._reapers.pop(live.id, None)
        if reaper is not None:
            reaper.cancel()


def first_stretch(rows: Sequence[StoredPiece]) -> Delta:
    """The text of ``rows`` up to the piece that makes it `READ_CHARS`. A row may hold far more: it is all
    that one flush brought, and a flush may have had to wait.
    """
    parts: list[str] = []
    last_seq, room = 0, READ_CHARS
    for row in rows:
        if len(row.text) > room:
            count = bisect_left(row.piece_ends, room) + 1
            parts.append(row.text[: row.piece_ends[count - 1]])
            last_seq = row.from_seq + count - 1
            break
        parts.append(row.text)
        last_seq, room = row.seq, room - len(row.text)
    return Delta(rows[0].from_seq, last_seq, "".join(parts))
