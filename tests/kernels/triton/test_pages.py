"""Copy-on-write, spill and restore: bits move, nothing else changes."""

import pytest
import torch

from chatd_kernels.layout import PagePool
from chatd_kernels.triton.launch import ceil_div
from tests.kernels.triton.compare import FP8, REFERENCE, TRITON, copy_of, empty_pool, generator

FORMATS = (torch.float32, torch.bfloat16, FP8, torch.int8)


def random_pool(dtype: torch.dtype, page_size: int, layers: int = 3, dim: int = 80) -> PagePool:
    pool = empty_pool(9, layers, 3, page_size, dim, dtype)
    pool.raw.copy_(torch.randint(0, 256, pool.raw.shape, dtype=torch.uint8, generator=generator(page_size)))
    return pool


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("page_size", [1, 2, 4, 8, 16, 32, 64])
def test_copy_slots(page_size: int, dtype: torch.dtype) -> None:
    for slots in {0, 1, page_size // 2, page_size - 1, page_size}:
        ours = random_pool(dtype, page_size)
        theirs = copy_of(ours)
        TRITON.copy_slots(ours.planes, 7, 2, slots, ours.scales)
        REFERENCE.copy_slots(theirs.planes, 7, 2, slots, theirs.scales)
        assert torch.equal(ours.raw, theirs.raw)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_gather_and_scatter_are_exact(page_size: int, dtype: torch.dtype) -> None:
    pool = random_pool(dtype, page_size)
    before = pool.raw.clone()
    pages = torch.tensor([8, 0, 3])
    records = TRITON.gather_pages(pool.raw, pages)
    assert torch.equal(records, before[pages])
    pool.raw[pages] = 255
    TRITON.scatter_pages(pool.raw, pages, records)
    assert torch.equal(pool.raw, before)


def test_planes_move_without_their_record() -> None:
    pool = random_pool(torch.int8, 4)
    pages = torch.tensor([5, 1])
    records = TRITON.gather_pages(pool.planes, pages)
    assert torch.equal(records, pool.planes[pages])
    TRITON.scatter_pages(pool.planes, pages + 1, records)
    assert torch.equal(pool.planes[pages + 1], records)


def test_no_pages() -> None:
    pool = random_pool(torch.float32, 4)
    assert TRITON.gather_pages(pool.planes, torch.empty(0, dtype=torch.long)).shape == (0, 3, 2, 3, 4, 80)


def test_a_record_is_longer_than_one_program_moves() -> None:
    pool = random_pool(torch.float32, 64, layers=2)
    assert ceil_div(pool.raw.shape[1], 8192) > 2
    pages = torch.arange(9).flip(0)
    assert torch.equal(TRITON.gather_pages(pool.raw, pages), pool.raw.flip(0))
