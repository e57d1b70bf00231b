"""The order of eviction, and what follows from parents and children."""

import itertools
import math
from pathlib import Path

import pytest

from chatd.cache.disk.files import Files
from chatd.cache.disk.index import Entry, Index
from chatd.cache.disk.rules import Rules
from chatd.cache.disk.segment import Label, Segment
from chatd.cache.page_pool import BrokenInvariant
from tests.cache.disk.lab import ALICE, BOB

OURS = Segment(1, Label(b"ours", 1, 1))
THEIRS = Segment(2, Label(b"theirs", 1, 1))


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    return Rules(Files(), tmp_path)


@pytest.fixture
def index(rules: Rules) -> Index:
    return Index(b"ours", rules)


def add(index: Index, key: str, now: int, segment: Segment = OURS) -> Entry:
    """``key`` "abc" hangs under "ab"."""
    entry = Entry(key.encode(), key[:-1].encode(), ALICE, segment, 0, now, now)
    index.add(entry)
    index.check()
    return entry


def evict_all(index: Index) -> list[str]:
    order = []
    while entry := index.oldest():
        order.append(entry.key.decode())
        index.remove(entry)
        index.check()
    return order


def test_leaves_go_first_and_a_use_counts_for_all_above(index: Index) -> None:
    for now, key in enumerate(["a", "ab", "ac", "b", "bc", "abc"]):
        add(index, key, now)
    used = index.get(b"ac")
    assert used
    index.use(used, 10)
    index.check()
    assert evict_all(index) == ["bc", "b", "abc", "ab", "ac", "a"]


@pytest.mark.parametrize("order", list(itertools.permutations(["a", "ab", "abc"])))
def test_a_path_may_be_written_in_any_order(index: Index, order: tuple[str, ...]) -> None:
    for now, key in enumerate(order):
        add(index, key, now)
    assert evict_all(index) == ["abc", "ab", "a"]


def test_the_parent_of_what_is_being_written_does_not_go(index: Index) -> None:
    add(index, "a", 1)
    add(index, "b", 2)
    index.hold(b"a")
    assert index.oldest() is index.get(b"b")
    index.let_go(b"a")
    assert index.oldest() is index.get(b"a")


def test_pins_keep_and_unpinning_lets_go(index: Index, rules: Rules) -> None:
    add(index, "a", 1)
    add(index, "ab", 2)
    rules.pin("x", [b"a", b"ab"])
    rules.pin("y", [b"a"])
    assert index.oldest() is None
    index.unpinned(rules.unpin("x"))
    assert evict_all(index) == ["ab"]
    index.unpinned(rules.unpin("y"))
    assert evict_all(index) == ["a"]


def test_those_of_other_models_are_not_offered(index: Index) -> None:
    add(index, "a", 1, THEIRS)
    assert index.oldest() is None
    assert index.children(b"") == 0


def test_a_parent_is_kept_as_long_as_its_children(index: Index, rules: Rules) -> None:
    rules.set_ttl(None, 10)
    rules.set_ttl(BOB, 100)
    root = add(index, "a", 0)
    index.add(child := Entry(b"ab", b"a", BOB, OURS, 1, 0, 0))
    assert (root.kept_until, child.kept_until) == (100, 100)
    assert list(index.expired(100)) == []
    rules.set_ttl(BOB, math.inf)
    index.restore_order()
    assert root.kept_until == math.inf
    rules.set_ttl(BOB, 5)
    index.restore_order()
    assert (root.kept_until, child.kept_until) == (10, 5)
    expired = []
    for entry in index.expired(11):
        expired.append(entry.key)
        index.remove(entry)
    assert expired == [b"ab", b"a"]


def test_the_order_does_not_grow_with_uses(index: Index) -> None:
    entries = [add(index, key, 0) for key in "abcdefgh"]
    for now in range(1, 5000):
        index.use(entries[now % 8], now)
    assert len(index._order) < 200
    index.check()
    assert len(evict_all(index)) == 8


def test_faults_of_ours_are_told(index: Index) -> None:
    entry = add(index, "a", 0)
    with pytest.raises(BrokenInvariant):
        index.add(entry)
    index.remove(entry)
    with pytest.raises(BrokenInvariant):
        index.remove(entry)
