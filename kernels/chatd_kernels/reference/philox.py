"""Philox4x32-10, a counter-based random number generator (Salmon et al. 2011)."""

import torch
from torch import Tensor

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF


def philox(key: Tensor, counter: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four words for 64-bit keys and 128-bit counters whose upper half is 0.

    key and counter int64 of one shape; answers are int64 in 0..2^32-1.
    """
    k0, k1 = key & _LOW, (key >> 32) & _LOW
    c0, c1 = counter & _LOW, (counter >> 32) & _LOW
    c2 = c3 = torch.zeros_like(c0)
    for _ in range(10):
        # A product of two 32-bit words wraps into the sign bit at worst; masking after the shift restores it.
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (p1 >> 32 & _LOW) ^ c1 ^ k0, p1 & _LOW, (p0 >> 32 & _LOW) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """One number in [0, 1) per (seed, position): the first word over 2^32, float64 ``[r]``."""
    return philox(seeds, positions)[0].double() / 2.0**32
