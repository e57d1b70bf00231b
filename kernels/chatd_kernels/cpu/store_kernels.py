"""Rotary embedding, and K and V into their slots; see `store`."""

from typing import Any

from chatd_kernels.cpu.norm_kernels import SIZES, reader, writer
from chatd_kernels.cpu.simd import (
    at_least,
    device,
    floats,
    floor,
    fma,
    from_bf16,
    largest,
    load,
    load_i64,
    magnitude,
    select,
    splat,
    store,
    store_f32,
    swap_halves,
    take,
    to_bf16,
    to_int,
    to_octets,
    total,
)

KV_SIZES = {"f32": 4, "bf16": 2, "int8": 1}


def make_rope_store(dtype: str, kv_dtype: str, dim: int) -> Any:
    size, kv_size, f32 = SIZES[dtype], KV_SIZES[kv_dtype], floats(dim)
    read, write = reader(dtype, dim), writer(dtype)
    put = quantising(dim) if kv_dtype == "int8" else plain(kv_dtype)

    @device
    def rotate(x, cos, sin):  # type: ignore[no-untyped-def]
        return fma(x, cos, swap_halves(x) * sin)

    @device
    def rounded(x):  # type: ignore[no-untyped-def]
        """To the activations' dtype, which is what is stored."""
        if dtype == "bf16":
            return from_bf16(to_bf16(x))
        return x

    def rope_store(p):  # type: ignore[no-untyped-def]
        qkv, cos_at, sin_at, out = load_i64(p + 24), load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
        k, v, k_scale, v_scale = load_i64(p + 56), load_i64(p + 64), load_i64(p + 72), load_i64(p + 80)
        page_bytes, pages, offsets = load_i64(p + 88), load_i64(p + 96), load_i64(p + 104)
        tokens, heads, kv_heads, page_size = (
            load_i64(p + 112),
            load_i64(p + 120),
            load_i64(p + 128),
            load_i64(p + 136),
        )
        scale_bytes = load_i64(p + 144)
        token = take(p)
        while token < tokens:
            cos, sin = load(f32, cos_at + token * dim * 4), load(f32, sin_at + token * dim * 4)
            x = qkv + token * (heads + 2 * kv_heads) * dim * size
            for head in range(heads):
                write(
                    out + (token * heads + head) * dim * size, rotate(read(x + head * dim * size), cos, sin)
                )
            page, offset = load_i64(pages + token * 8), load_i64(offsets + token * 8)
            for head in range(kv_heads):
                slot = head * page_size + offset
                at, scale = page * page_bytes + slot * dim * kv_size, page * scale_bytes + slot * 4
                key = x + (heads + head) * dim * size
                put(k + at, k_scale + scale, rounded(rotate(read(key), cos, sin)))
                put(v + at, v_scale + scale, read(key + kv_heads * dim * size))
            token = take(p)

    return rope_store


def plain(kv_dtype: str) -> Any:
    write = writer(kv_dtype)

    @device
    def put(at, scale, x):  # type: ignore[no-untyped-def]
        write(at, x)

    return put


def quantising(dim: int) -> Any:
    """As `chatd_kernels.ops.LayerKV` says."""
    f32 = floats(dim)

    @device
    def put(at, scale, x):  # type: ignore[no-untyped-def]
        peak = largest(magnitude(x))
        inverse = 127.0 / peak if peak > 0 else 0.0
        store(at, to_octets(to_int(floor(x * splat(f32, inverse) + splat(f32, 0.5)))))
        one, none = splat(f32, 1.0), splat(f32, 0.0)
        if total(select(at_least(x, x), none, one)) > 0:
            peak = total(x)  # NaN
        store_f32(scale, peak / 127.0)

    return put
