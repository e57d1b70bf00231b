# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Moving pages: slots of one page to another (copy-on-write), records to and from a staging buffer.

What moves is bits: every dtype passes as integers of its size. All layers go in one launch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from chatd_kernels.triton.launch import Launcher, ceil_div

BLOCK_BYTES = 8192
"""Of one program at a time: 4 loads of 16 bytes in flight for each of 128 threads."""
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit(do_not_specialize=["src", "dst", "slots"])
def copy_slots_kernel(
    pool_ptr,  # [num_pages, planes, page_size, dim]
    scales_ptr,  # [num_pages, planes, page_size]; anything unless SCALED
    src,
    dst,
    slots,
    page_stride,
    scale_stride,
    page_size,
    dim,
    SCALED: tl.constexpr,
    SLOTS_BLOCK: tl.constexpr,  # a power of two >= page_size
    BLOCK: tl.constexpr,
):
    """One plane (layer, K or V, head) a program."""
    plane = tl.program_id(0).to(tl.int64)
    begin = pool_ptr + plane * page_size * dim
    source = begin + src.to(tl.int64) * page_stride
    target = begin + dst.to(tl.int64) * page_stride
    for first in range(0, slots * dim, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < slots * dim
        tl.store(target + at, tl.load(source + at, mask=inside), mask=inside)
    if SCALED:
        slot = tl.arange(0, SLOTS_BLOCK)
        begin = scales_ptr + plane * page_size + slot
        scales = tl.load(begin + src.to(tl.int64) * scale_stride, mask=slot < slots)
        tl.store(begin + dst.to(tl.int64) * scale_stride, scales, mask=slot < slots)


@triton.jit
def move_pages_kernel(
    pool_ptr,  # [num_pages, record_len]
    records_ptr,  # [m, record_len], contiguous
    pages_ptr,  # [m] int64
    page_stride,
    record_len,
    SCATTER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """records[i] = pool[pages[i]], or with SCATTER the other way round."""
    i = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < record_len
    in_pool = pool_ptr + tl.load(pages_ptr + i) * page_stride + at
    in_record = records_ptr + i * record_len + at
    if SCATTER:
        tl.store(in_pool, tl.load(in_record, mask=inside), mask=inside)
    else:
        tl.store(in_record, tl.load(in_pool, mask=inside), mask=inside)


def copy_slots(launch: Launcher, pool: Tensor, src: int, dst: int, slots: int, scales: Tensor | None) -> None:
    _, layers, _, kv_heads, page_size, dim = pool.shape
    bits = _as_bits(pool)
    launch(
        copy_slots_kernel,
        (layers * 2 * kv_heads,),
        num_warps=4,
        pool_ptr=bits,
        scales_ptr=bits if scales is None else scales,
        src=src,
        dst=dst,
        slots=slots,
        page_stride=pool.stride(0),
        scale_stride=0 if scales is None else scales.stride(0),
        page_size=page_size,
        dim=dim,
        SCALED=scales is not None,
        SLOTS_BLOCK=64,
        BLOCK=2048 // pool.dtype.itemsize,
    )


def gather_pages(launch: Launcher, pool: Tensor, pages: Tensor, out: Tensor | None) -> Tensor:
    shape = (len(pages), *pool.shape[1:])
    records = torch.empty(shape, dtype=pool.dtype, device=pool.device) if out is None else out
    assert records.shape == shape
    assert records.is_contiguous()
    _move(launch, pool, pages, records, scatter=False)
    return records


def scatter_pages(launch: Launcher, pool: Tensor, pages: Tensor, records: Tensor) -> None:
    _move(launch, pool, pages, records.contiguous(), scatter=True)


def _move(launch: Launcher, pool: Tensor, pages: Tensor, records: Tensor, *, scatter: bool) -> None:
    assert pool[0].is_contiguous()
    record_len, block = pool[0].numel(), BLOCK_BYTES // pool.dtype.itemsize
    launch(
        move_pages_kernel,
        (len(pages), ceil_div(record_len, block)),
        num_warps=4,
        pool_ptr=_as_bits(pool),
        records_ptr=_as_bits(records),
        pages_ptr=pages,
        page_stride=pool.stride(0),
        record_len=record_len,
        SCATTER=scatter,
        BLOCK=block,
    )


def _as_bits(x: Tensor) -> Tensor:
    return x.view(_BITS[x.dtype.itemsize])
