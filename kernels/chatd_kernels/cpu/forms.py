"""Dtypes the kernels know, and how many threads a piece of work is worth."""

import torch

from chatd_kernels.cpu import team

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16"}
KV_DTYPES = {**DTYPES, torch.int8: "int8"}

SMALL = 1 << 14
"""Elements that one thread is done with before another would have begun (some microseconds)."""


def share(elements: int) -> int:
    """Threads for an operation on so many elements."""
    return 1 if elements < SMALL else team.threads()
