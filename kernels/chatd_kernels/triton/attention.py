"""Host side of attention: what a step's plan fixes, block shapes, and the launches."""

from dataclasses import dataclass

import torch
from torch import Tensor

from chatd_kernels.ops import AttentionSpec, LayerKV, PagedBatch
from chatd_kernels.triton.attention_kernels import attend_kernel, merge_kernel
from chatd_kernels.triton.launch import Launcher, Target, next_power

MAX_SPLITS = 32
SPLIT_LEN = 256
"""Fewest keys worth a split: below, its float32 partial result costs more than its share of K and V."""
MIN_ROWS = 16
"""The smallest tile there are matrix instructions for."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows and keys of a tile, warps, and stages of the load pipeline."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Plan:
    """``one_query``: decode. Nothing in it is read back from the device."""

    batch: PagedBatch
    spec: AttentionSpec
    one_query: bool


def attend(
    launch: Launcher, target: Target, q: Tensor, kv: LayerKV, plan: Plan, out: Tensor | None
) -> Tensor:
    """q ``[n, h, d]``, any stride between tokens; the answer is contiguous."""
    n, heads, dim = q.shape
    _, kv_heads, page_size, _ = kv.k.shape
    group, rows = heads // kv_heads, len(plan.batch.kv_lens)
    shape = tile_shape(target, dim, group, plan, q.dtype, kv.k.dtype)
    tiles = n if plan.one_query else n // (shape.rows // group) + rows
    splits = split_count(target, tiles * kv_heads, plan)
    if q.stride()[1:] != (dim, 1):
        q = q.contiguous()
    if out is None:
        out = torch.empty(n, heads, dim, dtype=q.dtype, device=q.device)
    part = log = out
    if splits > 1:
        part = torch.empty(n, heads, splits, dim, dtype=torch.float32, device=q.device)
        log = torch.empty(n, heads, splits, dtype=torch.float32, device=q.device)
    scales = (kv.k, kv.v) if kv.k_scale is None or kv.v_scale is None else (kv.k_scale, kv.v_scale)
    launch(
        attend_kernel,
        (tiles, kv_heads, splits),
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        q_ptr=q,
        k_ptr=kv.k,
        v_ptr=kv.v,
        k_scale_ptr=scales[0],
        v_scale_ptr=scales[1],
        table_ptr=plan.batch.page_table,
        kv_lens_ptr=plan.batch.kv_lens,
        q_starts_ptr=plan.batch.q_starts,
        out_ptr=part,
        log_ptr=log,
        rows=rows,
        kv_heads=kv_heads,
        scale=plan.spec.scale,
        softcap=plan.spec.softcap,
        window=plan.spec.window,
        q_stride=q.stride(0),
        page_stride=kv.k.stride(0),
        scale_stride=scales[0].stride(0),
        table_stride=plan.batch.page_table.stride(0),
        page_shift=page_size.bit_length() - 1,
        GROUP=group,
        DIM=dim,
        DIM_BLOCK=next_power(dim),
        ROWS=shape.rows,
        KEYS=shape.keys,
        ONE_QUERY=plan.one_query,
        SPLIT=splits > 1,
        WINDOWED=plan.spec.window > 0,
        CAPPED=plan.spec.softcap > 0,
        SCALED=kv.k_scale is not None,
    )
    if splits > 1:
        _merge(launch, part, log, out)
    return out


def _merge(launch: Launcher, part: Tensor, log: Tensor, out: Tensor) -> None:
    n, heads, splits, dim = part.shape
    launch(
        merge_kernel,
        (n * heads,),
        num_warps=4,
        part_ptr=part,
        log_ptr=log,
        out_ptr=out,
        DIM=dim,
        DIM_BLOCK=next_power(dim),
        SPLITS=splits,
    )


def split_count(target: Target, programs: int, plan: Plan) -> int:
    """Splits, a power of two, so that about two programs run on each multiprocessor.

    Depends on host-side bounds only: under a graph, whose bound is the context length, it is fixed.
    """
    longest = plan.batch.max_kv_len
    if plan.spec.window:
        longest = min(longest, plan.spec.window + plan.batch.max_q_len)
    shortest = 32 if target.kind == "interpreter" else SPLIT_LEN
    wanted = min(2 * target.processors // max(programs, 1), longest // shortest, MAX_SPLITS)
    return next_power(wanted + 1) // 2 if wanted > 1 else 1


def tile_shape(
    target: Target, dim: int, group: int, plan: Plan, dtype: torch.dtype, kv_dtype: torch.dtype
) -> Shape:
    """The fixed table. Unmeasured: chosen by `compile_check` for no spills and the most in flight."""
    queries = 1 if plan.one_query else plan.batch.max_q_len
    least = max(MIN_ROWS, next_power(group))
    wanted = max(least, min(next_power(queries * group), 128))
    row_bytes = next_power(dim) * dtype.itemsize
    if target.kind == "interpreter":
        return Shape(max(least, min(wanted, 64)), 32, 1, 1)
    if target.kind == "hip":
        return _hip_shape(wanted, least, row_bytes)
    if wanted <= 64:
        return _short_shape(target, wanted, row_bytes)
    if row_bytes > 256:
        # Half the rows where 128 spill: the accumulator alone is 128 registers of 256 threads.
        rows, warps = {90: (128, 8), 100: (64, 4)}.get(int(target.arch), (64, 8))
        return Shape(max(rows, least), 32, warps, 3)
    if target.arch == 100 and row_bytes <= 128:
        return Shape(wanted, 32, 8, 2)
    if target.arch == 80:
        # Widening 8-bit KV to bf16 takes registers that 128 rows do not leave.
        return Shape(max(64, least), 64, 4, 3) if kv_dtype.itemsize == 1 else Shape(wanted, 32, 8, 3)
    return Shape(wanted, 64, 8, 3)


def _short_shape(target: Target, rows: int, row_bytes: int) -> Shape:
    """Decode and short turns: bytes in flight count, not products.

    Page numbers are loaded a stage before K and V: it takes 3 stages to hide them, 5 to also load a tile of
    K and V ahead.
    """
    keys = 32 if row_bytes > 256 else 64
    stages = 5 if rows <= 32 else 3
    return Shape(rows, keys, 8 if target.arch == 80 and row_bytes > 256 else 4, stages)


def _hip_shape(wanted: int, least: int, row_bytes: int) -> Shape:
    """64 KiB of shared memory and 512 registers a lane: short tiles of keys, and no pipeline of loads."""
    rows = max(least, min(wanted, 64 if row_bytes > 256 else 128))
    return Shape(rows, 32, 8 if rows * row_bytes > 64 * 256 else 4, 1)
