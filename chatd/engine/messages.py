"""What crosses the seam between the event loop and the engine thread.

Frozen dataclasses of ints and strings only, so that the engine can become a process. The loop
sends `Submit` and `Abort`; the engine posts one `StepOutput` a step, in order.

For each rid the engine's updates come in this order: any number of `Queued`, then at most one
`Prefill`, any number of `Progress`, `Piece` and `Held`, and exactly one `Finished`; nothing after it.
A request that ends while it waits has a `Finished` and no `Prefill`.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from chatd.ids import Namespace, Rid


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request draws its tokens. Ranges are checked where the request enters the server.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 switch a filter off.
    Repetition penalty counts prompt and output, the other two output only. ``seed`` is always
    set: a request that named none got a random one.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Submit:
    """Generate after ``prompt_ids``. ``max_tokens`` is at least 1 and already resolved.

    ``stop_ids`` are the model's end-of-text ids and the request's own; with ``ignore_eos`` the
    former are left out by the sender.
    """

    rid: Rid
    namespace: Namespace
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Abort:
    """End this request now. An unknown or ended rid is no error."""

    rid: Rid


class FinishReason(StrEnum):
    END = "end"  # an end-of-text id or one of the request's stop ids
    STOP = "stop"  # a stop string
    LENGTH = "length"  # max_tokens or the context
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Queued:
    """``position`` 1 is next to be admitted."""

    rid: Rid
    position: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """The first chunk was scheduled: these are the prompt's billing buckets, for good."""

    rid: Rid
    prompt_tokens: int
    gpu_hit: int
    disk_hit: int
    computed: int


@dataclass(frozen=True, slots=True)
class Progress:
    """``done`` of the prompt's tokens have KV now."""

    rid: Rid
    done: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that became visible. ``seq`` counts 1, 2, 3 ... within its request.

    ``token_ids`` are the ids whose text is wholly visible with this piece (a token that is partly
    held back comes with a later piece). ``generated`` is the count of ids generated so far.
    """

    rid: Rid
    seq: int
    text: str
    token_ids: tuple[int, ...]
    generated: int


@dataclass(frozen=True, slots=True)
class Held:
    """Tokens were generated whose text is still held back (half a character, a possible stop)."""

    rid: Rid
    generated: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The one ending. ``generated`` is what the request is billed for.

    ``token_ids`` is the whole answer as history wants it: ids that decode to exactly the visible
    text, plus the end-of-text id if the model produced it. ``error_code`` and ``error`` are empty
    unless ``reason`` is FAILED.
    """

    rid: Rid
    reason: FinishReason
    generated: int
    token_ids: tuple[int, ...] = ()
    preemptions: int = 0
    recomputed: int = 0
    error_code: str = ""
    error: str = ""


Update = Queued | Prefill | Progress | Piece | Held | Finished


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """Totals since the engine started. The ledger is verified against them."""

    steps: int = 0
    submitted: int = 0
    finished: int = 0
    prompt_tokens: int = 0
    gpu_hit: int = 0
    disk_hit: int = 0
    computed: int = 0
    generated: int = 0
    preemptions: int = 0
    recomputed: int = 0
    evicted_pages: int = 0


@dataclass(frozen=True, slots=True)
class EngineState:
    """Levels at the end of a step. Pages are pages, not tokens."""

    running: int = 0
    waiting: int = 0
    free_pages: int = 0
    evictable_pages: int = 0
    total_pages: int = 0


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Everything one step has to say, posted to the loop at once."""

    updates: tuple[Update, ...]
    counters: EngineCounters = field(default_factory=EngineCounters)
    state: EngineState = field(default_factory=EngineState)
