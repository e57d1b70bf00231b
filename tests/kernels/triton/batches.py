"""Ragged batches over a pool of random KV, with NaN wherever nobody may look."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chatd_kernels.ops import LayerKV, PagedBatch
from chatd_kernels.reference.quantised import narrow, quantise
from tests.kernels.triton.compare import empty_pool, generator, randn

LAYERS, LAYER = 3, 1


@dataclass(frozen=True)
class Case:
    """Queries and what they attend to."""

    q: Tensor
    kv: LayerKV
    batch: PagedBatch


def make_case(
    rows: Sequence[tuple[int, int]],
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype,
    *,
    page_size: int = 16,
    kv_dtype: torch.dtype | None = None,
) -> Case:
    """``rows`` are (tokens with KV, queries). Pages are in no order; unwritten slots and pages are NaN."""
    kv_dtype = dtype if kv_dtype is None else kv_dtype
    used = [-(-kv_len // page_size) for kv_len, _ in rows]
    pages = torch.randperm(sum(used) + 2, generator=generator(1)).int()
    pool = empty_pool(len(pages), LAYERS, kv_heads, page_size, dim, kv_dtype)
    kv = pool.layer(LAYER)
    table = pages[-1].repeat(len(rows), max([*used, 1]) + 1)
    for i, (count, (kv_len, _)) in enumerate(zip(used, rows, strict=True)):
        table[i, :count] = pages[sum(used[:i]) : sum(used[: i + 1])]
        for at in range(kv_len):
            page, slot = int(table[i, at // page_size]), at % page_size
            write(kv, page, slot, randn(2, kv_heads, dim, dtype=dtype, seed=1000 * i + at))
    q_lens = torch.tensor([0] + [q_len for _, q_len in rows])
    q = randn(int(q_lens.sum()), heads, dim, dtype=dtype, seed=5)
    lens = torch.tensor([kv_len for kv_len, _ in rows], dtype=torch.int32)
    starts = q_lens.cumsum(0).int()
    batch = PagedBatch(table, lens, starts, int(lens.max()), int(q_lens.max()))
    return Case(q, kv, batch)


def write(kv: LayerKV, page: int, slot: int, x: Tensor) -> None:
    """x ``[2, kv_heads, dim]``: K and V of one token."""
    for plane, scale, values in ((kv.k, kv.k_scale, x[0]), (kv.v, kv.v_scale, x[1])):
        if scale is None:
            plane[page, :, slot] = narrow(values, plane.dtype)
        else:
            plane[page, :, slot], scale[page, :, slot] = quantise(values)
