"""Threads of our own for kernels, where hardly anything is left for torch's.

libgomp's threads all have to come to the end of every operation, and spin until then: beside another busy
process a step of 270 operations takes 50 times as long. Here kernels deal out their work by counters, whoever
comes to an operation helps, and who does not come is not waited for. And a list of kernels is one call
from Python: nothing asks for the GIL until all of them are done. See `crew_kernels`.
"""

import ctypes
import os
import platform
import threading
from functools import cache

from chatd_kernels.cpu.library import Spec, shared

RUN, HELP = Spec("crew", "make_run"), Spec("crew", "make_help")
SPECS = [RUN, HELP]
FUTEX = {"x86_64": 202, "aarch64": 98}
SIZE, TAKEN, NUMBER = 448, 320, 384
"""As in `crew_kernels`."""
SPINS = 2000
"""Some 40 microseconds: longer than from one operation of a list to the next, shorter than from one step to
the next, when others want the core.
"""

Body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def can_help() -> bool:
    """Linux, on a CPU whose system calls are known."""
    return platform.system() == "Linux" and platform.machine() in FUTEX


class Crew:
    """The owner's side. Helpers are begun as they are wanted and never end."""

    def __init__(self) -> None:
        raw = ctypes.create_string_buffer(SIZE + 64)
        self._kept = raw
        self.address = -(-ctypes.addressof(raw) // 64) * 64
        numbers = (ctypes.c_int64 * 2).from_address(self.address + NUMBER)
        numbers[0], numbers[1] = FUTEX[platform.machine()], SPINS
        self._run = Body(shared().body(RUN))
        self._helpers = 0
        self._lock = threading.Lock()
        self._list = threading.local()

    def run(self, entries: int, count: int, threads: int) -> None:
        """The ``count`` entries at ``entries``, see `crew_kernels.make_run`; none has more threads."""
        if threads - 1 > self._helpers:
            self._begin(threads - 1)
        own = self._list
        if not hasattr(own, "block"):
            own.block = (ctypes.c_int64 * 3)()
            own.address = ctypes.addressof(own.block)
        own.block[:] = (self.address, entries, count)
        self._run(own.address)

    def _begin(self, helpers: int) -> None:
        help_out = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(shared().body(HELP))
        with self._lock:
            while self._helpers < helpers:
                name = f"chatd-kernels-{self._helpers + 1}"
                threading.Thread(target=help_out, args=(self.address,), name=name, daemon=True).start()
                self._helpers += 1


@cache
def the_crew() -> Crew:
    """The process's one."""
    return Crew()


def _forget() -> None:
    """In a child process there is none of the threads."""
    the_crew.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
