"""What attention kernels are told: pages, rows, and how the work is cut into items."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chatd_kernels.cpu import team
from chatd_kernels.cpu.forms import DTYPES, KV_DTYPES
from chatd_kernels.cpu.library import Library, Spec
from chatd_kernels.cpu.store import scale_pointers, scale_stride
from chatd_kernels.ops import AttentionSpec, LayerKV, PagedBatch

SPLIT_LEN = 256
"""Fewest keys of a split: shorter ones cost more in their merging than other threads gain."""
ITEMS_PER_THREAD = 4
QUERIES, TILE = 32, 64
"""As in `attention_kernels`: rows of a block, keys of a tile."""
_NO_SHAPE = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class Work:
    """What is the same in all layers: threads, and arguments of the kernel after the planes. ``kept`` are the
    tensors that some of them point into.

    Of decoding: ``shape``, int64: how many splits the keys have, at most ``most_splits``, and their length.
    """

    threads: int
    numbers: tuple[int, ...]
    kept: tuple[Tensor, ...]
    most_splits: int = 1
    shape: Tensor = _NO_SHAPE


@dataclass(slots=True)
class Plan:
    """``work`` is made in the first layer: a plan is not told how many query heads there are."""

    batch: PagedBatch
    spec: AttentionSpec
    work: Work | None = None

    def refit(self, max_kv_len: int) -> None:
        """Before a recording is replayed: rows of the batch are as long as this now."""
        if self.work is not None:
            longest = min(max_kv_len, self.spec.window) if self.spec.window else max_kv_len
            splits = max(1, min(self.work.most_splits, longest // SPLIT_LEN))
            self.work.shape[0], self.work.shape[1] = splits, -(-longest // splits)


def _decode_work(plan: Plan, kv: LayerKV, heads: int) -> Work:
    batch, spec = plan.batch, plan.spec
    _, kv_heads, _, dim = kv.k.shape
    rows, count = len(batch.kv_lens), team.threads()
    most = -(-ITEMS_PER_THREAD * count // (rows * kv_heads)) if count > 1 else 1
    shape = torch.empty(2, dtype=torch.int64)
    partials = team.empty_kept((rows * most * heads * (dim + 2),))
    buffer_bytes = max(TILE * 16, 256 + dim, heads // kv_heads * dim) * 4 * 4
    buffers = team.empty_kept((count * buffer_bytes,), torch.uint8)
    numbers = (
        *_pages(batch),
        batch.kv_lens.data_ptr(),
        rows,
        kv_heads,
        shape.data_ptr(),
        *_formula(spec),
        partials.data_ptr(),
        buffers.data_ptr(),
        buffer_bytes,
    )
    threads = count if rows * kv_heads * most > 1 else 1
    return Work(threads, numbers, (partials, buffers), most, shape)


def decode(library: Library, q: Tensor, kv: LayerKV, plan: Plan, out: Tensor | None) -> Tensor:
    out = team.empty(q.shape, q.dtype) if out is None else out
    work = plan.work
    if work is None:
        work = plan.work = _decode_work(plan, kv, q.shape[1])
        plan.refit(plan.batch.max_kv_len)
    body = library.body(decode_spec(kv, q.dtype, q.shape[1], plan.spec))
    run = team.run_phases if work.most_splits > 1 else _run_phase_0
    run(body, work.threads, q.data_ptr(), out.data_ptr(), *_planes(kv), *work.numbers, scale_stride(kv))
    return out


def _run_phase_0(body: int, threads: int, *values: int) -> None:
    team.run(body, threads, *values, 0)


def _extend_work(batch: PagedBatch, kv: LayerKV, spec: AttentionSpec, heads: int) -> Work:
    _, kv_heads, _, dim = kv.k.shape
    blocks = torch.from_numpy(query_blocks(batch, heads // kv_heads))
    # As `attention_kernels.make_extend` lays a thread's buffer out.
    buffer_bytes = 4 * (2 * dim * QUERIES + 2 * TILE * dim + 2 * TILE * QUERIES + 2 * TILE + QUERIES)
    count = team.threads()
    buffers = torch.empty(count * buffer_bytes, dtype=torch.uint8)
    numbers = (
        *_pages(batch),
        kv_heads,
        blocks.data_ptr(),
        len(blocks),
        *_formula(spec),
        buffers.data_ptr(),
        buffer_bytes,
    )
    return Work(count, numbers, (blocks, buffers))


def extend(library: Library, q: Tensor, kv: LayerKV, plan: Plan, out: Tensor | None) -> Tensor:
    out = torch.empty_like(q) if out is None else out
    work = plan.work
    if work is None:
        work = plan.work = _extend_work(plan.batch, kv, plan.spec, q.shape[1])
    body = library.body(extend_spec(kv, q.dtype, q.shape[1], plan.spec))
    team.run(body, work.threads, q.data_ptr(), out.data_ptr(), *_planes(kv), *work.numbers, scale_stride(kv))
    return out


def query_blocks(batch: PagedBatch, group: int) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    """int64 ``[blocks, 6]``: row of the table, its first query in the batch, first of the block's
    (query, head) rows and how many, position of the row's first query, keys that the block's last query sees.

    Those with most keys first: they are not to be begun last.
    """
    starts, lens = batch.q_starts.numpy(), batch.kv_lens.numpy()
    q_lens = np.diff(starts)
    counts = -(-q_lens * group // QUERIES)
    row = np.repeat(np.arange(len(lens)), counts)
    first = (np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)) * QUERIES
    size = np.minimum(q_lens[row] * group - first, QUERIES)
    place = (lens - q_lens)[row]
    seen = place + (first + size - 1) // group + 1
    table = np.stack((row, starts[row], first, size, place, seen), 1).astype(np.int64)
    return np.ascontiguousarray(table[np.argsort(-seen, kind="stable")])


def decode_spec(kv: LayerKV, dtype: torch.dtype, heads: int, spec: AttentionSpec) -> Spec:
    return Spec("attention", "make_decode", _shape(kv, dtype, heads, spec))


def extend_spec(kv: LayerKV, dtype: torch.dtype, heads: int, spec: AttentionSpec) -> Spec:
    return Spec("attention", "make_extend", _shape(kv, dtype, heads, spec))


def _shape(kv: LayerKV, dtype: torch.dtype, heads: int, spec: AttentionSpec) -> tuple[int | str, ...]:
    _, kv_heads, page_size, dim = kv.k.shape
    return DTYPES[dtype], KV_DTYPES[kv.k.dtype], dim, page_size, heads // kv_heads, int(spec.softcap > 0)


def _planes(kv: LayerKV) -> tuple[int, ...]:
    return kv.k.data_ptr(), kv.v.data_ptr(), *scale_pointers(kv), kv.k.stride(0) * kv.k.itemsize


def _pages(batch: PagedBatch) -> tuple[int, int]:
    table = batch.page_table
    assert table.stride(1) == 1 or table.shape[1] == 1
    return table.data_ptr(), table.stride(0) * table.itemsize


def _formula(spec: AttentionSpec) -> tuple[int, int, int]:
    return spec.window, team.bits(spec.scale), team.bits(spec.softcap)


def fits(kv: LayerKV) -> bool:
    """A dtype that kernels know, and heads of whole vectors."""
    return kv.k.dtype in KV_DTYPES and kv.k.shape[3] % 16 == 0
