"""Norms and activations."""

import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm (Zhang and Sennrich 2019), float32 inside."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """SwiGLU's product (Shazeer 2020)."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)
