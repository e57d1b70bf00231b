"""The seam to a device: two queues of work, marks in them, and memory on both sides.

Everything the runner asks of a device goes through here, so that the laws of ordering are tested on a CPU:
over `InlineDevice`, which does the work at once, and over one in the tests that does it late.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Work = Callable[[], None]
"""Operations on tensors. What the host learns of them it reads from host memory, after a mark."""


class Mark(Protocol):
    """A point in a queue: reached once all work before it is done."""

    def done(self) -> bool: ...

    def wait(self) -> None:
        """Until it is reached. Raises what the work raised."""
        ...


class Queue(Protocol):
    """Work in the order in which it was given."""

    def run(self, work: Work) -> None:
        """Append ``work``. It may not be done, nor even begun, when this returns."""
        ...

    def mark(self) -> Mark: ...

    def follow(self, mark: Mark) -> None:
        """What is appended from now on is done after ``mark`` is reached."""
        ...


class Device(Protocol):
    """``main`` runs steps; ``side`` moves pages between device and host meanwhile."""

    overlaps: bool
    main: Queue
    side: Queue

    def host(self, nbytes: int) -> Tensor:
        """uint8 ``[nbytes]`` of host memory, which the device copies from and to while the host goes on."""
        ...

    def mirror(self, host: Tensor) -> Tensor:
        """Device memory as large as ``host``; on a device that shares the host's memory, ``host`` itself."""
        ...

    def zeros(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """On the device, for work of ``main``."""
        ...

    def capture(self, work: Work) -> Work:
        """Run ``work`` and record what it launches, for `Queue.run` on ``main``.

        Each call of the answer does the same to the same tensors, whatever they hold by then. ``work`` must
        not read from the device.
        """
        ...


def copy_bytes(source: Tensor, target: Tensor) -> None:
    """Within `Work`: between host memory and its mirror, either way."""
    if target.data_ptr() != source.data_ptr():
        target.copy_(source, non_blocking=True)


class _Reached:
    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """There is nothing to wait for."""


class InlineQueue:
    """Does its work at once, on the caller's thread."""

    def run(self, work: Work) -> None:
        with torch.inference_mode():
            work()

    def mark(self) -> Mark:
        return _Reached()

    def follow(self, mark: Mark) -> None:
        assert mark.done()


class InlineDevice:
    """A CPU: one memory, nothing overlaps."""

    overlaps = False

    def __init__(self) -> None:
        self.main: Queue = InlineQueue()
        self.side: Queue = self.main

    def host(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def mirror(self, host: Tensor) -> Tensor:
        return host

    def zeros(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def capture(self, work: Work) -> Work:
        return work
