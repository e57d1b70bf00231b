# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Small functions that kernels share, and what the interpreter of Triton 3.9 needs to be right."""

import triton
import triton.language as tl

from chatd_kernels.triton.launch import interpreting

INTERPRETING = tl.constexpr(interpreting())
"""The interpreter's bf16 products are garbage and its roundings to 8 and 16 bits truncate or lose a carry.

Where this is on, operands are widened before a product and values are rounded in float32 before a cast.
"""
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def dot(a, b):
    """a ``[m, k]`` times b ``[k, n]``, float32; float32 operands are not rounded to TF32."""
    if INTERPRETING:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """float32 ``x`` in ``dtype``, to nearest even. fp8 saturates at 448."""
    if dtype == tl.float8e4nv:
        x = tl.minimum(tl.maximum(x, -448.0), 448.0)
    if INTERPRETING:
        if dtype == tl.float8e4nv:
            # Below 2^-6 e4m3 counts in 512ths: adding 1.5 * 2^14 rounds float32 to them.
            fine = (x + 24576.0) - 24576.0
            x = tl.where(tl.abs(x) < 0.015625, fine, _round_bits(x, 20))
        if dtype == tl.bfloat16:
            x = _round_bits(x, 16)
    return x.to(dtype)


@triton.jit
def cast(x, dtype: tl.constexpr):
    """``x`` from the pool in the dtype of a product: exact from 8 bits to 16."""
    if x.dtype == tl.int8:
        # The interpreter takes the bits of an integer for those of a bf16.
        return x.to(tl.float32).to(dtype)
    return x.to(dtype)


@triton.jit
def _round_bits(x, DROP: tl.constexpr):
    """float32 with its lowest ``DROP`` bits rounded away."""
    bits = x.to(tl.int32, bitcast=True)
    bits = bits + ((1 << (DROP - 1)) - 1) + ((bits >> DROP) & 1)
    return ((bits >> DROP) << DROP).to(tl.float32, bitcast=True)


@triton.jit
def tanh(x):
    """Infinite exponentials give 1 and -1; libdevice's own is not in the interpreter."""
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
