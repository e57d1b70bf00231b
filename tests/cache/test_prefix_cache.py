"""The cases of the cache, at the level of leases. Every slot a stream reads is checked by the lab."""

from itertools import product

import pytest

from chatd.cache.page_pool import BrokenInvariant
from chatd.cache.radix_node import unpack
from tests.support.kv_pages import ALICE, CacheLab

P = list(range(1000, 1100))


def _page(name: str, size: int = 16) -> list[int]:
    return [ord(name) * 100 + at for at in range(size)]


def _pages(names: str) -> list[int]:
    return [token_id for name in names for token_id in _page(name)]


@pytest.mark.parametrize("page_size", [1, 2, 16, 64])
def test_a1_every_cut_point(page_size: int) -> None:
    warm = CacheLab(4096, page_size)
    assert warm.run(P) == 0
    for k in range(1, 100):
        prompt = P[:k] + [2000 + k + n for n in range(30)]
        fresh = CacheLab(256, page_size)
        assert fresh.run(prompt, generate=5) == 0
        assert warm.cache.match_len(prompt, ALICE) == k
        assert warm.run(prompt, generate=5) == k
        assert warm.run(P[:k]) == k - 1
        warm.check()
    assert warm.run(P) == 99
    assert warm.run([*P, 1]) == 100
    warm.check_idle()


def test_a2_twin_prompts() -> None:
    lab = CacheLab(200)
    prompt = list(range(200))
    first, second = lab.start(prompt), lab.start(prompt)
    for twin in (first, second):
        twin.compute()
        lab.check()
    first.insert()
    own = list(second.lease.pages)
    second.insert()
    assert second.lease.pages[:12] == first.lease.pages[:12]
    assert not set(second.lease.pages[:12]) & set(own)
    lab.check()
    for token_id in range(64):
        for twin in (first, second):
            twin.ids.append(token_id)
            twin.compute()
            twin.insert()
            lab.check()
    first.release()
    second.release()
    lab.check_idle()
    for n in range(20):
        lab.run([5000 + n] * 150, generate=20)
        lab.check_idle()


def test_twins_in_chunks_share_what_the_first_has_done() -> None:
    lab = CacheLab(100)
    prompt = list(range(200))
    first = lab.start(prompt)
    first.compute(64)
    first.insert()
    second = lab.start(prompt)
    assert second.cached_len == 64
    for upto_len in (128, 192, 200):
        for twin in (second, first):
            twin.compute(upto_len)
            twin.insert()
            lab.check()
    assert first.lease.pages[:12] == second.lease.pages[:12]
    third = lab.start(prompt)
    assert third.cached_len == 192
    for twin in (first, third, second):
        twin.release()
    lab.check_idle()


def test_a3_evict_while_in_use() -> None:
    lab = CacheLab(64)
    stream = lab.start(range(319))
    stream.compute()
    stream.insert()
    assert len(stream.lease.pages) == 20
    for n in range(200):
        assert lab.run([9000 + n] * 100, generate=10) == 0
        lab.check()
        stream.ids.append(n)
        if n % 20 == 0:
            assert stream.compute()
            stream.insert()
    assert stream.compute()
    assert len(lab.evicted) > 0
    assert lab.cache.match_len(range(319), ALICE) == 318
    stream.release()
    lab.check_idle()


@pytest.mark.parametrize(("a_first", "a_finishes", "b_finishes"), list(product([True, False], repeat=3)))
def test_a4_split_while_locked(a_first: bool, a_finishes: bool, b_finishes: bool) -> None:
    lab = CacheLab(64)
    a = lab.start([*_pages("abcdef"), 1, 2, 3])
    a.compute(96)
    a.insert()
    b = lab.start([*_pages("abcx"), *_page("y", 7)])
    assert b.cached_len == 48
    assert b.lease.pages == a.lease.pages[:3]
    lab.check()
    if a_finishes:
        a.compute()
    if b_finishes:
        b.compute()
    else:
        b.compute(53)
    ends = [(a, a_finishes), (b, b_finishes)]
    for stream, finishes in ends if a_first else reversed(ends):
        if finishes:
            stream.insert()
        lab.check()
        stream.release()
        lab.check()
    lab.check_idle()
    assert lab.cache.evictable_pages == 3 + (4 if a_finishes else 3) + (2 if b_finishes else 1)
    assert lab.cache.match_len([*_pages("abcdef"), 0], ALICE) == 96
    assert lab.cache.match_len(_pages("abcxy"), ALICE) == (71 if b_finishes else 53)


