"""The page pool's bytes: one contiguous record a page, so that spilling or restoring a page is one copy."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from chatd_kernels.ops import LayerKV

RECORD_ALIGN_BYTES = 16
"""Records start at multiples of it: the widest load there is."""
SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class PagePool:
    """Views of ``raw``, uint8 ``[num_pages, record_bytes]``.

    ``planes`` ``[num_pages, layers, 2, kvh, ps, d]``; ``scales``, for int8 only, float32
    ``[num_pages, layers, 2, kvh, ps]``: behind the planes in each record.
    """

    raw: Tensor
    planes: Tensor
    scales: Tensor | None

    def layer(self, i: int) -> LayerKV:
        k, v = self.planes[:, i, 0], self.planes[:, i, 1]
        if self.scales is None:
            return LayerKV(k, v)
        return LayerKV(k, v, self.scales[:, i, 0], self.scales[:, i, 1])


def record_bytes(layers: int, kv_heads: int, page_size: int, dim: int, dtype: torch.dtype) -> int:
    """Bytes of a page: planes, scales, and padding up to the alignment.

    Without scales a whole number of planes too, so that heads of all pages are rows of one matrix.
    """
    plane = page_size * token_bytes(1, dim, dtype) // 2
    used = layers * 2 * kv_heads * plane
    step = RECORD_ALIGN_BYTES if dtype == torch.int8 else math.lcm(RECORD_ALIGN_BYTES, plane)
    return -(-used // step) * step


def token_bytes(kv_heads: int, dim: int, dtype: torch.dtype) -> int:
    """K and V of one token in one layer, scales included."""
    return 2 * kv_heads * (dim * dtype.itemsize + (SCALE_BYTES if dtype == torch.int8 else 0))


def page_pool(
    raw: Tensor, layers: int, kv_heads: int, page_size: int, dim: int, dtype: torch.dtype
) -> PagePool:
    """``raw`` has `record_bytes` bytes in each row. ``dim`` times the element's size is a multiple of 4."""
    shape = (len(raw), layers, 2, kv_heads, page_size, dim)
    planes = _strided(raw.view(dtype), shape)
    if dtype != torch.int8:
        return PagePool(raw, planes, None)
    behind = layers * 2 * kv_heads * page_size * dim // SCALE_BYTES
    return PagePool(raw, planes, _strided(raw.view(torch.float32), shape[:-1], behind))


def _strided(flat: Tensor, shape: tuple[int, ...], offset: int = 0) -> Tensor:
    """``flat`` ``[num_pages, record]`` from ``offset`` on, cut into ``shape``."""
    inner = torch.empty(shape[1:], device="meta").stride()
    return flat.as_strided(shape, (flat.stride(0), *inner), flat.storage_offset() + offset)
