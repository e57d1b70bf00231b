"""y = x W^T + b, with the weights kept in the form that multiplies fastest on their device."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Layer(Protocol):
    """A linear layer, whatever its weights are kept as. ``nbytes`` is what they take up."""

    out_features: int
    nbytes: int

    def __call__(self, x: Tensor) -> Tensor:
        """``[n, in]`` -> ``[n, out]``."""
        ...


class Embedding(Protocol):
    """``nbytes`` is 0 if the weights are another's."""

    dtype: torch.dtype
    nbytes: int

    def __call__(self, ids: Tensor) -> Tensor:
        """int64 ``[n]`` -> ``[n, hidden]``."""
        ...


class TableEmbedding:
    """Rows of ``table`` ``[vocab, hidden]``."""

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.dtype = table.dtype
        self.nbytes = table.nbytes

    def __call__(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.table)


class Linear:
    """weight ``[out, in]``, bias ``[out]`` or none. x is ``[n, in]`` in the weight's dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features = weight.shape[0]
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self._bias = bias
        self._packed = can_pack(weight)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS) if self._packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed:
            # 120 layers of SmolLM2, 1 / 16 / 512 rows: 5.4 / 9.0 / 121 ms; F.linear 11.7 / 15.4 / 141 ms
            # (2 cores of a Zen 5, torch 2.13).
            out: Tensor = torch.ops.mkldnn._linear_pointwise.default(
                x, self._weight, self._bias, "none", [], ""
            )
            return out
        return F.linear(x, self._weight, self._bias)


_PACK_ROWS = 16
"""Batch size that oneDNN lays the packed weight out for."""


def multiplies_bf16() -> bool:
    """Whether this CPU has bf16 products and a torch that uses them."""
    return bool(torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def can_pack(weight: Tensor) -> bool:
    """bf16 on a CPU that multiplies it natively."""
    return weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and multiplies_bf16()
