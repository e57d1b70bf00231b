"""What a report says: frozen values, no rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from chatd.ids import ConversationId, Namespace
from chatd.store.pricing import AS_BILLED, View


class By(StrEnum):
    """What a report has a line for."""

    SESSION = "session"
    BRANCH = "branch"
    DAY = "day"
    MODEL = "model"
    KEY = "key"
    NAMESPACE = "namespace"


@dataclass(frozen=True, slots=True)
class Scope:
    """Which turns a report looks at; None: all. Days (UTC, since 1970-01-01) are those on which turns were
    asked; the last one is inside.
    """

    namespace: Namespace | None = None
    session: ConversationId | None = None
    model: str | None = None
    first_day: int | None = None
    last_day: int | None = None

    @property
    def is_all(self) -> bool:
        """No turn of the namespace is left out."""
        return self == Scope(namespace=self.namespace)


ALL = Scope()


@dataclass(frozen=True, slots=True)
class Asked:
    """One page of a report. ``after`` is the ``next`` of the page before."""

    by: By
    scope: Scope = ALL
    view: View = AS_BILLED
    limit: int = 50
    after: str | None = None
    with_totals: bool = True


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A line of a report, and also its totals: what some turns used and cost, in one currency.

    ``labels`` say what the line is about, such as ``{"day": "2026-11-29"}``. Money is None where no
    turn has a price; ``unpriced`` turns are in no sum of money. Percentiles are milliseconds, good
    within 5 %; a turn is a hit if at least half of its prompt was reused. ``saved_s`` estimates the
    time to compute what was reused, from how TTFT grows with the computed tokens of the same model; None if
    that was never to be seen. Times are Unix microseconds, None where they would say nothing.
    """

    labels: Mapping[str, str]
    currency: str
    sessions: int | None
    turns: int
    prompt_tokens: int
    gpu_hit: int
    disk_hit: int
    computed: int
    output_tokens: int
    preemptions: int
    recomputed: int
    ttft_hit_p50_ms: float | None
    ttft_hit_p95_ms: float | None
    ttft_miss_p50_ms: float | None
    ttft_miss_p95_ms: float | None
    tpot_p50_ms: float | None
    queue_p95_ms: float | None
    total_p50_ms: float | None
    saved_s: float | None
    cost_nano: int | None
    without_cache_nano: int | None
    unpriced: int
    first_at: int | None
    last_at: int | None

    @property
    def hit_rate(self) -> float:
        """Reused prompt tokens over all prompt tokens; 0.0 where no prompt was admitted."""
        return (self.gpu_hit + self.disk_hit) / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def saved_nano(self) -> int | None:
        if self.cost_nano is None or self.without_cache_nano is None:
            return None
        return self.without_cache_nano - self.cost_nano


@dataclass(frozen=True, slots=True)
class StorageUse:
    """What a namespace kept on a ``tier`` (disk, pinned) since it was metered last."""

    namespace: Namespace
    tier: str
    byte_seconds: int


@dataclass(frozen=True, slots=True)
class StorageRow:
    """KV that was kept on a day: ``byte_seconds``, and their price (None: there is none)."""

    day: int
    namespace: Namespace
    tier: str
    byte_seconds: int
    currency: str
    cost_nano: int | None


@dataclass(frozen=True, slots=True)
class StorageSum:
    """The same over many days and namespaces."""

    tier: str
    byte_seconds: int
    currency: str
    cost_nano: int | None


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Lines in the report's order (sessions and days the newest first, others by name), and one total for
    each currency, over the whole scope. ``next`` is the ``after`` of the following page, None on the last.
    """

    by: By
    rows: tuple[UsageRow, ...]
    totals: tuple[UsageRow, ...]
    next: str | None
