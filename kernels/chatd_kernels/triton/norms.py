# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""RMSNorm with residual add, and SwiGLU's product. Both move each byte once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from chatd_kernels.triton.device import narrow
from chatd_kernels.triton.launch import Launcher, ceil_div, next_power


@triton.jit
def rms_norm_kernel(
    x_ptr,  # [n, hidden]
    residual_ptr,  # [n, hidden], updated; anything where ADD is off
    weight_ptr,  # [hidden]
    out_ptr,  # [n, hidden], contiguous
    hidden,
    x_stride,
    residual_stride,
    eps,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019); ADD: of residual += x."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < hidden
    x = tl.load(x_ptr + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        residual = residual_ptr + row * residual_stride + at
        total = x + tl.load(residual, mask=inside, other=0.0).to(tl.float32)
        total = narrow(total, residual_ptr.dtype.element_ty)
        tl.store(residual, total, mask=inside)
        # The norm sees what the residual stream keeps, rounding included.
        x = total.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, 0) / hidden + eps)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * hidden + at, narrow(x * inverse * weight, out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def silu_mul_kernel(
    gate_up_ptr,  # [n, 2 * ffn]
    out_ptr,  # [n, ffn], contiguous
    ffn,
    stride,
    BLOCK: tl.constexpr,
):
    """silu(gate) * up, silu(x) = x / (1 + exp(-x)) (Shazeer 2020)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < ffn
    gate = tl.load(gate_up_ptr + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * stride + ffn + at, mask=inside, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * ffn + at, narrow(out, out_ptr.dtype.element_ty), mask=inside)


def rms_norm(launch: Launcher, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """``residual`` is updated in place if there is one."""
    n, hidden = x.shape
    x = _rows(x)
    out = torch.empty(n, hidden, dtype=x.dtype, device=x.device)
    block = next_power(hidden)
    launch(
        rms_norm_kernel,
        (n,),
        num_warps=min(16, max(1, block // 512)),
        x_ptr=x,
        residual_ptr=x if residual is None else residual,
        weight_ptr=weight,
        out_ptr=out,
        hidden=hidden,
        x_stride=x.stride(0),
        residual_stride=0 if residual is None else residual.stride(0),
        eps=eps,
        ADD=residual is not None,
        BLOCK=block,
    )
    return out


def silu_mul(launch: Launcher, gate_up: Tensor) -> Tensor:
    n, ffn = gate_up.shape[0], gate_up.shape[1] // 2
    gate_up = _rows(gate_up)
    out = torch.empty(n, ffn, dtype=gate_up.dtype, device=gate_up.device)
    block = min(1024, next_power(ffn))
    launch(
        silu_mul_kernel,
        (n, ceil_div(ffn, block)),
        num_warps=4,
        gate_up_ptr=gate_up,
        out_ptr=out,
        ffn=ffn,
        stride=gate_up.stride(0),
        BLOCK=block,
    )
    return out


def _rows(x: Tensor) -> Tensor:
    """The kernels take any stride between rows, none within."""
    return x if x.stride(-1) == 1 else x.contiguous()
