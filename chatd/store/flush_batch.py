"""What one flush tick stores, of all streams. Times, tokens and positions as in `chatd.store.records`."""

from dataclasses import dataclass, field

from chatd.ids import ResponseId
from chatd.store.records import ResponseStatus, RunCounters, RunId, Timings


@dataclass(frozen=True, slots=True)
class PieceRow:
    """Pieces ``from_seq..seq`` of one response, in one row.

    ``piece_ends`` has one entry a piece: where it ends in ``text``, ascending, the last one
    ``len(text)``; so any seq can be cut out exactly. ``token_ids`` are all ids of these pieces.
    """

    response_id: ResponseId
    from_seq: int
    seq: int
    text: str
    token_ids: tuple[int, ...]
    piece_ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AdmittedRow:
    """The first chunk of a prompt was scheduled: its billing buckets, for good, and what explains them."""

    response_id: ResponseId
    prompt_tokens: int
    gpu_hit: int
    disk_hit: int
    computed: int
    at: int
    history_len: int = 0
    cause: str = ""
    xray_json: str = ""


@dataclass(frozen=True, slots=True)
class RunningRow:
    """``generated`` tokens so far, held-back ones included."""

    response_id: ResponseId
    generated: int


@dataclass(frozen=True, slots=True)
class DeliveredRow:
    """``count`` tokens so far: went out to some reader, or a reader said that it has them."""

    response_id: ResponseId
    count: int


@dataclass(frozen=True, slots=True)
class EndedRow:
    """The one ending. ``message_ids`` are the ids of what this response wrote: they decode to
    exactly its pieces' text, plus an end-of-text id if one was generated; None if unknown. ``kv_len``
    tokens at the start of prompt and answer have KV.
    """

    response_id: ResponseId
    status: ResponseStatus
    finish_reason: str
    generated: int
    message_ids: tuple[int, ...] | None
    at: int
    error_code: str = ""
    error: str = ""
    preemptions: int = 0
    recomputed: int = 0
    timings: Timings = field(default_factory=Timings)
    kv_len: int = 0


@dataclass(frozen=True, slots=True)
class FlushBatch:
    """All that happened in all streams since the last flush, stored in one transaction.

    ``delivered`` was sent, ``acknowledged`` arrived as far as a reader has said; both are kept beside the
    count of generated tokens, which alone is billed.

    ``counters`` must cover exactly what the rows stored so far and these rows say: the engine's
    totals of the last step whose updates are in here. A response may be in several lists; they
    apply in the order of the fields.
    """

    run_id: RunId
    counters: RunCounters
    admitted: tuple[AdmittedRow, ...] = ()
    pieces: tuple[PieceRow, ...] = ()
    running: tuple[RunningRow, ...] = ()
    delivered: tuple[DeliveredRow, ...] = ()
    ended: tuple[EndedRow, ...] = ()
    acknowledged: tuple[DeliveredRow, ...] = ()
