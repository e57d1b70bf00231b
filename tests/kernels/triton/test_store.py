"""Rotary and the store of K and V against `reference`, in every format of the pool."""

import pytest
import torch
from torch import Tensor

from chatd_kernels.layout import PagePool
from tests.kernels.triton.compare import (
    DTYPES,
    FP8,
    REFERENCE,
    TRITON,
    assert_close,
    copy_of,
    empty_pool,
    generator,
    randn,
)

SHAPES = [(1, 1, 1, 64), (7, 3, 1, 64), (5, 9, 3, 80), (3, 8, 8, 96), (2, 5, 1, 128), (4, 8, 1, 256)]


def rotation(n: int, dim: int) -> tuple[Tensor, Tensor]:
    angles = 10 * randn(n, dim // 2, seed=3)
    return torch.cat([angles.cos()] * 2, -1), torch.cat([-angles.sin(), angles.sin()], -1)


def slots(n: int, pages: int, page_size: int) -> tuple[Tensor, Tensor]:
    """Distinct slots in no order."""
    at = torch.randperm(pages * page_size, generator=generator(4))[:n]
    return at // page_size, at % page_size


def store_both(
    n: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype, kv_dtype: torch.dtype, page_size: int
) -> tuple[PagePool, PagePool]:
    """The two pools after the same tokens; q is compared."""
    ours = empty_pool(7, 3, kv_heads, page_size, dim, kv_dtype)
    theirs = copy_of(ours)
    qkv = randn(n, (heads + 2 * kv_heads) * dim, dtype=dtype)
    cos, sin = rotation(n, dim)
    where = slots(n, 7, page_size)
    got = TRITON.rope_store_kv(qkv, cos, sin, ours.layer(1), *where)
    assert_close(got, REFERENCE.rope_store_kv(qkv, cos, sin, theirs.layer(1), *where))
    return ours, theirs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "heads", "kv_heads", "dim"), SHAPES)
def test_rope_and_store(n: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
    ours, theirs = store_both(n, heads, kv_heads, dim, dtype, dtype, 16)
    assert_close(ours.planes, theirs.planes)


@pytest.mark.parametrize("page_size", [1, 2, 4, 8, 16, 32, 64])
def test_every_page_size(page_size: int) -> None:
    ours, theirs = store_both(6, 6, 2, 64, torch.float32, torch.float32, page_size)
    assert_close(ours.planes, theirs.planes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "heads", "kv_heads", "dim"), SHAPES)
def test_fp8(n: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
    ours, theirs = store_both(n, heads, kv_heads, dim, dtype, FP8, 4)
    got, want = ours.planes.float(), theirs.planes.float()
    assert torch.equal(got.isnan(), want.isnan())
    # A last bit of q's dtype may move a value across a rounding of fp8, by an eighth of it.
    assert ((got - want).nan_to_num().abs() <= want.nan_to_num().abs() / 8 + 2**-9).all()
    assert (got.nan_to_num() != want.nan_to_num()).float().mean() < 0.01


def test_fp8_saturates() -> None:
    pool = empty_pool(1, 1, 1, 4, 64, FP8)
    qkv = torch.full((1, 3 * 64), 1e6)
    zero = torch.zeros(1, dtype=torch.long)
    TRITON.rope_store_kv(qkv, torch.ones(1, 64), torch.zeros(1, 64), pool.layer(0), zero, zero)
    assert (pool.planes[:, :, :, :, 0].float() == 448).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "heads", "kv_heads", "dim"), SHAPES)
def test_int8(n: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
    ours, theirs = store_both(n, heads, kv_heads, dim, dtype, torch.int8, 4)
    assert ours.scales is not None
    assert theirs.scales is not None
    assert_close(ours.scales, theirs.scales)
    off = (ours.planes.int() - theirs.planes.int()).abs()
    assert off.max() <= 1
    assert (off > 0).float().mean() < 0.01


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy, casting NaN to an integer
@pytest.mark.parametrize("value", [0.0, torch.nan, torch.inf])
def test_int8_of_zeros_and_of_what_is_not_finite(value: float) -> None:
    ours = empty_pool(1, 1, 1, 4, 64, torch.int8)
    qkv = randn(1, 3 * 64)
    qkv[0, 64 if value else slice(64, 192)] = value
    zero = torch.zeros(1, dtype=torch.long)
    layer = ours.layer(0)
    TRITON.rope_store_kv(qkv, torch.ones(1, 64), torch.zeros(1, 64), layer, zero, zero)
    assert layer.k_scale is not None
    read = layer.k_scale[0, 0, 0] * layer.k[0, 0, 0].float()
    assert (read == 0).all() if value == 0 else read.isnan().all()
    assert layer.v_scale is not None
    assert layer.v_scale[0, 0, 0].isfinite()
