"""Histograms: exact to add, and percentiles within 5 % of the sorted values."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatd.store.latencies import (
    BUCKETS,
    EDGES,
    FIRST_US,
    Kind,
    add_counts,
    add_up,
    key_of,
    pack,
    percentile,
    unpack,
)


def counted(values: list[float], kind: Kind = Kind.TPOT) -> dict[int, int]:
    counts: dict[int, int] = {}
    add_counts(counts, [(key_of(kind, value), 1) for value in values])
    return counts


def test_edges_rise_and_reach_from_a_tenth_of_a_millisecond_to_days() -> None:
    assert len(EDGES) == BUCKETS
    assert list(EDGES) == sorted(set(EDGES))
    assert (EDGES[0], EDGES[-1] > 4 * 24 * 3600 * 1_000_000) == (FIRST_US, True)


@given(st.lists(st.floats(0.1, 3e8), min_size=1, max_size=300), st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_percentiles_are_within_5_percent(values: list[float], share: float) -> None:
    exact = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    found = percentile(counted(values), Kind.TPOT, share)
    assert found is not None
    assert abs(found - exact) <= 0.05 * exact


@pytest.mark.parametrize("shape", ["lognormal", "exponential", "two humps"])
def test_percentiles_of_latencies_as_they_are(shape: str) -> None:
    dice = random.Random(7)
    shapes: dict[str, Callable[[], float]] = {
        "lognormal": lambda: dice.lognormvariate(4, 1),
        "exponential": lambda: dice.expovariate(1 / 300),
        "two humps": lambda: dice.gauss(40, 4) if dice.random() < 0.7 else dice.gauss(1500, 200),
    }
    values = [max(0.1, shapes[shape]()) for _ in range(5000)]
    counts = counted(values)
    for share in (0.5, 0.95, 0.99):
        exact = sorted(values)[math.ceil(share * len(values)) - 1]
        assert percentile(counts, Kind.TPOT, share) == pytest.approx(exact, rel=0.05)


def test_what_is_shorter_than_the_first_edge_and_what_never_was() -> None:
    assert percentile(counted([0.0, 0.05]), Kind.TPOT, 0.5) == 0.1
    assert percentile({}, Kind.TPOT, 0.5) is None
    assert percentile(counted([1e12]), Kind.TPOT, 0.5) is not None


def test_kinds_stay_apart() -> None:
    counts = counted([10.0], Kind.TTFT_HIT)
    add_counts(counts, counted([1000.0], Kind.TTFT_MISS))
    assert percentile(counts, Kind.TTFT_HIT, 0.95) == pytest.approx(10, rel=0.05)
    assert percentile(counts, Kind.TTFT_MISS, 0.05) == pytest.approx(1000, rel=0.05)
    assert percentile(counts, Kind.QUEUE, 0.5) is None


counts_of_all = st.dictionaries(st.integers(0, len(Kind) * BUCKETS - 1), st.integers(1, 2**31), max_size=40)


@given(st.lists(counts_of_all, max_size=8))
def test_adding_blobs_is_adding_counts(parts: list[dict[int, int]]) -> None:
    whole: dict[int, int] = {}
    for part in parts:
        add_counts(whole, part)
        assert unpack(pack(part)) == part
    assert add_up([pack(part) for part in parts]) == whole


def test_equal_histograms_are_equal_bytes() -> None:
    assert pack({5: 1, 3: 2, 9: 0}) == pack({3: 2, 5: 1})
