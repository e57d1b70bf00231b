"""The tensors of one step: everything the decoder may look at besides weights and KV."""

from dataclasses import dataclass

from torch import Tensor

from chatd_kernels.ops import PagedBatch


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """``n`` tokens: first one for each decoding row, then the extending rows', row by row.

    ``tokens``, ``positions``, ``slot_pages`` and ``slot_offsets`` int64 ``[n]``; ``sample_at`` int64 ``[s]``:
    the tokens whose logits are wanted. ``decode`` covers tokens ``0:decode_len``, ``extend`` the others.
    """

    tokens: Tensor
    positions: Tensor
    slot_pages: Tensor
    slot_offsets: Tensor
    sample_at: Tensor
    decode: PagedBatch | None
    extend: PagedBatch | None
    decode_len: int
