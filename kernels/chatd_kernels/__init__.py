"""Kernels of chatd: one list of operations (`ops.Ops`), one implementation per kind of machine."""

from chatd_kernels.ops import Ops

BACKENDS = ("reference", "triton", "cpu")


def has_fast_cpu_kernels() -> bool:
    """Whether "cpu" runs here and is faster than "reference": shown for vectors of 512 bits only."""
    try:
        from chatd_kernels.cpu.library import shared

        return shared().isa.wide
    except (ImportError, RuntimeError):
        return False


def load_backend(name: str) -> Ops:
    """A backend by its name; imports it only now.

    Raises ValueError for an unknown name, ImportError or RuntimeError for one that cannot run here.
    """
    if name == "reference":
        from chatd_kernels.reference import ReferenceOps

        return ReferenceOps()
    if name == "triton":
        from chatd_kernels.triton import TritonOps

        return TritonOps()
    if name == "cpu":
        from chatd_kernels.cpu import CpuOps

        return CpuOps()
    raise ValueError(f"unknown kernel backend {name!r}; there are: {', '.join(BACKENDS)}")
