# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Rotary embedding of q and k fused with the scatter of k and v into their slots, quantised on the way."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from chatd_kernels.ops import LayerKV
from chatd_kernels.triton.device import narrow
from chatd_kernels.triton.launch import Launcher, ceil_div, next_power

HEADS = 8
"""Heads of one program: a Llama-3 token (32 + 2 x 8 heads of 128) is spread over 6 programs."""


@triton.jit
def _quantise(x):
    """x float32 ``[heads, dims]``: codes, and scales ``[heads]``; the formula is in `LayerKV`."""
    # The sum is 0, or NaN if anything is not finite, which a maximum would hide.
    peak = tl.max(tl.abs(x), 1) + tl.sum(x * 0.0, 1)
    inverse = tl.where(peak == 0.0, 0.0, tl.div_rn(127.0, tl.where(peak == 0.0, 1.0, peak)))
    return tl.floor(x * inverse[:, None] + 0.5).to(tl.int8), tl.div_rn(peak, 127.0)


@triton.jit
def rope_store_kernel(
    qkv_ptr,  # [n, q_heads + 2 * kv_heads, DIM]
    cos_ptr,  # [n, DIM] float32
    sin_ptr,  # [n, DIM] float32, its first half negated
    q_ptr,  # [n, q_heads, DIM], contiguous
    k_ptr,  # [num_pages, kv_heads, page_size, DIM]
    v_ptr,  # the same
    k_scale_ptr,  # [num_pages, kv_heads, page_size] float32; anything unless SCALED
    v_scale_ptr,  # the same
    pages_ptr,  # [n] int64
    slots_ptr,  # [n] int64
    q_heads,
    kv_heads,
    page_size,
    qkv_stride,
    page_stride,
    scale_stride,
    DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    SCALED: tl.constexpr,
):
    """rotated = x * cos + swap_halves(x) * sin (Su et al. 2021, half-split form) for heads of a token."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dim = tl.arange(0, DIM_BLOCK)
    swapped = tl.where(dim < DIM // 2, dim + DIM // 2, dim - DIM // 2)
    real = dim < DIM
    alive = (head < q_heads + 2 * kv_heads)[:, None] & real[None, :]
    source = qkv_ptr + token * qkv_stride + head[:, None] * DIM
    x = tl.load(source + dim[None, :], mask=alive, other=0.0).to(tl.float32)
    y = tl.load(source + swapped[None, :], mask=alive, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + token * DIM + dim, mask=real, other=0.0)
    sin = tl.load(sin_ptr + token * DIM + dim, mask=real, other=0.0)
    x = tl.where((head < q_heads + kv_heads)[:, None], x * cos[None, :] + y * sin[None, :], x)
    x = narrow(x, qkv_ptr.dtype.element_ty)
    q_at = (token * q_heads + head[:, None]) * DIM + dim[None, :]
    tl.store(q_ptr + q_at, x, mask=(head < q_heads)[:, None] & real[None, :])

    is_v = head >= q_heads + kv_heads
    kv_head = head - q_heads - tl.where(is_v, kv_heads, 0)
    is_k = (kv_head >= 0) & (head < q_heads + kv_heads)
    is_v = is_v & (kv_head < kv_heads)
    page = tl.load(pages_ptr + token)
    row = kv_head * page_size + tl.load(slots_ptr + token)
    x = x.to(tl.float32)
    if SCALED:
        codes, scales = _quantise(x)
        tl.store(k_scale_ptr + page * scale_stride + row, scales, mask=is_k)
        tl.store(v_scale_ptr + page * scale_stride + row, scales, mask=is_v)
    else:
        codes = narrow(x, k_ptr.dtype.element_ty)
    at = page * page_stride + row[:, None] * DIM + dim[None, :]
    tl.store(k_ptr + at, codes, mask=is_k[:, None] & real[None, :])
    tl.store(v_ptr + at, codes, mask=is_v[:, None] & real[None, :])


def rope_store_kv(
    launch: Launcher,
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    kv: LayerKV,
    slot_pages: Tensor,
    slot_offsets: Tensor,
) -> Tensor:
    n = len(qkv)
    _, kv_heads, page_size, dim = kv.k.shape
    q_heads = qkv.shape[1] // dim - 2 * kv_heads
    q = torch.empty(n, q_heads, dim, dtype=qkv.dtype, device=qkv.device)
    scales = (kv.k, kv.v) if kv.k_scale is None or kv.v_scale is None else (kv.k_scale, kv.v_scale)
    launch(
        rope_store_kernel,
        (n, ceil_div(q_heads + 2 * kv_heads, HEADS)),
        num_warps=4,
        qkv_ptr=qkv,
        cos_ptr=cos,
        sin_ptr=sin,
        q_ptr=q,
        k_ptr=kv.k,
        v_ptr=kv.v,
        k_scale_ptr=scales[0],
        v_scale_ptr=scales[1],
        pages_ptr=slot_pages,
        slots_ptr=slot_offsets,
        q_heads=q_heads,
        kv_heads=kv_heads,
        page_size=page_size,
        qkv_stride=qkv.stride(0),
        page_stride=kv.k.stride(0),
        scale_stride=scales[0].stride(0),
        DIM=dim,
        DIM_BLOCK=next_power(dim),
        HEADS=HEADS,
        SCALED=kv.k_scale is not None,
    )
    return q
