"""A line of a report while it is added up."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chatd.store.latencies import Kind, add_up, percentile
from chatd.store.prices import PriceBook
from chatd.store.schema import COUNTS
from chatd.store.usage import UsageRow

MsPerToken = Mapping[str, float]
"""By model: what a computed prompt token takes."""


@dataclass(slots=True)
class Sums:
    """Turns of one group and one currency. Roll-ups, open rows and bills of a view are added to it."""

    currency: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    reused: dict[str, int] = field(default_factory=dict)
    blobs: list[bytes] = field(default_factory=list)
    cost_nano: int = 0
    without_cache_nano: int = 0
    unpriced: int = 0
    first_at: int | None = None
    last_at: int | None = None

    def add_rollup(self, row: Any, *, billed: bool) -> None:
        """``billed``: at the prices the turns were made at."""
        for name in COUNTS:
            self.counts[name] += getattr(row, name)
        self.reused[row.model] = self.reused.get(row.model, 0) + row.gpu_hit + row.disk_hit
        self.blobs.append(row.latencies)
        if billed:
            self.add_bill(row.cost_nano, row.without_cache_nano, 0)

    def add_bill(self, cost_nano: int | None, without_cache_nano: int | None, unpriced: int) -> None:
        self.cost_nano += cost_nano or 0
        self.without_cache_nano += without_cache_nano or 0
        self.unpriced += unpriced

    def add_open(self, row: Any, book: PriceBook) -> None:
        """An open turn counts with what it would cost if it ended now."""
        more = {name: getattr(row, name) for name in COUNTS[1:]} | {"turns": 1}
        for name in COUNTS:
            self.counts[name] += more[name]
        self.reused[row.model] = self.reused.get(row.model, 0) + row.gpu_hit + row.disk_hit
        cost = book.quote(
            book.prices_of(row.model),
            gpu_hit=row.gpu_hit,
            disk_hit=row.disk_hit,
            computed=row.computed,
            output=row.output_tokens,
        )
        if cost is None:
            self.add_bill(None, None, 1)
        else:
            self.add_bill(cost.total_nano, cost.without_cache_nano, 0)

    def merge(self, other: "Sums") -> None:
        for name in COUNTS:
            self.counts[name] += other.counts[name]
        for model, tokens in other.reused.items():
            self.reused[model] = self.reused.get(model, 0) + tokens
        self.blobs.extend(other.blobs)
        self.add_bill(other.cost_nano, other.without_cache_nano, other.unpriced)

    def see(self, first_at: int, last_at: int) -> None:
        self.first_at = first_at if self.first_at is None else min(first_at, self.first_at)
        self.last_at = last_at if self.last_at is None else max(last_at, self.last_at)

    def row(self, labels: Mapping[str, str], pace: MsPerToken, sessions: int | None = None) -> UsageRow:
        counts = add_up(self.blobs)
        has_price = self.unpriced < self.counts["turns"]
        return UsageRow(
            labels=labels,
            currency=self.currency,
            sessions=sessions,
            **self.counts,
            ttft_hit_p50_ms=percentile(counts, Kind.TTFT_HIT, 0.5),
            ttft_hit_p95_ms=percentile(counts, Kind.TTFT_HIT, 0.95),
            ttft_miss_p50_ms=percentile(counts, Kind.TTFT_MISS, 0.5),
            ttft_miss_p95_ms=percentile(counts, Kind.TTFT_MISS, 0.95),
            tpot_p50_ms=percentile(counts, Kind.TPOT, 0.5),
            queue_p95_ms=percentile(counts, Kind.QUEUE, 0.95),
            total_p50_ms=percentile(counts, Kind.TOTAL, 0.5),
            saved_s=self._saved_s(pace),
            cost_nano=self.cost_nano if has_price else None,
            without_cache_nano=self.without_cache_nano if has_price else None,
            unpriced=self.unpriced,
            first_at=self.first_at,
            last_at=self.last_at,
        )

    def _saved_s(self, pace: MsPerToken) -> float | None:
        """None if of some model that reused tokens nothing was ever measured."""
        reused = {model: tokens for model, tokens in self.reused.items() if tokens}
        if not reused.keys() <= pace.keys():
            return None
        return sum(tokens * pace[model] for model, tokens in reused.items()) / 1000
