"""Which threads kernels run on: our own (`crew`), or torch's.

Two teams on the same cores would take turns: libgomp's threads spin for a while after each operation. So
where torch multiplies the matrices, a kernel is handed to the very library that torch uses, as the body of a
parallel region. Either way a kernel's threads take work from counters and never wait for each other.
"""

import ctypes
import math
import os
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chatd_kernels.cpu import crew

MAPS = Path("/proc/self/maps")
_NAMES = ("libgomp", "libomp", "libiomp5")

Array = np.ndarray[Any, np.dtype[Any]]
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
        if hasattr(library, "GOMP_parallel"):
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
    return torch.get_num_threads() if _own[0] or openmp() is not None else 1


_own = [crew.can_help()]


def use_own_threads(wanted: bool) -> None:
    """Kernels run on threads of our own, where there can be such, or on torch's: whichever
    does more of the other work.
    """
    _own[0] = wanted and crew.can_help()


def has_own_threads() -> bool:
    return _own[0]


def _alone(body: int, argument: int, threads: int, flags: int) -> None:
    _function(body)(argument)


@cache
def _function(body: int) -> Callable[[int], None]:
    return crew.Body(body)


COUNTERS = 3
"""int64 zeros before a kernel's arguments: its threads count in them what they have taken."""
BLOCK_BYTES = 256
_ENTRY = struct.Struct("<3q")
"""Of a list: body, argument, threads."""


class _Calls(threading.local):
    """A thread's block of arguments and its list, used again by its next call."""

    def __init__(self) -> None:
        self.blocks = ctypes.create_string_buffer(BLOCK_BYTES)
        self.list = ctypes.create_string_buffer(_ENTRY.size)
        self.at = ctypes.addressof(self.blocks)
        self.list_at = ctypes.addressof(self.list)
        self.recording: Recording | None = None


_calls = _Calls()


def run(body: int, count: int, *values: int) -> None:
    """The kernel at ``body`` on ``count`` threads; back when all are done. ``values`` are its int64
    arguments, from byte 24 of its block on.
    """
    own = _calls
    _layout(len(values)).pack_into(own.blocks, 0, 0, 0, 0, *values)
    if own.recording is not None:
        own.recording.add(body, count, own.blocks.raw[: 8 * (COUNTERS + len(values))])
    if count == 1:
        _function(body)(own.at)
    elif _own[0]:
        _ENTRY.pack_into(own.list, 0, body, own.at, count)
        crew.the_crew().run(own.list_at, 1, count)
    else:
        entrance()(body, own.at, count, 0)


def run_phases(body: int, count: int, *values: int) -> None:
    """Twice, with 0 and 1 as the last argument: the second begins when all of the first is done."""
    run(body, count, *values, 0)
    run(body, count, *values, 1)


class Arena:
    """Memory of tensors that only the steps of recordings use: one step's after the other's in the same.

    What was freed while one was recorded is used again by what came later in it, and by other recordings.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Array]] = {}

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        nbytes = math.prod(shape) * dtype.itemsize
        size = 1 << max(12, nbytes - 1).bit_length()
        free = self._free.setdefault(size, [])
        block = free.pop() if free else np.empty(size, np.uint8)
        # The tensor and its views keep this array, and nothing else does.
        lent = block[:nbytes]
        weakref.finalize(lent, free.append, block)
        return torch.from_numpy(lent).view(dtype).view(*shape)


class Recording:
    """Calls of kernels, with the addresses they were given, to be made again in one go.

    Whoever records sees to it that all of those are still there: inputs, and what `empty` gave meanwhile.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._calls: list[tuple[int, int, bytes]] = []
        self._kept: list[object] = []
        self._blocks = ctypes.create_string_buffer(0)
        self._list = ctypes.create_string_buffer(0)
        self._threads = 1

    def add(self, body: int, count: int, block: bytes) -> None:
        self._calls.append((body, count, block))

    def keep(self, *tensors: Tensor) -> None:
        """They are to live as long as this."""
        self._kept += tensors

    def finish(self) -> None:
        self._blocks = ctypes.create_string_buffer(BLOCK_BYTES * len(self._calls))
        self._list = ctypes.create_string_buffer(_ENTRY.size * len(self._calls))
        at = ctypes.addressof(self._blocks)
        for i, (body, count, block) in enumerate(self._calls):
            ctypes.memmove(at + BLOCK_BYTES * i, block, len(block))
            _ENTRY.pack_into(self._list, _ENTRY.size * i, body, at + BLOCK_BYTES * i, count)
            self._threads = max(self._threads, count)

    @property
    def bodies(self) -> list[int]:
        """Kernels by their addresses, in order."""
        return [body for body, _, _ in self._calls]

    def replay_one(self, i: int) -> None:
        """For profiles."""
        crew.the_crew().run(ctypes.addressof(self._list) + _ENTRY.size * i, 1, self._threads)

    def replay(self) -> None:
        """All of it, in order, without the GIL."""
        crew.the_crew().run(ctypes.addressof(self._list), len(self._calls), self._threads)


@contextmanager
def recording(arena: Arena) -> Iterator[Recording]:
    """Whatever kernels are run meanwhile from this thread run, and are in the recording."""
    assert _own[0]
    _calls.recording = made = Recording(arena)
    try:
        yield made
    finally:
        _calls.recording = None
        made.finish()


def empty(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """For what a kernel writes."""
    own = _calls.recording
    return torch.empty(shape, dtype=dtype) if own is None else own.arena.empty(shape, dtype)


def empty_kept(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """As `empty`, for what kernels know through a plan: a recording keeps it."""
    made = empty(shape, dtype)
    if _calls.recording is not None:
        _calls.recording.keep(made)
    return made


@cache
def _layout(values: int) -> struct.Struct:
    return struct.Struct(f"<{COUNTERS + values}q")


@cache
def bits(value: float) -> int:
    """A float64 as an argument."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])
