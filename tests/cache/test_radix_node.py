"""Packed keys and the search among children, against the slow and obvious way."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from chatd.cache.radix_node import SHARED, RadixNode, common_len, crossing_floor, pack, unpack
from chatd.ids import Namespace
from tests.support.kv_pages import ALICE, BOB, common_prefix_len

IDS = st.lists(st.sampled_from([0, 1, 255, 256, 257, 65536, 2**31 - 1]), max_size=12)
SMALL = st.lists(st.integers(0, 2), min_size=1, max_size=4)
PAGE_BYTES = 16


@given(IDS)
def test_pack_and_unpack(ids: list[int]) -> None:
    assert unpack(pack(ids)) == ids
    assert pack(tuple(ids)) == pack(ids)
    assert len(pack(ids)) == 4 * len(ids)


@given(IDS, IDS, IDS)
def test_common_len_counts_tokens_not_bytes(both: list[int], left: list[int], right: list[int]) -> None:
    a, b = both + left, both + right
    assert common_len(pack(a), pack(b)) == common_prefix_len(a, b)


def test_common_len_of_ids_that_share_bytes() -> None:
    assert common_len(pack([5, 0x01020304]), pack([5, 0x01020305])) == 1
    assert common_len(pack([5, 0x01020304]), pack([5, 0x02020304])) == 1


def test_crossing_floor() -> None:
    assert [crossing_floor(n) for n in (0, 63, 64, 127, 128)] == [0, 0, 64, 64, 128]


def _node(namespace: Namespace, ids: list[int]) -> RadixNode:
    return RadixNode(None, namespace, pack(ids), [], 0, frozenset())


@given(st.lists(st.tuples(st.sampled_from([ALICE, BOB, SHARED]), SMALL), max_size=12), SMALL)
def test_closest_and_covers_among_all_children(
    children: list[tuple[Namespace, list[int]]], want: list[int]
) -> None:
    root = _node(SHARED, [])
    for namespace, ids in {(namespace, tuple(ids)): (namespace, ids) for namespace, ids in children}.values():
        root.hang(_node(namespace, ids), PAGE_BYTES)
    mine = [ids for namespace, ids in children if namespace == ALICE]
    found = [common_len(child.key, pack(want)) for child in root.closest(ALICE, pack(want))]
    assert len(found) <= 2
    assert max(found, default=0) == max((common_prefix_len(ids, want) for ids in mine), default=0)
    longer = [ids for ids in mine if len(ids) > len(want) and ids[: len(want)] == want]
    assert root.covers(ALICE, pack(want)) == bool(longer)


@given(st.lists(SMALL, max_size=10))
def test_hang_and_unhang_keep_the_order(keys: list[list[int]]) -> None:
    root = _node(SHARED, [])
    nodes = [_node(ALICE, list(ids)) for ids in {tuple(ids) for ids in keys}]
    for node in nodes:
        root.hang(node, PAGE_BYTES)
        assert all(a < b for a, b in pairwise(root.order))
    for node in nodes:
        root.unhang(node, PAGE_BYTES)
        assert len(root.order) == len(root.children)
    assert not root.order
