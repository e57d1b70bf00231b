"""Norms and SwiGLU's product."""

import torch
from torch import Tensor

from chatd_kernels.cpu import team
from chatd_kernels.cpu.forms import DTYPES, share
from chatd_kernels.cpu.library import Library, Spec

LANES = 16


def fits(*tensors: Tensor) -> bool:
    """Contiguous, of one dtype that kernels know, rows a multiple of 16."""
    dtype = tensors[0].dtype
    return (
        dtype in DTYPES
        and tensors[0].shape[-1] % (2 * LANES) == 0
        and all(tensor.dtype == dtype and tensor.is_contiguous() for tensor in tensors)
    )


def specs(dtype: torch.dtype) -> list[Spec]:
    name = DTYPES[dtype]
    return [
        *(Spec("norm", "make_rms_norm", (name, add)) for add in (0, 1)),
        Spec("norm", "make_silu_mul", (name,)),
    ]


def rms_norm(library: Library, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """See `Ops.rms_norm` and, with a residual, `Ops.add_rms_norm`."""
    out = team.empty(x.shape, x.dtype)
    rows, width = x.shape
    add = residual is not None
    body = library.body(Spec("norm", "make_rms_norm", (DTYPES[x.dtype], int(add))))
    kept = 0 if residual is None else residual.data_ptr()
    team.run(
        body,
        share(x.numel()),
        x.data_ptr(),
        kept,
        weight.data_ptr(),
        out.data_ptr(),
        rows,
        width,
        team.bits(eps),
    )
    return out


def silu_mul(library: Library, gate_up: Tensor) -> Tensor:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = team.empty((rows, width), gate_up.dtype)
    body = library.body(Spec("norm", "make_silu_mul", (DTYPES[gate_up.dtype],)))
    team.run(body, share(gate_up.numel()), gate_up.data_ptr(), out.data_ptr(), rows, width)
    return out
