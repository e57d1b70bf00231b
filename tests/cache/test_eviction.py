"""The order of eviction: oldest tick first, stale entries ignored, and no growth by being used often."""

import pytest

from chatd.cache.eviction import EvictionOrder
from chatd.cache.radix_node import SHARED, RadixNode, pack
from tests.support.kv_pages import ALICE

ROOT = RadixNode(None, SHARED, b"", [], 0, frozenset())


def _leaf(token_id: int, last_used: int) -> RadixNode:
    leaf = RadixNode(ROOT, ALICE, pack([token_id]), [token_id], 0, frozenset())
    leaf.last_used = last_used
    return leaf


def test_oldest_first_whatever_the_order_of_entering() -> None:
    order = EvictionOrder()
    leaves = [_leaf(n, last_used) for n, last_used in enumerate([5, 2, 9, 2, 1])]
    for leaf in leaves:
        order.enter(leaf)
    seen = []
    for _ in leaves:
        first = order.first()
        assert order.first() is first
        first.attached = False
        seen.append(first.last_used)
    assert seen == [1, 2, 2, 5, 9]
    with pytest.raises(IndexError):
        order.first()


def test_what_changed_since_is_stale() -> None:
    order = EvictionOrder()
    locked, used, parent, kept = leaves = [_leaf(n, n) for n in range(4)]
    for leaf in leaves:
        order.enter(leaf)
    locked.lock_ref = 1
    used.last_used = 8
    parent.hang(_leaf(9, 0), 4)
    assert order.leaves() == [kept]
    assert order.first() is kept
    order.enter(used)
    kept.attached = False
    assert order.first() is used


def test_entering_the_same_leaves_for_ever_does_not_grow() -> None:
    order = EvictionOrder()
    leaves = [_leaf(n, 0) for n in range(50)]
    for tick in range(5000):
        leaf = leaves[tick * 7 % 50]
        leaf.last_used = tick
        order.enter(leaf)
        assert len(order._heap) <= 2 * 50 + 64
    assert order.leaves() == sorted(leaves, key=lambda leaf: leaf.last_used)