def test_a8_lru_after_partial_hit() -> None:
    lab = CacheLab(16)
    lab.run(_pages("abcdefgh"))
    lab.run(_pages("wxyz"))
    assert lab.run([*_pages("abcd"), *_page("e")[:5], 0]) == 69
    lab.run(range(7 * 16))
    assert lab.cache.match_len([*_pages("abcdefgh"), 0], ALICE) == 69
    assert lab.cache.match_len([*_pages("wxyz"), 0], ALICE) == 64
    assert [unpack(evicted.key) for evicted in lab.evicted] == [_pages("abcdefgh"), _pages("abcde")]


def test_a_look_does_not_count_as_use() -> None:
    lab = CacheLab(8)
    lab.run(_pages("ab"))
    lab.run(_pages("cd"))
    for _ in range(3):
        assert lab.cache.match_len([*_pages("ab"), 0], ALICE) == 32
    lab.run(_pages("efghij"))
    assert lab.cache.match_len([*_pages("ab"), 0], ALICE) == 0
    assert lab.cache.match_len([*_pages("cd"), 0], ALICE) == 32


def test_least_recently_ended_goes_first_page_by_page() -> None:
    lab = CacheLab(12)
    for names in ("ab", "cd", "ef"):
        lab.run(_pages(names))
    lab.run([*_pages("ab"), 1])
    taker = lab.start([0])
    assert lab.cache.grow(taker.lease, lab.cache.free_pages)
    for _ in range(6):
        assert lab.cache.grow(taker.lease, 1)
        lab.check()
    assert [unpack(evicted.key) for evicted in lab.evicted] == [
        _pages("cd"), _pages("c"), _pages("ef"), _pages("e"), [*_pages("ab"), 1], _pages("ab"),
    ]  # fmt: skip
    assert lab.cache.evicted_pages == 6


# -- the tail of an answer, and turns


