"""Rotary embedding, and K and V into their slots."""

import torch
from torch import Tensor

from chatd_kernels.cpu import team
from chatd_kernels.cpu.forms import DTYPES, KV_DTYPES, share
from chatd_kernels.cpu.library import Library, Spec
from chatd_kernels.ops import LayerKV


def fits(kv: LayerKV, x: Tensor) -> bool:
    """Dtypes that kernels know, and heads of whole vectors."""
    return x.dtype in DTYPES and kv.k.dtype in KV_DTYPES and kv.k.shape[3] % 16 == 0 and x.is_contiguous()


def spec(kv: LayerKV, dtype: torch.dtype) -> Spec:
    return Spec("store", "make_rope_store", (DTYPES[dtype], KV_DTYPES[kv.k.dtype], kv.k.shape[3]))


def rope_store(
    library: Library,
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    kv: LayerKV,
    slot_pages: Tensor,
    slot_offsets: Tensor,
) -> Tensor:
    """See `Ops.rope_store_kv`."""
    _, kv_heads, page_size, dim = kv.k.shape
    tokens, heads = len(qkv), qkv.shape[1] // dim - 2 * kv_heads
    out = team.empty((tokens, heads, dim), qkv.dtype)
    team.run(
        library.body(spec(kv, qkv.dtype)),
        share(qkv.numel()),
        qkv.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        out.data_ptr(),
        kv.k.data_ptr(),
        kv.v.data_ptr(),
        *scale_pointers(kv),
        kv.k.stride(0) * kv.k.itemsize,
        slot_pages.data_ptr(),
        slot_offsets.data_ptr(),
        tokens,
        heads,
        kv_heads,
        page_size,
        scale_stride(kv),
    )
    return out


def scale_pointers(kv: LayerKV) -> tuple[int, int]:
    """Of an int8 pool; zeros otherwise."""
    if kv.k_scale is None or kv.v_scale is None:
        return 0, 0
    return kv.k_scale.data_ptr(), kv.v_scale.data_ptr()


def scale_stride(kv: LayerKV) -> int:
    """Bytes between pages."""
    return 0 if kv.k_scale is None else kv.k_scale.stride(0) * kv.k_scale.itemsize
