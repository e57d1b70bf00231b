"""A device that takes its time: work is done when somebody looks, in a random order that the marks allow."""

import random
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from chatd.engine.device import Mark, Queue, Work

GARBAGE = 0x5B


class LateMark:
    def __init__(self, device: "LateDevice") -> None:
        self._device = device
        self.reached = False

    def done(self) -> bool:
        for _ in range(self._device.random.randrange(4)):
            self._device.turn()
        return self.reached

    def wait(self) -> None:
        while not self.reached:
            assert self._device.turn(), "nothing can go on: a mark waits for itself"


class LateQueue:
    """Each turn does the oldest thing in it; a mark of another queue that is not reached stops it."""

    def __init__(self, device: "LateDevice") -> None:
        self._device = device
        self._todo: deque[Work | tuple[str, LateMark]] = deque()

    def run(self, work: Work) -> None:
        self._todo.append(work)

    def mark(self) -> Mark:
        mark = LateMark(self._device)
        self._todo.append(("reach", mark))
        return mark

    def follow(self, mark: Mark) -> None:
        assert isinstance(mark, LateMark)
        self._todo.append(("follow", mark))

    def turn(self) -> bool:
        """False if there is nothing that can be done."""
        if not self._todo:
            return False
        match self._todo[0]:
            case ("follow", LateMark(reached=False)):
                return False
            case ("reach", LateMark() as mark):
                mark.reached = True
            case ("follow", _):
                pass
            case work:
                assert callable(work)
                with torch.inference_mode():
                    work()
        self._todo.popleft()
        return True


class LateDevice:
    """``seed`` decides the order. Both memories begin as garbage, and are two."""

    overlaps = True

    def __init__(self, seed: int, capture: Callable[[Work], Work] = lambda work: work) -> None:
        self.random = random.Random(seed)
        self._queues = [LateQueue(self), LateQueue(self)]
        self.main: Queue = self._queues[0]
        self.side: Queue = self._queues[1]
        self._capture = capture

    def host(self, nbytes: int) -> Tensor:
        return torch.full((nbytes,), GARBAGE, dtype=torch.uint8)

    def mirror(self, host: Tensor) -> Tensor:
        return torch.full_like(host, GARBAGE)

    def zeros(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def capture(self, work: Work) -> Work:
        self.main.run(work)
        self.main.mark().wait()
        return self._capture(work)

    def turn(self) -> bool:
        """One thing of a random queue that has one."""
        return any(queue.turn() for queue in self.random.sample(self._queues, 2))