def test_the_next_turn_starts_where_the_last_ended() -> None:
    lab = CacheLab(100)
    history = list(range(100))
    for turn in range(8):
        stream = lab.start(history)
        assert stream.cached_len == (len(history) - 13 if turn else 0)
        stream.compute()
        stream.insert()
        for n in range(37):
            stream.ids.append(3000 + turn * 100 + n)
            if n < 36:
                stream.compute()
                stream.insert()
        stream.release()
        lab.check_idle()
        history = [*stream.ids, *range(12)]
    assert lab.cache.evictable_pages == -(-(len(history) - 13) // 16)


def test_a_copy_keeps_its_source_until_it_was_made() -> None:
    lab = CacheLab(8)
    lab.run(range(20))
    waiting = lab.start(range(24), copy=False)
    assert not waiting.copied
    flood = lab.start([7] * 200)
    assert not flood.compute()
    assert flood.compute(16 * lab.cache.free_pages + 16 * lab.cache.evictable_pages)
    lab.check()
    assert waiting.compute()
    waiting.insert()
    assert waiting.lease.copy is None
    lab.check()
    flood.release()
    waiting.release()
    lab.check_idle()


def test_two_copies_of_one_tail() -> None:
    lab = CacheLab(20)
    lab.run(range(20))
    one, two = lab.start([*range(20), 1], copy=False), lab.start([*range(20), 2], copy=False)
    assert one.cached_len == two.cached_len == 20
    one.ids += range(50)
    one.compute()
    one.insert()
    lab.check()
    one.release()
    lab.check()
    two.compute()
    two.release()
    lab.check_idle()
    assert lab.cache.match_len([*range(20), 1, 0, 1], ALICE) == 22
    assert lab.cache.match_len([*range(20), 2, 0], ALICE) == 21


def test_no_page_for_the_copy() -> None:
    lab = CacheLab(3)
    lab.run(range(40))
    held = lab.start([*range(32), 99])
    assert held.cached_len == 32
    assert lab.cache.grow(held.lease, 1)
    other = lab.start([*range(20), 99])
    assert other.cached_len == 16
    assert other.lease.copy is None
    lab.check()
    other.release()
    held.release()
    lab.check_idle()


def test_the_source_of_a_copy_is_not_evicted_for_the_copy() -> None:
    lab = CacheLab(2)
    lab.run(range(20))
    stream = lab.start([*range(20), 99])
    assert stream.cached_len == 16
    lab.check()
    assert stream.compute()
    stream.release()
    lab.check_idle()


def test_an_abort_before_the_copy_keeps_nothing_and_loses_nothing() -> None:
    lab = CacheLab(20)
    lab.run(range(20))
    stream = lab.start(range(24), copy=False)
    lab.check()
    stream.release()
    lab.check_idle()
    assert lab.cache.match_len(range(24), ALICE) == 20
    assert lab.cache.evictable_pages == 2


def test_preemption_keeps_its_kv() -> None:
    lab = CacheLab(40)
    stream = lab.start(range(70))
    stream.compute(50)
    stream.release()
    lab.check_idle()
    again = lab.start(range(70))
    assert again.cached_len == 50
    again.compute()
    again.ids += range(500, 530)
    again.compute()
    again.release()
    assert lab.start([*again.ids, 1]).cached_len == 100


def test_grow_is_all_or_nothing() -> None:
    lab = CacheLab(8)
    lab.run(range(48))
    stream = lab.start([9] * 100)
    assert not lab.cache.grow(stream.lease, 9)
    assert (lab.cache.free_pages, lab.cache.evictable_pages) == (5, 3)
    assert lab.cache.match_len(range(48), ALICE) == 47
    assert lab.cache.grow(stream.lease, 8)
    assert (lab.cache.free_pages, lab.cache.evictable_pages) == (0, 0)
    lab.check()
    stream.release()
    lab.check_idle()


@pytest.mark.parametrize("ids", [[], [5]])
def test_the_shortest_prompts(ids: list[int]) -> None:
    lab = CacheLab(4)
    for _ in range(3):
        assert lab.run(ids) == 0
        lab.check_idle()


def test_disabled_nothing_is_kept() -> None:
    lab = CacheLab(8, enabled=False)
    for _ in range(3):
        assert lab.run(range(60), generate=20) == 0
        assert lab.cache.match_len(range(60), ALICE) == 0
        assert lab.cache.free_pages == 8
        lab.check_idle()


# -- bugs that others had


def test_all_of_the_matched_path_is_held_its_end_included() -> None:
    lab = CacheLab(6)
    lab.run(_pages("abcd"))
    stream = lab.start([*_pages("abc"), 0])
    assert stream.lease.node.end_len == 48
    assert lab.cache.evictable_pages == 1
    assert not lab.cache.grow(stream.lease, 4)
    assert lab.cache.grow(stream.lease, 3)
    assert lab.cache.match_len([*_pages("abc"), 0], ALICE) == 48
    lab.check()


def test_a_lease_of_nothing_holds_the_root_and_evicts_like_any() -> None:
    lab = CacheLab(4)
    empty = lab.start([1, 2, 3])
    lab.run(_pages("abcd"))
    assert lab.cache.evictable_pages == 4
    assert empty.compute()
    lab.check()
    empty.release()
    lab.check_idle()


def test_the_tree_keeps_no_view_of_a_callers_list() -> None:
    lab = CacheLab(20)
    stream = lab.start(_pages("abc"))
    stream.compute()
    stream.insert()
    row, ids = list(stream.lease.pages), stream.ids
    stream.lease.pages[:] = [0, 0, 0]
    stream.ids = [0] * 48
    ids[:] = [0] * 48
    other = lab.start([*_pages("abc"), 1])
    assert other.lease.pages == row
    stream.lease.pages[:] = row
    stream.ids = _pages("abc")
    other.lease.pages.append(3)
    assert stream.lease.pages == row
    other.lease.pages.pop()
    lab.check()


def test_eviction_counts_pages_not_tokens() -> None:
    lab = CacheLab(10)
    lab.run(range(160))
    stream = lab.start([7])
    assert lab.cache.grow(stream.lease, 3)
    assert lab.cache.evicted_pages == 3
    assert lab.cache.match_len(range(160), ALICE) == 7 * 16


def test_an_ended_lease_stays_ended() -> None:
    lab = CacheLab(10)
    stream = lab.start(range(40))
    stream.compute()
    lease = stream.lease
    stream.release()
    free, evictable = lab.cache.free_pages, lab.cache.evictable_pages
    lab.cache.release(lease, stream.ids, 40)
    lab.cache.purge(lease)
    assert (lab.cache.free_pages, lab.cache.evictable_pages) == (free, evictable)
    with pytest.raises(BrokenInvariant):
        lab.cache.grow(lease, 1)
    with pytest.raises(BrokenInvariant):
        lab.cache.insert(lease, stream.ids, 40)
    assert lab.cache.match_len(range(40), ALICE) == 39
    lab.check_idle()


def test_an_evicted_page_computed_again_is_found_again() -> None:
    lab = CacheLab(4)
    for _ in range(3):
        assert lab.run(_pages("abcd")) == 0
        assert lab.run(_pages("wxyz")) == 0
    assert lab.cache.match_len(_pages("wxyz"), ALICE) == 63


def test_only_what_is_written_can_be_matched() -> None:
    lab = CacheLab(20)
    stream = lab.start(_pages("abcd"))
    for upto_len, found in [(15, 0), (16, 16), (40, 32), (63, 48), (64, 63)]:
        stream.compute(upto_len)
        stream.insert()
        assert lab.cache.match_len(_pages("abcd"), ALICE) == found
    for token_id in range(3):
        stream.ids.append(token_id)
    stream.release()
    assert lab.cache.match_len([*_pages("abcd"), 0, 1, 2], ALICE) == 64


def test_kv_beyond_pages_or_ids_is_refused() -> None:
    lab = CacheLab(20)
    stream = lab.start(range(40))
    stream.compute(30)
    with pytest.raises(ValueError, match="beyond"):
        lab.cache.insert(stream.lease, stream.ids, 33)
    with pytest.raises(ValueError, match="beyond"):
        lab.cache.insert(stream.lease, stream.ids[:20], 30)
    lab.check()


def test_an_evicted_page_is_decided_on_once_and_a_purged_or_superseded_one_never() -> None:
    lab = CacheLab(6)
    lab.run(range(20))
    lab.run(range(40))
    bad = lab.start([7] * 48)
    bad.compute()
    bad.insert()
    bad.purge()
    assert lab.evicted == []
    assert lab.cache.evicted_pages == 0


# -- check


def test_check_wants_the_leases_that_live() -> None:
    lab = CacheLab(8)
    stream = lab.start(range(20))
    with pytest.raises(BrokenInvariant, match="not the leases"):
        lab.cache.check()
    lab.cache.check([stream.lease])
    lease = stream.lease
    stream.release()
    with pytest.raises(BrokenInvariant, match="not the leases"):
        lab.cache.check([lease])


def test_check_sees_a_page_lost_and_a_page_owned_twice() -> None:
    lab = CacheLab(8)
    stream = lab.start(range(40))
    stream.compute()
    lost = stream.lease.pages.pop()
    with pytest.raises(BrokenInvariant, match="no owner, or two"):
        lab.check()
    stream.lease.pages.append(lost)
    other = lab.start([9] * 20)
    other.lease.pages.append(lost)
    with pytest.raises(BrokenInvariant, match="no owner, or two"):
        lab.cache.check([stream.lease, other.lease])
