"""Weights in 4 or 8 bits on a CPU: which form a file asks for, and layers made of its codes.

The codes are those of `chatd_kernels.cpu.linear`: GGUF's Q4_0, Q4_1 and Q8_0 go in as they are, anything
else is rounded to them. The head, and an embedding that is also the head, always have 8 bits.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from chatd.model.tensors import TensorSource
from chatd_kernels.cpu import linear as cpu_linear
from chatd_kernels.cpu.library import Progress, shared

HEAD_BITS = 8


class QuantLinear:
    """As `chatd.model.linear.Linear`; x is float32."""

    def __init__(self, weight: cpu_linear.Packed, bias: Tensor | None = None) -> None:
        self.out_features = weight.outputs
        self.nbytes = weight.data.nbytes + (0 if bias is None else bias.nbytes)
        self._library = shared()
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return cpu_linear.linear(self._library, x, self._weight, self._bias)

    def rows(self, ids: Tensor) -> Tensor:
        """Of the weight, float32 ``[n, in]``. ``ids`` int64 ``[n]``."""
        return cpu_linear.rows_of(self._library, self._weight, ids)


class TiedEmbedding:
    """Rows of the head."""

    dtype = torch.float32
    nbytes = 0

    def __init__(self, head: QuantLinear) -> None:
        self._head = head

    def __call__(self, ids: Tensor) -> Tensor:
        return self._head.rows(ids)


def quant_linear(
    source: TensorSource, names: Sequence[str], bits: int, bias: Tensor | None = None
) -> QuantLinear | None:
    """Tensors below each other as one layer; None if their sizes are no whole blocks."""
    shapes = [source.shape(name) or () for name in names]
    if not all(cpu_linear.packable(shape) for shape in shapes):
        return None
    return QuantLinear(cpu_linear.pack([_codes(source, name, bits) for name in names]), bias)


def _codes(source: TensorSource, name: str, bits: int) -> cpu_linear.Codes:
    found = source.codes(name)
    if found is not None and found.bits == bits:
        return found
    shape = source.shape(name)
    assert shape is not None
    weight = torch.empty(shape)
    source.read_into(name, weight)
    return cpu_linear.quantise(weight.numpy(), bits)


def quant_refusal() -> str:
    """Why weights cannot be codes on this machine; empty if they can."""
    try:
        shared()
    except (ImportError, RuntimeError) as error:
        return f"the CPU kernels cannot be had here: {error}"
    return ""


def multiplies_bytes() -> bool:
    """Whether codes are the fastest form here: sums of products of bytes are one instruction."""
    return not quant_refusal() and shared().isa.bytes


def natural_bits(source: TensorSource) -> int:
    """4 if the layers of the file have 4 bits in a form that is kept as it is; else 8, which loses next to
    nothing of any.
    """
    found = source.code_bits("blk.0.ffn_down.weight")
    return 4 if found == 4 else 8


def compile_kernels(bits: int, progress: Progress) -> None:
    """What such weights are multiplied with, if this machine has not compiled it yet."""
    specs = [cpu_linear.spec(form, torch.float32) for form in (bits, HEAD_BITS)]
    shared().compile([*specs, cpu_linear.rows_spec(HEAD_BITS)], progress)
