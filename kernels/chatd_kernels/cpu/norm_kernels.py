"""Norms and SwiGLU's product, a row at a time; see `norms`."""

from typing import Any

from chatd_kernels.cpu.simd import (
    LANES,
    device,
    exp,
    floats,
    fma,
    from_bf16,
    halves,
    load,
    load_f64,
    load_i64,
    splat,
    store,
    take,
    to_bf16,
    total,
)

SIZES = {"f32": 4, "bf16": 2}


def reader(dtype: str, n: int) -> Any:
    """``read(address)`` -> float32 ``[n]``."""
    kind = halves(n) if dtype == "bf16" else floats(n)

    @device
    def read(at):  # type: ignore[no-untyped-def]
        if dtype == "bf16":
            return from_bf16(load(kind, at))
        return load(kind, at)

    return read


def writer(dtype: str) -> Any:
    """``write(address, values)``."""

    @device
    def write(at, values):  # type: ignore[no-untyped-def]
        if dtype == "bf16":
            store(at, to_bf16(values))
        else:
            store(at, values)

    return write


def make_rms_norm(dtype: str, add: int) -> Any:
    size, f32 = SIZES[dtype], floats(LANES)
    read, write = reader(dtype, LANES), writer(dtype)

    def rms_norm(p):  # type: ignore[no-untyped-def]
        x, residual, weight, out = load_i64(p + 24), load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
        rows, width, eps = load_i64(p + 56), load_i64(p + 64), load_f64(p + 72)
        row = take(p)
        while row < rows:
            at = row * width * size
            squares = splat(f32, 0.0)
            for i in range(0, width * size, LANES * size):
                values = read(x + at + i)
                if add:
                    # What is kept is what is normed: rounded to the residual's dtype.
                    write(residual + at + i, values + read(residual + at + i))
                    values = read(residual + at + i)
                squares = fma(values, values, squares)
            source = residual if add else x
            factor = splat(f32, 1.0 / (total(squares) / width + eps) ** 0.5)
            for i in range(0, width * size, LANES * size):
                write(out + at + i, read(source + at + i) * factor * read(weight + i))
            row = take(p)

    return rms_norm


def make_silu_mul(dtype: str) -> Any:
    size, f32 = SIZES[dtype], floats(LANES)
    read, write = reader(dtype, LANES), writer(dtype)
    step = LANES * size

    @device
    def silu(x):  # type: ignore[no-untyped-def]
        return x / (splat(f32, 1.0) + exp(f32, splat(f32, 0.0) - x))

    def silu_mul(p):  # type: ignore[no-untyped-def]
        gate_up, out, rows, width = load_i64(p + 24), load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
        row = take(p)
        while row < rows:
            gate, up, to = (
                gate_up + 2 * row * width * size,
                gate_up + (2 * row + 1) * width * size,
                out + row * width * size,
            )
            for i in range(0, width * size, step):
                write(to + i, silu(read(gate + i)) * read(up + i))
            row = take(p)

    return silu_mul
