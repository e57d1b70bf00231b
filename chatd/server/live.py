"""LiveResponse: what the loop knows about one running response. Pure bookkeeping, no awaiting.

Engine updates come in through `apply`; once a flush tick `take` hands over what is not stored yet, as
rows for the store and as events for the readers. Rows say what the engine's counters of the same step say:
`take` leaves nothing behind that an update brought.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile

from chatd.engine.messages import (
    Finished,
    FinishReason,
    Held,
    Piece,
    Prefill,
    Probed,
    Progress,
    Queued,
    Restoring,
    Update,
)
from chatd.engine.stream import (
    Delta,
    Ended,
    PrefillEvent,
    QueuedEvent,
    RestoringEvent,
    StreamEvent,
    TokenStream,
)
from chatd.errors import ChatdError
from chatd.ids import ConversationId, Namespace, ResponseId, Rid
from chatd.server.xray import Prediction, PromptFacts, explain, prediction_of, to_json
from chatd.store.flush_batch import AdmittedRow, EndedRow, PieceRow, RunningRow
from chatd.store.records import ResponseRecord, ResponseStatus, Timings, micros

ResponseStream = TokenStream[ResponseRecord]

STATUS_OF = {
    FinishReason.END: ResponseStatus.COMPLETED,
    FinishReason.STOP: ResponseStatus.COMPLETED,
    FinishReason.LENGTH: ResponseStatus.INCOMPLETE,
    FinishReason.CANCELLED: ResponseStatus.CANCELLED,
    FinishReason.FAILED: ResponseStatus.FAILED,
}


@dataclass(slots=True)
class News:
    """One response's share of a flush tick. ``delta`` is the text of ``pieces``."""

    live: "LiveResponse"
    waiting: QueuedEvent | RestoringEvent | None = None
    admitted: AdmittedRow | None = None
    prefill: PrefillEvent | None = None
    pieces: PieceRow | None = None
    running: RunningRow | None = None
    ended: EndedRow | None = None

    @property
    def delta(self) -> Delta | None:
        rows = self.pieces
        return Delta(rows.from_seq, rows.seq, rows.text) if rows is not None else None


class _Watch:
    """When things happened to one response, on a clock that only goes forward.

    ``on_gap`` hears how many seconds lay between two tokens.
    """

    def __init__(self, now: Callable[[], float], on_gap: Callable[[float], None]) -> None:
        self._now = now
        self._on_gap = on_gap
        self._opened = now()
        self._queue_s: float | None = None
        self._first: float | None = None
        self._first_generated = 0
        self._last = 0.0

    def admitted(self, queue_s: float) -> None:
        self._queue_s = queue_s

    def token(self, generated: int) -> None:
        now = self._now()
        if self._first is None:
            self._first, self._first_generated = now, generated
        else:
            self._on_gap(now - self._last)
        self._last = now

    def ended(self, generated: int) -> Timings:
        """TPOT is taken over the tokens after the first that was seen."""
        now, later = self._now(), generated - self._first_generated
        tpot_ms = (now - self._first) * 1000 / later if self._first is not None and later > 0 else None
        return Timings(
            queue_ms=None if self._queue_s is None else 1000 * self._queue_s,
            ttft_ms=self._since_opened(self._first),
            tpot_ms=tpot_ms,
            tokens_per_s=1000 / tpot_ms if tpot_ms else None,
            total_ms=self._since_opened(now),
        )

    def _since_opened(self, at: float | None) -> float | None:
        return (at - self._opened) * 1000 if at is not None else None


