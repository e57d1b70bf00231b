"""Reading and writing the page pool."""

import torch
from torch import Tensor

from chatd_kernels.ops import LayerKV
from chatd_kernels.reference.quantised import narrow, quantise


def rope_store_kv(
    qkv: Tensor, cos: Tensor, sin: Tensor, kv: LayerKV, slot_pages: Tensor, slot_offsets: Tensor
) -> Tensor:
    """Rotary embedding in half-split form (Su et al. 2021), float32 inside; see `Ops.rope_store_kv`."""
    kv_heads, dim = kv.k.shape[1], kv.k.shape[3]
    heads = qkv.view(qkv.shape[0], -1, dim)
    rotated = heads[:, :-kv_heads].float()
    swapped = rotated.roll(dim // 2, -1)
    rotated = torch.addcmul(rotated * cos[:, None], swapped, sin[:, None]).to(qkv.dtype)
    at = (slot_pages, slice(None), slot_offsets)
    _store(kv.k, kv.k_scale, at, rotated[:, -kv_heads:])
    _store(kv.v, kv.v_scale, at, heads[:, -kv_heads:])
    return rotated[:, :-kv_heads]


def _store(plane: Tensor, scale: Tensor | None, at: tuple[Tensor, slice, Tensor], x: Tensor) -> None:
    """x ``[n, kvh, d]`` to its slots."""
    if scale is None:
        # As integers of the same size: indexing does not know fp8.
        as_bits = torch.uint8 if plane.dtype.itemsize == 1 else plane.dtype
        plane.view(as_bits)[at] = narrow(x, plane.dtype).view(as_bits)
    else:
        plane[at], scale[at] = quantise(x)


def copy_slots(pool: Tensor, src: int, dst: int, slots: int, scales: Tensor | None = None) -> None:
    """All layers; ``slots`` 0 is allowed."""
    pool[dst, :, :, :, :slots] = pool[src, :, :, :, :slots]
    if scales is not None:
        scales[dst, ..., :slots] = scales[src, ..., :slots]


def head_rows(plane: Tensor) -> Tensor:
    """A layer's K or V ``[num_pages, kvh, ps, d]`` as rows ``[any, ps * d]``: one row for a head of a page.

    Row ``page * rows_per_page + head`` is that page's head; the rows between belong to other layers.
    """
    num_pages, kv_heads, page_size, dim = plane.shape
    row_len = page_size * dim
    rows = (num_pages - 1) * rows_per_page(plane) + kv_heads
    return plane.as_strided((rows, row_len), (row_len, 1))


def rows_per_page(plane: Tensor) -> int:
    """Stride between pages in rows of `head_rows`."""
    row_len = plane.shape[2] * plane.shape[3]
    rows, rest = divmod(plane.stride(0), row_len)
    assert rest == 0
    assert plane.stride()[1:] == (row_len, plane.shape[3], 1)
    return rows


def row_index(table: Tensor, plane: Tensor) -> Tensor:
    """Rows of `head_rows` for a table ``[r, p]``, ordered row, head, page; int64 ``[r * kvh * p]``."""
    heads = torch.arange(plane.shape[1], device=table.device)
    return (table.long()[:, None, :] * rows_per_page(plane) + heads[None, :, None]).reshape(-1)
