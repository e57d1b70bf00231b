"""Kernels run on torch's own OpenMP threads.

Two teams on the same cores would take turns: libgomp's threads spin for a while after each operation. So a
kernel is handed to the very library that torch uses, as the body of a parallel region.
"""

import ctypes
import os
import struct
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

MAPS = Path("/proc/self/maps")
_NAMES = ("libgomp", "libomp", "libiomp5")

Enter = Callable[[int, int, int, int], None]
"""(address of a body, its argument, threads, 0)."""


@cache
def openmp() -> ctypes.CDLL | None:
    """The OpenMP library that torch has loaded; None if it has none that takes a body as GCC hands it over.

    LLVM's and Intel's do too.
    """
    torch.get_num_threads()
    for path in _loaded():
        library = ctypes.CDLL(str(path), mode=ctypes.DEFAULT_MODE | getattr(os, "RTLD_NOLOAD", 0))
        if hasattr(library, "GOMP_parallel") and hasattr(library, "GOMP_barrier"):
            return library
    return None


def _loaded() -> list[Path]:
    """torch's copy first: a process may have several."""
    try:
        lines = MAPS.read_text("utf-8").splitlines()
    except OSError:
        return []
    paths = {Path(line.split(maxsplit=5)[-1]) for line in lines if any(name in line for name in _NAMES)}
    home = Path(torch.__file__).parent
    return sorted(
        paths, key=lambda path: (home not in path.parents and home.parent not in path.parents, path)
    )


@cache
def entrance() -> Enter:
    """Runs a body on a team of threads; on this thread alone where there is no OpenMP."""
    library = openmp()
    if library is None:
        return _alone
    enter = library.GOMP_parallel
    enter.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    enter.restype = None
    return enter


def threads() -> int:
    """As many as torch uses from this thread."""
    return 1 if openmp() is None else torch.get_num_threads()


def barrier_address() -> int:
    """Of a function without arguments that all threads of the team meet in."""
    library = openmp()
    meet = _nothing if library is None else library.GOMP_barrier
    return ctypes.cast(meet, ctypes.c_void_p).value or 0


_nothing = ctypes.CFUNCTYPE(None)(lambda: None)


def _alone(body: int, argument: int, threads: int, flags: int) -> None:
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(body)(argument)


COUNTERS = 3
"""int64 zeros before a kernel's arguments: its threads count in them what they have taken."""


class _Arguments(threading.local):
    """A thread's block of arguments, used again by its next call."""

    def __init__(self) -> None:
        self.block = ctypes.create_string_buffer(512)
        self.address = ctypes.addressof(self.block)


_arguments = _Arguments()


def run(body: int, count: int, *values: int) -> None:
    """The kernel at ``body`` on ``count`` threads; back when all are done. ``values`` are its int64
    arguments, from byte 24 of its block on.
    """
    own = _arguments
    _layout(len(values)).pack_into(own.block, 0, 0, 0, 0, *values)
    entrance()(body, own.address, count, 0)


@cache
def _layout(values: int) -> struct.Struct:
    return struct.Struct(f"<{COUNTERS + values}q")


@cache
def bits(value: float) -> int:
    """A float64 as an argument."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])