class LiveResponse:
    """From before its ledger row is opened to the publishing of its ending.

    ``grace_s`` is how long it goes on with nobody reading. ``clock`` gives Unix seconds, ``monotonic``
    seconds for durations. ``facts`` is what is known of its prompt. ``published_seq`` is the last piece
    that is stored and was shown. ``request_id`` names the request that asked for it, in logs.
    """

    def __init__(
        self,
        response_id: ResponseId,
        namespace: Namespace,
        *,
        grace_s: float,
        facts: PromptFacts,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        on_gap: Callable[[float], None],
        request_id: str = "",
    ) -> None:
        self.id = response_id
        self.namespace = namespace
        self.request_id = request_id
        self.grace_s = grace_s
        self.begun = False
        """Its row is open in the store."""
        self.key_id = ""
        """The key that it was asked with, if with any."""
        self.written_in: ConversationId | None = None
        """Set once the row is opened."""
        self.conversation_id: ConversationId | None = None
        """The same, unless it came over ``/v1``: then no listener is told of it."""
        self.streams: set[ResponseStream] = set()
        self.published_seq = 0
        self.delivered = 0
        self.acknowledged = 0
        self.admitted = False
        self.cancelled = False
        """A cancel was asked for (it may come before the engine has heard of the request)."""
        self._clock = clock
        self._watch = _Watch(monotonic, on_gap)
        self._fresh = News(self)
        self._pieces: list[Piece] = []
        self._over = False
        self._facts = facts
        self._predicted: Prediction | None = None
        self._generated = 0
        self._stored_generated = 0
        self._token_counts: list[int] = []
        self._visible_ids: list[int] = []
        self._prefill: PrefillEvent | None = None
        self._shown: QueuedEvent | RestoringEvent | PrefillEvent | None = None

    @property
    def urgent(self) -> bool:
        """The first piece, or the ending, is waiting to be shown."""
        return self._fresh.ended is not None or (bool(self._pieces) and self._pieces[0].seq == 1)

    @property
    def unstored_tokens(self) -> int:
        return self._generated - self._stored_generated

    def apply(self, update: Update) -> None:
        """Take in one engine update, in the order the engine made them."""
        if self._over:
            return
        match update:
            case Piece():
                self._pieces.append(update)
                self._token_counts.append(update.generated)
                self._visible_ids += update.token_ids
                self._token(update.generated)
            case Held():
                self._token(update.generated)
            case Progress():
                if self._prefill is not None:
                    self._fresh.prefill = self._prefill = replace(self._prefill, done=update.done)
            case Probed():
                self._predicted = prediction_of(update)
            case Queued():
                self._fresh.waiting = QueuedEvent(update.position)
            case Restoring():
                self._fresh.waiting = RestoringEvent(update.done, update.total)
            case Prefill():
                self._admit(update)
            case Finished():
                self._finish(update)

    def abandon(self, reason: FinishReason, error: ChatdError | None = None) -> None:
        """End it without the engine, with the tokens that were heard of, unless it has ended."""
        if self.begun and not self._over:
            code, message = (error.code, error.message) if error is not None else ("", "")
            ending = Finished(Rid(self.id), reason, self._generated, error_code=code, error=message)
            self._finish(ending, ids_known=False)

    def take(self) -> News:
        """What came since the last call. The caller stores it, then gives it to `publish`."""
        news, self._fresh = self._fresh, News(self)
        if self._pieces:
            news.pieces = _row(self.id, self._pieces)
            self._pieces = []
        if self._generated > self._stored_generated and news.ended is None:
            news.running = RunningRow(self.id, self._generated)
        self._stored_generated = self._generated
        return news

    def publish(self, news: News) -> None:
        """Show the readers what is stored now, all but the ending."""
        if (status := news.prefill or news.waiting) is not None:
            self._shown = status
            self._put(status)
        if (delta := news.delta) is not None:
            self.published_seq = delta.seq
            self._put(delta)

    def publish_ending(self, record: ResponseRecord) -> None:
        """Show the readers the end. Each closes its stream when it has read that far."""
        self._put(Ended(record, record.last_seq))

    def attach(self, stream: ResponseStream) -> None:
        """One more reader, told at once what the others know."""
        self.streams.add(stream)
        if self._shown is not None:
            stream.put(self._shown)

    def tokens_at(self, seq: int) -> int:
        """Tokens generated by the time piece ``seq`` was made."""
        return self._token_counts[seq - 1] if seq else 0

    def _put(self, event: StreamEvent[ResponseRecord]) -> None:
        for stream in self.streams:
            stream.put(event)

    def _token(self, generated: int) -> None:
        self._generated = generated
        self._watch.token(generated)
        if self._prefill is not None and self._prefill.done < self._prefill.total:
            self._fresh.prefill = self._prefill = replace(self._prefill, done=self._prefill.total)

    def _admit(self, update: Prefill) -> None:
        self.admitted = True
        self._watch.admitted(update.queue_s)
        buckets = (update.prompt_tokens, update.gpu_hit, update.disk_hit, update.computed)
        xray = explain(self._facts, update, self._predicted)
        self._fresh.admitted = AdmittedRow(
            self.id,
            *buckets,
            at=micros(self._clock()),
            history_len=xray.history_len,
            cause=xray.cause,
            xray_json=to_json(xray),
        )
        self._fresh.prefill = self._prefill = PrefillEvent(
            *buckets, done=update.prompt_tokens - update.computed
        )

    def _finish(self, update: Finished, *, ids_known: bool = True) -> None:
        self._over = True
        self._generated = update.generated
        self._fresh.ended = EndedRow(
            response_id=self.id,
            status=STATUS_OF[update.reason],
            finish_reason=update.reason.value,
            generated=update.generated,
            message_ids=update.token_ids if ids_known else None,
            at=micros(self._clock()),
            error_code=update.error_code,
            error=update.error,
            preemptions=update.preemptions,
            recomputed=update.recomputed,
            timings=self._watch.ended(update.generated),
            kv_len=self._kv_len(update),
        )

    def _kv_len(self, ending: Finished) -> int:
        """How far prompt and answer, by the ids that history keeps, have KV now.

        The last sampled token has none. An ending that cut inside a token re-encoded what was left of it:
        those ids never went through the model. Of a failed request nothing is kept.
        """
        if self._prefill is None or ending.reason is FinishReason.FAILED:
            return 0
        if not ending.generated:
            return self._prefill.done
        same = sum(1 for _ in takewhile(_are_equal, zip(ending.token_ids, self._visible_ids, strict=False)))
        return self._prefill.total + min(same, ending.generated - 1)


def _are_equal(pair: tuple[int, int]) -> bool:
    return pair[0] == pair[1]


def _row(response_id: ResponseId, pieces: list[Piece]) -> PieceRow:
    """Pieces in order, as one row of the store."""
    return PieceRow(
        response_id=response_id,
        from_seq=pieces[0].seq,
        seq=pieces[-1].seq,
        text="".join(piece.text for piece in pieces),
        token_ids=tuple(token_id for piece in pieces for token_id in piece.token_ids),
        piece_ends=tuple(accumulate(len(piece.text) for piece in pieces)),
    )
