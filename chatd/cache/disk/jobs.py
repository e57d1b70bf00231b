"""The jobs that the disk tier's worker is given, and the queue they wait in."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chatd.cache.block_tier import Block
from chatd.engine.plan import HostBuffer
from chatd.ids import Namespace


@dataclass(frozen=True, slots=True)
class Read:
    """``handed_in`` is when, for the measure of latency."""

    ticket: int
    block: Block
    buffer: HostBuffer
    handed_in: float


@dataclass(frozen=True, slots=True)
class Write:
    """``refused``: it came while the tier took no writes."""

    ticket: int
    block: Block
    buffer: HostBuffer
    handed_in: float
    refused: bool


@dataclass(frozen=True, slots=True)
class Forget:
    ticket: int
    paths: Sequence[Sequence[Block]]


@dataclass(frozen=True, slots=True)
class Clear:
    ticket: int
    namespace: Namespace | None


@dataclass(frozen=True, slots=True)
class Use:
    keys: list[bytes]


@dataclass(frozen=True, slots=True)
class Call:
    """Anything else; it answers for itself. ``fail`` is called instead once the tier is at fault."""

    run: Callable[[], None]
    fail: Callable[[], None]


Job = Read | Write | Forget | Clear | Use | Call


class Jobs:
    """Reads first, then what is quick, then writes and removals in the order they came, then checks.

    So a removal takes away what was handed in for writing before it. Any thread may hand in; the lock is
    never held while a job is carried out.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reads: deque[Job] = deque()
        self._quick: deque[Job] = deque()
        self._writes: deque[Job] = deque()
        self._checks: deque[Job] = deque()
        self._queues = (self._reads, self._quick, self._writes, self._checks)
        self.closing = False

    @property
    def reads(self) -> int:
        return len(self._reads)

    @property
    def writes(self) -> int:
        """Those that wait, with the removals among them."""
        return len(self._writes)

    def put(self, job: Job, *, check: bool = False) -> bool:
        """False if it came too late: the worker has gone, or is about to."""
        with self._changed:
            if self.closing:
                return False
            self._queue_of(job, check).append(job)
            self._changed.notify()
            return True

    def take(self, wait_s: float) -> Job | None:
        """The next job; None if none came within ``wait_s``, or if none is left and none will come."""
        with self._changed:
            self._changed.wait_for(lambda: self.closing or any(self._queues), wait_s)
            return next((queue.popleft() for queue in self._queues if queue), None)

    def close(self) -> None:
        """Take no more. Those that wait may still be taken."""
        with self._changed:
            self.closing = True
            self._changed.notify()

    def _queue_of(self, job: Job, check: bool) -> deque[Job]:
        match job:
            case Read():
                return self._reads
            case Write() | Forget() | Clear():
                return self._writes
            case Use() | Call():
                return self._checks if check else self._quick
