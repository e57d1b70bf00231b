"""The tree by itself: edges, tails, locks, eviction from the end; and a check that sees what is broken."""

from collections.abc import Callable

import pytest

from chatd.cache.page_pool import BrokenInvariant
from chatd.cache.radix_node import RadixNode, pack
from chatd.cache.radix_tree import Evicted, RadixTree
from tests.support.kv_pages import ALICE, BOB

SIZE = 4
NOBODY = frozenset[int]()


class Bench:
    """A tree of pages of four tokens, each page numbered by hand."""

    def __init__(self) -> None:
        self.freed: list[int] = []
        self.evicted: list[Evicted] = []
        self.tree = RadixTree(SIZE, self.freed.extend)
        self.root = self.tree.root

    def put(self, ids: list[int], pages: list[int], under: RadixNode | None = None) -> RadixNode:
        """Insert whole pages and leave them unlocked but used, as after a release."""
        node, kept = self.tree.insert(
            under or self.root, ALICE, pack(ids), pages, floor_len=0, writers=NOBODY
        )
        self.tree.lock(node)
        self.tree.touch(node)
        self.tree.unlock(node)
        self.freed.extend(set(pages) - set(kept))
        return node

    def tail(self, ids: list[int], page: int, under: RadixNode | None = None) -> bool:
        return self.tree.add_tail(under or self.root, ALICE, pack(ids), page, NOBODY)

    def matched(self, ids: list[int]) -> tuple[int, int]:
        match = self.tree.match(pack(ids), ALICE, len(ids))
        return match.full_len, match.slots

    def evict(self, num_pages: int) -> list[int]:
        before = len(self.freed)
        self.tree.evict(num_pages, self.evicted.append)
        self.tree.check({})
        return self.freed[before:]


def _ids(*pages: int) -> list[int]:
    """Four ids for each page's name."""
    return [page * 10 + at for page in pages for at in range(SIZE)]


def test_an_edge_is_split_at_the_page_where_paths_part() -> None:
    bench = Bench()
    lower = bench.put(_ids(1, 2, 3), [1, 2, 3])
    other = bench.put([*_ids(1, 2), 30, 31, 99, 99], [11, 12, 13])
    bench.tree.check({})
    assert bench.tree.pages_to(lower) == [1, 2, 3]
    assert bench.tree.pages_to(other) == [1, 2, 13]
    assert lower.parent is other.parent
    assert (lower.start_len, lower.pages) == (8, [3])
    assert sorted(bench.freed) == [11, 12]
    assert bench.matched(_ids(1, 2, 3)) == (12, 0)
    assert bench.matched([*_ids(1, 2), 30, 31, 99, 0]) == (8, 3)
    assert bench.matched([*_ids(1), 20, 21, 0]) == (4, 2)


def test_a_limit_holds_inside_a_page() -> None:
    bench = Bench()
    bench.put(_ids(1, 2), [1, 2])
    found = [bench.tree.match(pack(_ids(1, 2)), ALICE, limit) for limit in range(9)]
    assert [match.total_len for match in found] == list(range(9))
    assert [match.full_len for match in found] == [0, 0, 0, 0, 4, 4, 4, 4, 8]


def test_a_split_under_a_lock_keeps_both_halves_held() -> None:
    bench = Bench()
    node = bench.put(_ids(1, 2, 3), [1, 2, 3])
    bench.tree.lock(node)
    upper = bench.tree.split(node, 1)
    bench.tree.check({node: 1, upper: 1})
    assert bench.tree.evictable_pages == 0
    bench.tree.unlock(node)
    assert bench.tree.evictable_pages == 3
    bench.tree.check({})


def test_tails_with_different_contents_live_side_by_side() -> None:
    bench = Bench()
    assert bench.tail([1, 2, 3], 0)
    assert bench.tail([1, 2, 4], 1)
    assert bench.tail([5], 2)
    bench.tree.check({})
    assert bench.matched([1, 2, 4, 9, 9]) == (0, 3)
    assert bench.matched([1, 2, 9, 9, 9]) == (0, 2)
    assert bench.matched([5, 9, 9, 9, 9]) == (0, 1)
    assert bench.freed == []


def test_a_tail_within_a_sibling_is_not_added() -> None:
    bench = Bench()
    bench.put(_ids(1), [1])
    assert bench.tail([5, 6, 7], 2)
    assert not bench.tail([10, 11], 3)
    assert not bench.tail([5, 6], 4)
    assert not bench.tail([5, 6, 7], 5)
    bench.tree.check({})
    assert bench.tree.evictable_pages == 2


def test_a_longer_tail_and_a_full_page_supersede_what_begins_them() -> None:
    bench = Bench()
    bench.tail([10], 0)
    bench.tail([10, 99], 1)
    assert bench.freed == [0]
    bench.tail([10, 11], 2)
    bench.tail([10, 11, 12], 3)
    assert bench.freed == [0, 2]
    bench.put(_ids(1, 2), [4, 5])
    assert bench.freed == [0, 2, 3]
    bench.tree.check({})
    assert bench.matched([10, 99, 0, 0]) == (0, 2)


def test_a_held_tail_is_superseded_when_let_go() -> None:
    bench = Bench()
    bench.tail([10, 11], 1)
    (tail,) = bench.root.children.values()
    bench.tree.lock(tail)
    bench.tree.lock(tail)
    bench.put(_ids(1), [2])
    bench.tree.check({tail: 2})
    bench.tree.unlock(tail)
    assert bench.freed == []
    bench.tree.unlock(tail)
    assert bench.freed == [1]
    assert not tail.attached
    bench.tree.check({})


