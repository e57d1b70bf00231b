"""Histograms of latencies: small, exact to add up, and good for percentiles within 5 %.

Buckets are logarithmic, eight to the doubling, from 0.1 ms to days. A percentile is the geometric middle of
its bucket, which no value in the bucket differs from by more than 4.5 %. Edges are whole microseconds, so
that a value falls into the same bucket on every machine.

A set of histograms is one blob: entries of 6 bytes (kind and bucket as uint16, count as uint32, little
endian), ascending, without zeros. So equal histograms are equal bytes.
"""

import math
import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from enum import IntEnum

BUCKETS = 256
FIRST_US = 100
PER_DOUBLING = 8
EDGES = tuple(int(FIRST_US * 2 ** (i / PER_DOUBLING)) for i in range(BUCKETS))
"""Bucket i holds values below ``EDGES[i]``, from the edge before on; the last one all that are longer."""

_ENTRY = struct.Struct("<HI")
Counts = Mapping[int, int]
"""``kind * BUCKETS + bucket`` to how many."""


class Kind(IntEnum):
    """TTFT is kept apart for hits (at least half of the prompt was reused) and misses."""

    TTFT_HIT = 0
    TTFT_MISS = 1
    TPOT = 2
    QUEUE = 3
    TOTAL = 4


def key_of(kind: Kind, ms: float) -> int:
    """The counter of a latency in milliseconds."""
    bucket = min(bisect_right(EDGES, max(0, round(ms * 1000))), BUCKETS - 1)
    return kind * BUCKETS + bucket


def pack(counts: Counts) -> bytes:
    return b"".join(_ENTRY.pack(key, counts[key]) for key in sorted(counts) if counts[key])


def unpack(blob: bytes) -> dict[int, int]:
    """What `pack` packed. struct.error if the blob is cut."""
    return dict(_ENTRY.iter_unpack(blob))


def add_counts(into: dict[int, int], more: Counts | Iterable[tuple[int, int]]) -> None:
    for key, count in more.items() if isinstance(more, Mapping) else more:
        into[key] = into.get(key, 0) + count


def add_up(blobs: Iterable[bytes]) -> dict[int, int]:
    """The sum of many histograms: a million entries in 20 ms."""
    import numpy as np

    entries = np.frombuffer(b"".join(blobs), dtype=np.dtype([("key", "<u2"), ("count", "<u4")]))
    # Sums of counts stay below 2**53, where float64 is exact.
    sums = np.bincount(entries["key"], weights=entries["count"]) if len(entries) else np.zeros(0)
    return {int(key): int(sums[key]) for key in np.flatnonzero(sums)}


def percentile(counts: Counts, kind: Kind, share: float) -> float | None:
    """Milliseconds that ``share`` (0 to 1) of the values do not exceed; None without a value.

    The nearest rank: of n values the one at ``ceil(share * n)``, at least the first.
    """
    first = kind * BUCKETS
    inside = [(key - first, counts[key]) for key in sorted(counts) if first <= key < first + BUCKETS]
    total = sum(count for _, count in inside)
    rank = max(1, math.ceil(share * total))
    for bucket, count in inside:
        rank -= count
        if rank <= 0:
            return middle_ms(bucket)
    return None


def middle_ms(bucket: int) -> float:
    """What a value in ``bucket`` is taken for, in milliseconds."""
    if bucket == 0:
        return FIRST_US / 1000
    low = EDGES[bucket - 1]
    high = EDGES[bucket] if bucket < BUCKETS - 1 else 2 * low
    return math.sqrt(low * high) / 1000
