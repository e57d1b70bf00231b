"""Linear layers of 4 or 8 bits: weight = scale * code + minimum, in groups of 32 along the input.

The activations are rounded to 8 bits, in the same groups: a group's sum of
products is then integers until its scales are applied. GGUF's Q4_0, Q4_1 and Q8_0 fit without being rounded
again. The same bytes serve one row, where reading them is all the time there is, and hundreds, where a
group's codes are unpacked once for 8 rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chatd_kernels.cpu import team
from chatd_kernels.cpu.forms import DTYPES
from chatd_kernels.cpu.huge import slabs
from chatd_kernels.cpu.library import Library, Spec

GROUP, BLOCK = 32, 16
FEW_ROWS = 16
"""As in `linear_kernels`."""
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Codes:
    """A weight ``[out, in]`` as numbers of ``bits`` bits, 4 or 8.

    ``codes`` uint8 ``[out, groups, 4 * bits]``: with 4 bits, byte ``j`` of a group is input ``j`` in its low
    half and input ``16 + j`` in its high half. ``scale`` and ``minimum`` float16 ``[out, groups]``.
    """

    bits: int
    codes: Array
    scale: Array
    minimum: Array


@dataclass(frozen=True, slots=True)
class Packed:
    """`Codes` as kernels read them: uint8 ``[out / 16, groups, 64 * bits + 64]``; see `linear_kernels`."""

    bits: int
    data: Tensor

    @property
    def outputs(self) -> int:
        return BLOCK * self.data.shape[0]

    @property
    def inputs(self) -> int:
        return GROUP * self.data.shape[1]


def packable(shape: tuple[int, ...]) -> bool:
    """Whole blocks of whole groups."""
    return len(shape) == 2 and shape[0] % BLOCK == 0 and shape[1] % GROUP == 0


def pack(parts: list[Codes]) -> Packed:
    """Weights of one width below each other."""
    bits, groups = parts[0].bits, parts[0].codes.shape[1]
    blocks = [len(part.codes) // BLOCK for part in parts]
    data = slabs.empty((sum(blocks), groups, BLOCK * (4 * bits + 4)))
    at, scales = 0, 4 * bits * BLOCK
    for part, count in zip(parts, blocks, strict=True):
        rows = data[at : at + count]
        # Four bytes of an output lie together, those of 16 outputs side by side.
        words = part.codes.view(np.uint32).reshape(count, BLOCK, groups, bits)
        rows[..., :scales].view(np.uint32).reshape(count, groups, bits, BLOCK)[...] = words.transpose(
            0, 2, 3, 1
        )
        for i, half in enumerate((part.scale, part.minimum)):
            place = rows[..., scales + 2 * BLOCK * i : scales + 2 * BLOCK * (i + 1)].view(np.float16)
            place[...] = half.reshape(count, BLOCK, groups).transpose(0, 2, 1)
        at += count
    return Packed(bits, torch.from_numpy(data))


def quantise(weight: Array, bits: int) -> Codes:
    """The nearest `Codes` of float32 ``[out, in]``: 4 bits between each group's least and largest weight,
    8 bits to both sides of 0.
    """
    groups = weight.reshape(len(weight), -1, GROUP)
    if bits == 8:
        scale = (np.abs(groups).max(-1) / 127).astype(np.float16)
        low = scale.astype(np.float32) * -128
    else:
        low = groups.min(-1)
        scale = ((groups.max(-1) - low) / 15).astype(np.float16)
        low = low.astype(np.float16).astype(np.float32)
    step = np.where(scale == 0, 1, scale.astype(np.float32))[..., None]
    codes = np.clip(np.rint((groups - low[..., None]) / step), 0, (1 << bits) - 1).astype(np.uint8)
    if bits == 4:
        codes = codes[..., :16] | codes[..., 16:] << 4
    return Codes(bits, np.ascontiguousarray(codes), scale, low.astype(np.float16))


def spec(bits: int, dtype: torch.dtype) -> Spec:
    return Spec("linear", "make_linear", (bits, DTYPES[dtype]))


def rows_spec(bits: int) -> Spec:
    return Spec("linear", "make_rows", (bits,))


def linear(library: Library, x: Tensor, weight: Packed, bias: Tensor | None) -> Tensor:
    """x W^T + b, in x's dtype. x ``[n, in]`` float32 or bf16, contiguous; bias float32 ``[out]``."""
    rows, width = x.shape
    groups = width // GROUP
    out = team.empty((rows, weight.outputs), x.dtype)
    count = team.threads()
    # Codes of x, then a scale and a sum for each group; with few rows every thread has its own.
    copies = count if rows <= FEW_ROWS else 1
    scratch = team.empty((copies * rows * groups * (GROUP + 8),), torch.uint8)
    at = scratch.data_ptr()
    run = team.run if rows <= FEW_ROWS else team.run_phases
    run(
        library.body(spec(weight.bits, x.dtype)),
        count,
        x.data_ptr(),
        weight.data.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        out.data_ptr(),
        at,
        at + copies * rows * width,
        rows,
        groups,
        weight.outputs // BLOCK,
    )
    return out


def rows_of(library: Library, weight: Packed, rows: Tensor) -> Tensor:
    """Rows ``[n, in]`` of the weight, float32: an embedding that is also the head. ``rows`` int64 ``[n]``."""
    out = torch.empty((len(rows), weight.inputs))
    body = library.body(rows_spec(weight.bits))
    team.run(
        body, 1, rows.data_ptr(), weight.data.data_ptr(), out.data_ptr(), len(rows), weight.inputs // GROUP
    )
    return out