def test_namespaces_do_not_see_each_other() -> None:
    bench = Bench()
    bench.put(_ids(1, 2), [1, 2])
    assert bench.tree.match(pack(_ids(1, 2)), BOB, 8).total_len == 0
    node, kept = bench.tree.insert(bench.root, BOB, pack(_ids(1)), [7], floor_len=0, writers=NOBODY)
    assert kept == [7]
    bench.tree.lock(node)
    bench.tree.check({node: 1})


def test_eviction_takes_pages_from_the_end_of_the_oldest_leaf() -> None:
    bench = Bench()
    old = bench.put(_ids(1, 2, 3), [1, 2, 3])
    bench.put(_ids(4, 5), [4, 5])
    assert bench.evict(2) == [2, 3]
    assert bench.tree.pages_to(old) == [1]
    assert bench.evict(2) == [1, 5]
    assert not old.attached
    assert [evicted.pages for evicted in bench.evicted] == [(2, 3), (1,), (5,)]
    assert [evicted.key for evicted in bench.evicted] == [
        pack(_ids(1, 2, 3)),
        pack(_ids(1)),
        pack(_ids(4, 5)),
    ]
    with pytest.raises(BrokenInvariant):
        bench.tree.evict(2, bench.evicted.append)


def test_a_parent_goes_after_its_last_child_though_it_is_older() -> None:
    bench = Bench()
    bench.put(_ids(1, 2), [1, 2])
    bench.put(_ids(3), [3])
    bench.put(_ids(1, 4), [9, 4])
    assert bench.freed == [9]
    assert bench.evict(4) == [2, 3, 4, 1]


def test_detaching_frees_what_nobody_holds_and_the_rest_when_let_go() -> None:
    bench = Bench()
    first = bench.put(_ids(1, 2, 3), [1, 2, 3])
    second = bench.put(_ids(1, 2, 4), [8, 9, 4])
    bench.freed.clear()
    top = first.parent
    bench.tree.lock(first)
    bench.tree.detach(top)
    assert bench.freed == [4]
    assert not second.attached
    assert bench.matched(_ids(1, 2, 3)) == (0, 0)
    bench.tree.check({})
    bench.tree.unlock(first)
    assert sorted(bench.freed) == [1, 2, 3, 4]
    assert bench.tree.evictable_pages == 0
    with pytest.raises(BrokenInvariant):
        bench.tree.detach(top)


def test_a_held_leaf_grows_in_place_and_only_then() -> None:
    bench = Bench()
    node = bench.put(_ids(1), [1])
    bench.tree.lock(node)

    def insert(ids: list[int], page: int, floor_len: int = 0) -> RadixNode:
        found, _ = bench.tree.insert(
            node, ALICE, pack(ids), [page], floor_len=floor_len, writers=frozenset({3})
        )
        return found

    assert insert(_ids(2), 2) is node
    assert node.writers == {3}
    assert bench.tree.pages_to(node) == [1, 2]
    assert insert(_ids(3), 3, floor_len=4) is not node
    (child,) = node.children.values()
    bench.tree.detach(child)
    bench.tree.lock(node)
    child = insert(_ids(4), 4)
    assert child.parent is node
    bench.tree.unlock(node)
    assert insert(_ids(5), 5).parent is node
    for child in node.children.values():
        bench.tree.lock(child)
    bench.tree.check({node: 3, **dict.fromkeys(node.children.values(), 1)})


def test_more_letting_go_than_holding_is_seen() -> None:
    bench = Bench()
    node = bench.put(_ids(1), [1])
    with pytest.raises(BrokenInvariant, match="more often"):
        bench.tree.unlock(node)


def _swap_order(tree: RadixTree, node: RadixNode) -> None:
    node.parent.order.reverse()


def _misname(tree: RadixTree, node: RadixNode) -> None:
    node.key = pack(_ids(7)) + node.key[16:]


def _unaligned(tree: RadixTree, node: RadixNode) -> None:
    node.key += b"\0\0\0\0"


def _forgotten(tree: RadixTree, node: RadixNode) -> None:
    tree._order.first().last_used += 1
    node.parent.last_used += 2


def _turned(tree: RadixTree, node: RadixNode) -> None:
    node.namespace = BOB


BREAKS: list[Callable[[RadixTree, RadixNode], None]] = [
    lambda tree, node: setattr(tree, "evictable_pages", tree.evictable_pages + 1),
    lambda tree, node: setattr(node, "lock_ref", 1),
    lambda tree, node: setattr(node, "start_len", node.start_len + 1),
    lambda tree, node: setattr(node, "attached", False),
    lambda tree, node: setattr(node, "parent", tree.root),
    lambda tree, node: setattr(node, "last_used", 99),
    lambda tree, node: node.pages.append(77),
    _swap_order,
    _misname,
    _unaligned,
    _forgotten,
    _turned,
]


@pytest.mark.parametrize("damage", BREAKS)
def test_check_sees_damage(damage: Callable[[RadixTree, RadixNode], None]) -> None:
    bench = Bench()
    node = bench.put(_ids(1, 2, 3), [1, 2, 3])
    bench.put(_ids(1, 4), [9, 4])
    bench.tree.check({})
    damage(bench.tree, node)
    with pytest.raises(BrokenInvariant):
        bench.tree.check({})


def test_check_sees_a_superseded_tail() -> None:
    bench = Bench()
    bench.put(_ids(1), [1])
    tail = RadixNode(bench.root, ALICE, pack([10, 11]), [2], 0, NOBODY)
    bench.root.hang(tail, SIZE * 4)
    bench.tree.evictable_pages += 1
    bench.tree._order.enter(tail)
    with pytest.raises(BrokenInvariant, match="superseded"):
        bench.tree.check({})
