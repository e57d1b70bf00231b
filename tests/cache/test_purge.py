"""K1 at the level of pages: what a bad request put into the cache is gone, and others go on."""

import pytest

from tests.support.kv_pages import ALICE, CacheLab, Stream


def _bad(lab: CacheLab, ids: list[int]) -> Stream:
    stream = lab.start(ids)
    stream.compute()
    stream.insert()
    return stream


def test_k1_nothing_it_inserted_can_be_matched() -> None:
    lab = CacheLab(40)
    lab.run(range(50))
    bad = _bad(lab, [*range(50), *range(200, 300)])
    assert bad.cached_len == 50
    assert lab.cache.match_len(bad.ids, ALICE) == 144
    bad.purge()
    lab.check_idle()
    assert lab.cache.match_len(bad.ids, ALICE) == 48
    assert lab.cache.free_pages == 40 - 3
    assert lab.run(bad.ids) == 48
    lab.check_idle()


def test_k1_a_request_that_had_inserted_nothing() -> None:
    lab = CacheLab(40)
    lab.run(range(50))
    bad = lab.start([*range(50), 1, 2], copy=False)
    bad.purge()
    lab.check_idle()
    assert lab.cache.match_len([*range(50), 1], ALICE) == 50


def test_k1_a_dependant_works_on_but_is_not_matched() -> None:
    lab = CacheLab(60)
    bad = _bad(lab, list(range(100)))
    reader = lab.start([*range(96), *range(500, 600)])
    assert reader.cached_len == 96
    reader.compute(150)
    reader.insert()
    bad.purge()
    lab.check()
    assert lab.cache.match_len(reader.ids, ALICE) == 0
    reader.compute()
    reader.insert()
    lab.check()
    assert lab.cache.match_len(reader.ids, ALICE) == 0
    reader.release()
    lab.check_idle()
    assert lab.cache.free_pages == 60
    assert lab.run([*range(96), *range(500, 600)]) == 0


def test_k1_pages_stay_until_the_last_lease_lets_go() -> None:
    lab = CacheLab(60)
    bad = _bad(lab, list(range(64)))
    readers = [lab.start([*range(64), 500 + n]) for n in range(3)]
    bad.purge()
    for held, reader in zip((4, 4, 0), readers, strict=True):
        lab.check()
        reader.release()
        assert lab.cache.free_pages == 60 - held
    lab.check_idle()


@pytest.mark.parametrize("copied_first", [True, False])
@pytest.mark.parametrize("inserted_first", [True, False])
def test_k1_slots_copied_out_of_it_are_not_matched(copied_first: bool, inserted_first: bool) -> None:
    lab = CacheLab(60)
    bad = _bad(lab, list(range(64)))
    copier = lab.start([*range(40), *range(500, 600)], copy=copied_first)
    assert copier.cached_len == 40
    if inserted_first:
        copier.compute()
        copier.insert()
    bad.purge()
    lab.check()
    copier.compute()
    copier.insert()
    copier.release()
    lab.check_idle()
    assert lab.cache.match_len(copier.ids, ALICE) == 0


def test_k1_copies_of_copies_are_not_matched() -> None:
    lab = CacheLab(60)
    bad = _bad(lab, list(range(16)))
    first = lab.start([*range(10), *range(500, 520)])
    first.compute()
    first.insert()
    second = lab.start([*range(10), *range(500, 503), *range(600, 640)])
    assert second.cached_len == 13
    second.compute()
    first.release()
    second.release()
    third = lab.start([*range(10), *range(500, 503), *range(600, 602), 7, 7, 7])
    assert third.cached_len == 15
    bad.purge()
    lab.check()
    third.compute()
    third.release()
    lab.check_idle()
    assert lab.cache.free_pages == 60


def test_k1_a_twins_own_pages_outlive_it_where_they_parted() -> None:
    lab = CacheLab(60)
    twin, bad = lab.start(range(100)), lab.start([*range(50), *range(500, 550)])
    for stream in (twin, bad):
        stream.compute()
        stream.insert()
    bad.purge()
    lab.check()
    twin.release()
    lab.check_idle()
    lab.run([*range(100), 1])
    lab.check_idle()


def test_k1_two_bad_requests_on_one_path() -> None:
    lab = CacheLab(60)
    outer = _bad(lab, list(range(64)))
    inner = _bad(lab, list(range(128)))
    reader = lab.start(range(130))
    outer.purge()
    lab.check()
    inner.purge()
    lab.check()
    reader.release()
    lab.check_idle()
    assert lab.cache.free_pages == 60


def test_what_ended_well_before_is_kept() -> None:
    lab = CacheLab(60)
    good = lab.start(range(64))
    good.compute()
    good.release()
    bad = _bad(lab, list(range(128)))
    copier = lab.start([*range(40), 7, 8, 9])
    copier.compute()
    bad.purge()
    copier.release()
    lab.check_idle()
    assert lab.cache.match_len(range(128), ALICE) == 64
    assert lab.cache.match_len([*range(40), 7, 8, 9, 1], ALICE) == 43
