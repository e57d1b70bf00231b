"""The pool: all or nothing, nothing twice."""

import pytest

from chatd.cache.page_pool import BrokenInvariant, PagePool


def test_alloc_is_all_or_nothing() -> None:
    pool = PagePool(5, 16)
    taken = pool.alloc(3)
    assert taken is not None
    assert len(set(taken)) == 3
    assert pool.alloc(3) is None
    assert pool.num_free == 2
    rest = pool.alloc(2)
    assert rest is not None
    assert sorted(taken + rest) == list(range(5))
    assert pool.alloc(0) == []
    assert pool.alloc(1) is None
    pool.free(taken)
    pool.check()
    assert pool.free_pages() == set(taken)


def test_a_page_is_freed_once() -> None:
    pool = PagePool(4, 1)
    taken = pool.alloc(2)
    assert taken is not None
    pool.free(taken[:1])
    with pytest.raises(BrokenInvariant, match="freed twice"):
        pool.free(taken[:1])
    with pytest.raises(BrokenInvariant, match="not of this pool"):
        pool.free([4])
    with pytest.raises(BrokenInvariant, match="not of this pool"):
        pool.free([-1])


@pytest.mark.parametrize(("num_pages", "page_size"), [(0, 16), (8, 0), (8, 3), (8, 128), (8, -1)])
def test_sizes_out_of_range_are_refused(num_pages: int, page_size: int) -> None:
    with pytest.raises(ValueError):
        PagePool(num_pages, page_size)


def test_alloc_of_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError):
        PagePool(4, 1).alloc(-1)


def test_check_sees_a_list_and_marks_that_differ() -> None:
    pool = PagePool(4, 1)
    pool._free.append(pool._free[0])
    with pytest.raises(BrokenInvariant, match="twice"):
        pool.check()
    pool._free.pop()
    pool._free.pop()
    with pytest.raises(BrokenInvariant, match="differ"):
        pool.check()
