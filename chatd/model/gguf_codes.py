"""GGUF's plain quantised blocks, 32 weights each, as codes of scale * code + minimum.

Q4_0 is d (q - 8) and Q8_0 d q with a signed q: as minima -8 d and -128 d, which float16 holds exactly.
"""

from typing import Any

import numpy as np

from chatd_kernels.cpu.linear import Codes

Array = np.ndarray[Any, np.dtype[Any]]

Q4_0, Q4_1, Q8_0 = 2, 3, 8
"""GGML's numbers for the types."""
BITS = {Q4_0: 4, Q4_1: 4, Q8_0: 8}
_TYPES = {
    Q4_0: np.dtype([("d", "<f2"), ("q", "u1", 16)]),
    Q4_1: np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]),
    Q8_0: np.dtype([("d", "<f2"), ("q", "u1", 32)]),
}


def codes(kind: int, raw: Array, order: Array | None) -> Codes:
    """``raw`` uint8 ``[out, bytes of a row]``; ``order``: its rows that are wanted, None for all."""
    blocks = raw.view(_TYPES[kind])
    if order is not None:
        blocks = blocks[order]
    scale, code = blocks["d"], np.ascontiguousarray(blocks["q"])
    if kind == Q4_1:
        return Codes(4, code, scale, blocks["m"])
    if kind == Q4_0:
        return Codes(4, code, scale, scale * np.float16(-8))
    return Codes(8, code ^ 0x80, scale, scale * np.float16(-128))
