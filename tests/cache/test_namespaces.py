"""Shared and private KV: what one namespace computed is no other's, unless the operator said so."""

import pytest

from chatd.cache.page_pool import BrokenInvariant
from chatd.cache.radix_node import SHARED
from tests.support.kv_pages import ALICE, BOB, CacheLab

SYSTEM = list(range(1000, 1150))


def _lab(page_size: int = 16, *, marked: bool = True) -> CacheLab:
    lab = CacheLab(200 * 16 // page_size, page_size)
    if marked:
        lab.share(SYSTEM)
    return lab


@pytest.mark.parametrize("page_size", [1, 2, 16, 64])
def test_private_kv_is_never_anothers(page_size: int) -> None:
    lab = _lab(page_size, marked=False)
    lab.run(SYSTEM, ALICE, generate=20)
    for cut in (1, 15, 16, 17, 64, 150):
        assert lab.cache.match_len([*SYSTEM[:cut], 7], BOB) == 0
    had = 0
    for cut in (1, 15, 16, 17, 64, 150):
        assert lab.run([*SYSTEM[:cut], 7], BOB) == had
        had = cut
    assert lab.run([*SYSTEM, 7], ALICE) == 150
    lab.check_idle()


@pytest.mark.parametrize("page_size", [1, 2, 16, 64])
def test_a_marked_prompt_is_shared_up_to_a_crossing(page_size: int) -> None:
    lab = _lab(page_size)
    assert lab.run([*SYSTEM, 1, 2, 3], ALICE) == 0
    assert lab.run([*SYSTEM, 1, 2, 3], BOB) == 128
    assert lab.run([*SYSTEM, 1, 2, 3, 4], ALICE) == 153
    assert lab.run([*SYSTEM, 1, 2, 9, 9], BOB) == 152
    lab.check_idle()
    spaces = [node.namespace for node in lab.cache._tree.walk()]
    assert spaces.count(SHARED) == 1


def test_a_prompt_that_leaves_a_shared_one_early_copies_one_page() -> None:
    lab = _lab()
    lab.run([*SYSTEM, 1], ALICE)
    assert lab.run([*SYSTEM[:70], 1, 2, 3], BOB) == 70
    assert lab.run([*SYSTEM[:100], 1, 2, 3], BOB) == 80
    assert lab.run([*SYSTEM[:100], 1, 2, 3, 4], BOB) == 103
    assert lab.run([*SYSTEM[:30], 1, 2, 3], BOB) == 16
    lab.check_idle()


def test_shared_kv_in_flight_is_shared_stretch_by_stretch() -> None:
    lab = _lab()
    first = lab.start([*SYSTEM, 5], ALICE)
    for upto_len, found in [(48, 0), (64, 64), (100, 64), (128, 128), (151, 128)]:
        first.compute(upto_len)
        first.insert()
        lab.check()
        assert lab.cache.match_len([*SYSTEM, 6], BOB) == found
    first.release()
    lab.check_idle()


def test_an_end_between_crossings_goes_private() -> None:
    lab = _lab()
    first = lab.start([*SYSTEM, 5], ALICE)
    first.compute(100)
    first.release()
    lab.check_idle()
    assert lab.cache.match_len([*SYSTEM, 5], ALICE) == 100
    assert lab.cache.match_len([*SYSTEM, 5], BOB) == 64
    assert lab.run([*SYSTEM, 6], BOB) == 64
    assert lab.run([*SYSTEM, 5], ALICE) == 128
    lab.check_idle()


def test_twins_of_two_namespaces_end_with_one_shared_copy() -> None:
    lab = _lab()
    one, two = lab.start([*SYSTEM, 1], ALICE), lab.start([*SYSTEM, 2], BOB)
    for stream in (one, two):
        stream.compute()
        stream.insert()
        lab.check()
    assert one.lease.pages[:8] == two.lease.pages[:8]
    assert not set(one.lease.pages[8:]) & set(two.lease.pages[8:])
    one.release()
    two.release()
    lab.check_idle()
    assert lab.cache.evictable_pages == 8 + 2 + 2


def test_marking_later_leaves_private_copies_private() -> None:
    lab = _lab(marked=False)
    lab.run([*SYSTEM, 1], ALICE)
    running = lab.start([*SYSTEM, 1, 2], ALICE)
    lab.share(SYSTEM)
    running.compute()
    running.insert()
    lab.check()
    assert lab.cache.match_len([*SYSTEM, 1], BOB) == 0
    assert lab.run([*SYSTEM, 3], BOB) == 0
    assert lab.run([*SYSTEM, 4], BOB) == 150
    running.release()
    assert lab.run([*SYSTEM, 1, 2, 3], ALICE) == 152
    assert lab.run([*SYSTEM[:100], 9], ALICE) == 100
    lab.check_idle()


def test_two_marks_with_a_common_beginning() -> None:
    lab = _lab()
    other = [*SYSTEM[:100], *range(2000, 2100)]
    lab.share(other)
    lab.share(other)
    lab.run([*SYSTEM, 1], ALICE)
    lab.run([*other, 1], ALICE)
    assert lab.run([*SYSTEM, 2], BOB) == 128
    assert lab.run([*other, 2], BOB) == 192
    assert lab.run([*SYSTEM[:110], 3, 3], BOB) == 80
    lab.check_idle()
    assert lab.run([*SYSTEM, 2, 4], BOB) == 151


def test_a_prompt_that_only_begins_like_a_mark_shares_no_more_than_that() -> None:
    lab = _lab()
    lab.run([*SYSTEM[:90], *range(3000, 3100)], ALICE)
    assert lab.cache.match_len([*SYSTEM[:90], *range(3000, 3100)], BOB) == 64
    assert lab.cache.match_len([*SYSTEM], BOB) == 64
    lab.check_idle()


def test_less_than_a_stretch_is_not_shared() -> None:
    lab = _lab(marked=False)
    lab.share(SYSTEM[:63])
    lab.share([])
    lab.run([*SYSTEM[:63], 1], ALICE)
    assert lab.cache.match_len([*SYSTEM[:63], 1], BOB) == 0
    lab.check_idle()


def test_shared_kv_is_evicted_and_purged_like_any() -> None:
    lab = CacheLab(16)
    lab.share(SYSTEM)
    lab.run([*SYSTEM, 1], ALICE)
    lab.run([7] * 200, BOB)
    assert lab.cache.match_len([*SYSTEM, 1], BOB) == 16, (
        "48 tokens are left, one page beyond the crossing is used"
    )
    lab.check_idle()
    bad = lab.start([*SYSTEM, 2], ALICE)
    bad.compute()
    bad.insert()
    had = bad.cached_len
    bad.purge()
    lab.check_idle()
    assert lab.cache.match_len([*SYSTEM, 2], ALICE) <= had


def test_nobody_is_the_shared_namespace() -> None:
    lab = CacheLab(4)
    with pytest.raises(BrokenInvariant):
        lab.cache.acquire([1, 2], SHARED)
    with pytest.raises(BrokenInvariant):
        lab.cache.match_len([1, 2], SHARED)


def test_check_sees_private_kv_among_the_shared() -> None:
    lab = _lab()
    lab.run([*SYSTEM, 1], ALICE)
    lab.cache._shared[:] = []
    with pytest.raises(BrokenInvariant, match="nobody's wish"):
        lab.check()
