"""What equal means, per dtype, and random inputs."""

import torch
from torch import Tensor

from chatd_kernels.layout import PagePool, page_pool, record_bytes
from chatd_kernels.reference import ReferenceOps
from chatd_kernels.triton import TritonOps

TRITON = TritonOps()
REFERENCE = ReferenceOps()

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FP8 = torch.float8_e4m3fn
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest difference over the largest magnitude of what is compared. The 16-bit ones are about 4 roundings:
reference rounds softmax weights after dividing by their sum, the kernels before."""


def assert_close(got: Tensor, want: Tensor, *, factor: float = 1.0) -> None:
    """Elementwise, against the tolerance of ``want``'s dtype; NaN where and only where it is wanted."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    got, want, tolerance = got.float(), want.float(), factor * TOLERANCE[want.dtype]
    assert torch.equal(got.isnan(), want.isnan())
    if want.numel():
        error = (got - want).nan_to_num().abs().max()
        assert error <= tolerance * want.nan_to_num().abs().max().clamp(min=1e-3), f"differs by {error}"


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed)).to(dtype)


def empty_pool(
    pages: int, layers: int, kv_heads: int, page_size: int, dim: int, dtype: torch.dtype
) -> PagePool:
    """All bits set: NaN in every float dtype, and in the scales of int8."""
    raw = torch.full((pages, record_bytes(layers, kv_heads, page_size, dim, dtype)), 255, dtype=torch.uint8)
    return page_pool(raw, layers, kv_heads, page_size, dim, dtype)


def copy_of(pool: PagePool) -> PagePool:
    _, layers, _, kv_heads, page_size, dim = pool.planes.shape
    return page_pool(pool.raw.clone(), layers, kv_heads, page_size, dim, pool.planes.dtype)
