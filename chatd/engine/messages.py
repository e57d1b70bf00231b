"""What crosses the seam between the event loop and the engine thread.

Frozen dataclasses of ints and strings only, so that the engine can become a process. The loop
sends `Submit`, `Abort` and the cache's commands; the engine posts one `StepOutput` a step, in order.

For each rid the engine's updates come in this order: any number of `Queued` and `Restoring`, then at most one
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

    @property
    def looks_back(self) -> bool:
        """The next id depends on the earlier ones not only through the model."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Submit:
    """Generate after ``prompt_ids``. ``max_tokens`` is at least 1 and already resolved.

    ``stop_ids`` are the model's end-of-text ids and the request's own; with ``ignore_eos`` the
    former are left out by the sender. Owners take turns; "" is the namespace as a whole.
    """

    rid: Rid
    namespace: Namespace
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Abort:
    """End this request now. An unknown or ended rid is no error."""

    rid: Rid


@dataclass(frozen=True, slots=True)
class Warm:
    """Bring what the disk has of ``prompt_ids`` back into pages, if that costs nobody anything.

    Nothing is answered: it is a hint, and may be dropped.
    """

    namespace: Namespace
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """What would become of this prompt now? Answered by one `Probed`; nothing is changed or generated."""

    rid: Rid
    namespace: Namespace
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove the KV of ``paths`` (token ids from the root, of a deleted conversation) from every tier.

    What another path needs too stays. Answered by `CacheDone` with the tokens that went from memory and
    the blocks that went from disk.
    """

    rid: Rid
    namespace: Namespace
    paths: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class PinPrefix:
    """Keep the whole blocks of this prompt prefix in memory and on disk until `UnpinPrefix`.

    KV that is not there yet is pinned when it is computed. Answered by `CacheDone`.
    """

    rid: Rid
    name: str
    namespace: Namespace
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UnpinPrefix:
    rid: Rid
    name: str


@dataclass(frozen=True, slots=True)
class ClearCache:
    """Drop all KV that no running request uses: of one namespace, or of all. Answered by `CacheDone`."""

    rid: Rid
    namespace: Namespace | None = None
    disk: bool = True


@dataclass(frozen=True, slots=True)
class ListCache:
    """Answered by `CacheListing`: the ``limit`` most recently used paths in memory."""

    rid: Rid
    limit: int = 100


@dataclass(frozen=True, slots=True)
class CountPinned:
    """Answered by `PinnedKv`: what pinned prefixes hold in memory now."""

    rid: Rid


CacheCommand = Warm | Probe | Forget | PinPrefix | UnpinPrefix | ClearCache | ListCache | CountPinned


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


class TierOutcome(StrEnum):
    """Why no more of a prompt came from disk than did."""

    OFF = "off"  # there is no disk tier
    NOTHING = "nothing"  # the disk had nothing beyond what memory had
    LOADED = "loaded"  # all whole blocks it had came from there
    CHEAPER = "cheaper"  # computing them was estimated to be faster than loading them
    DAMAGED = "damaged"  # a record did not hold what it should: the rest was computed
    FAILED = "failed"  # a read failed for another reason, such as EIO
    NO_PAGES = "no_pages"  # no pages could be had for more


@dataclass(frozen=True, slots=True)
class TierNote:
    """What the disk tier had for one prompt and what was made of it.

    ``found`` tokens it had beyond those in memory. ``load_ms`` and ``compute_ms`` are what getting them was
    estimated to take either way (0 where nothing was found), ``restore_ms`` what loading really took.
    ``elsewhere`` tokens would have been found under another namespace:
    for the operator's eyes only, a client must never learn it.
    """

    outcome: TierOutcome = TierOutcome.OFF
    found: int = 0
    load_ms: float = 0.0
    compute_ms: float = 0.0
    restore_ms: float = 0.0
    elsewhere: int = 0


@dataclass(frozen=True, slots=True)
class Prefill:
    """The first chunk was scheduled: these are the prompt's billing buckets, for good.

    The first computed token is at position ``gpu_hit + disk_hit``. ``queue_s`` went by from when the request
    was handed in until it first left the queue, to run or to load from disk.
    """

    rid: Rid
    prompt_tokens: int
    gpu_hit: int
    disk_hit: int
    computed: int
    tier: TierNote = TierNote()
    queue_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Restoring:
    """``done`` of ``total`` tokens have come back from disk; they are among the later ``disk_hit``."""

    rid: Rid
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Probed:
    """The answer to `Probe`. Seconds are estimates; their sum is the expected TTFT."""

    rid: Rid
    prompt_tokens: int
    gpu_hit: int
    disk_hit: int
    computed: int
    queue_s: float
    restore_s: float
    compute_s: float
    tier: TierNote


@dataclass(frozen=True, slots=True)
class CacheDone:
    """A cache command was carried out; ``error`` is empty unless it could not be."""

    rid: Rid
    tokens: int = 0
    blocks: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class CachedPath:
    """One stretch of the tree. ``parent`` indexes the listing (-1: hangs at the root)."""

    namespace: Namespace
    parent: int
    start: int
    tokens: int
    pages: int
    locks: int
    stored: int
    head_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CacheListing:
    """Parents come before their children. ``stored`` counts the tokens that are on disk too."""

    rid: Rid
    paths: tuple[CachedPath, ...]


@dataclass(frozen=True, slots=True)
class PinnedKv:
    """Pages that pinned prefixes hold, by the namespace they belong to. A page that many hold counts once."""

    rid: Rid
    pages: tuple[tuple[Namespace, int], ...]


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


CacheAnswer = Probed | CacheDone | CacheListing | PinnedKv
Update = Queued | Restoring | Prefill | Progress | Piece | Held | Finished | CacheAnswer


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
    disk_asked: int = 0
    """Prompt tokens that memory did not have and the disk was asked for."""
    spilled_blocks: int = 0
    spilled_bytes: int = 0
    spill_failures: int = 0
    restored_blocks: int = 0
    restored_bytes: int = 0
    restore_failures: int = 0
    damaged_blocks: int = 0
    dropped_blocks: int = 0
    """Whole blocks that were evicted before they were stored."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """Levels at the end of a step. Pages are pages, not tokens."""

    running: int = 0
    waiting: int = 0
    restoring: int = 0
    spill_queue: int = 0
    free_pages: int = 0
    evictable_pages: int = 0
    total_pages: int = 0


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Everything one step has to say, posted to the loop at once."""

    updates: tuple[Update, ...]
    counters: EngineCounters = field(default_factory=EngineCounters)
    state: EngineState = field(default_factory=EngineState)
