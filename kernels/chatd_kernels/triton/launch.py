"""How kernels are started, and on what: the target decides block shapes, never the formulas."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import triton

Kind = Literal["cuda", "hip", "interpreter"]


@dataclass(frozen=True, slots=True)
class Target:
    """``arch`` is 90 for sm_90 and so on, a name such as gfx942 on AMD. ``processors``: multiprocessors."""

    kind: Kind
    arch: int | str
    processors: int


INTERPRETER = Target("interpreter", 0, 4)


def interpreting() -> bool:
    """Whether kernels imported now run on CPU tensors (TRITON_INTERPRET=1)."""
    return bool(triton.knobs.runtime.interpret)


def current_target() -> Target:
    """The device torch uses now. Raises RuntimeError where there is none."""
    if interpreting():
        return INTERPRETER
    if not torch.cuda.is_available():
        raise RuntimeError(
            "the triton backend needs a GPU; set TRITON_INTERPRET=1 to run it, slowly, without one"
        )
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    if torch.version.hip is not None:
        return Target("hip", device.gcnArchName.split(":")[0], device.multi_processor_count)
    return Target("cuda", 10 * device.major + device.minor, device.multi_processor_count)


class Launcher(Protocol):
    """Starts ``kernel`` on ``grid``. Whoever compiles without running puts a recorder in its place."""

    def __call__(
        self, kernel: Any, grid: tuple[int, ...], *, num_warps: int, num_stages: int = 2, **args: object
    ) -> None: ...


OPTIONS = {"enable_fp_fusion": True}
"""Compiler options of every kernel: multiply-add is one rounding (Triton 3.10 changes the default)."""


def run(kernel: Any, grid: tuple[int, ...], *, num_warps: int, num_stages: int = 2, **args: object) -> None:
    kernel[grid](**args, num_warps=num_warps, num_stages=num_stages, **OPTIONS)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def next_power(n: int) -> int:
    """The least power of two that is not below ``n`` >= 1."""
    return 1 << (n - 1).bit_length()
