"""Kernels of chatd: one list of operations (`ops.Ops`), one implementation per kind of machine."""

from chatd_kernels.ops import Ops

BACKENDS = ("reference",)


def load_backend(name: str) -> Ops:
    """A backend by its name; imports it only now. Raises ValueError for an unknown name."""
    if name == "reference":
        from chatd_kernels.reference import ReferenceOps

        return ReferenceOps()
    raise ValueError(f"unknown kernel backend {name!r}; there are: {', '.join(BACKENDS)}")
