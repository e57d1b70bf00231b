"""Blocks kept in ordinary host memory: what a disk tier costs the device, without the disk."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from chatd.cache.block_tier import Block, BlockRead, BlocksGone, BlockWritten, Completion, ReadOutcome
from chatd.cache.costs import Costs
from chatd.cache.disk.keys import Keys
from chatd.engine.plan import HostBuffer
from chatd.ids import Namespace

WORKERS = 2


class AlwaysLoad(Costs):
    """It is loading that is to be measured."""

    def load_s(self, blocks: int) -> float:
        return 0.0


class HostTier:
    """A `BlockTier` that forgets nothing. It takes blocks only while ``accepts`` is set."""

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.accepts = False
        self._keys = Keys(b"check", b"")
        self._bodies: dict[bytes, bytes] = {}
        self._changed = threading.Condition()
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="host-tier")
        self._post: Callable[[Completion], None] = lambda completion: None

    def start(self, post: Callable[[Completion], None]) -> None:
        self._post = post

    def close(self) -> None:
        self._workers.shutdown()

    def wait_for(self, blocks: Sequence[Block], timeout_s: float) -> bool:
        """Until all of these are stored. False: they were not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: all(self.has(block.key) for block in blocks), timeout_s)

    def chain(self, packed_ids: bytes, namespace: Namespace, shared_len: int) -> list[Block]:
        return self._keys.chain(packed_ids, namespace, shared_len)

    def has(self, key: bytes) -> bool:
        return key in self._bodies

    def write(self, ticket: int, block: Block, buffer: HostBuffer) -> None:
        self._do(lambda: self._store(ticket, block, buffer))

    def read(self, ticket: int, block: Block, buffer: HostBuffer) -> None:
        self._do(lambda: self._fill(ticket, block, buffer))

    def use(self, blocks: Sequence[Block]) -> None:
        """Nothing is ever evicted."""

    def forget(self, ticket: int, paths: Sequence[Sequence[Block]]) -> None:
        gone = [self._bodies.pop(block.key, None) for path in paths for block in path]
        self._post(BlocksGone(ticket, sum(body is not None for body in gone)))

    def clear(self, ticket: int, namespace: Namespace | None) -> None:
        gone = len(self._bodies)
        self._bodies.clear()
        self._post(BlocksGone(ticket, gone))

    def pin(self, name: str, blocks: Sequence[Block]) -> None:
        """Nothing is ever evicted."""

    def unpin(self, name: str) -> None:
        """Nothing was pinned."""

    def _do(self, job: Callable[[], Completion]) -> None:
        self._workers.submit(lambda: self._post(job()))

    def _store(self, ticket: int, block: Block, buffer: HostBuffer) -> Completion:
        began = time.monotonic()
        body = bytes(buffer.view)
        buffer.release()
        with self._changed:
            self._bodies[block.key] = body
            self._changed.notify_all()
        return BlockWritten(ticket, True, time.monotonic() - began)

    def _fill(self, ticket: int, block: Block, buffer: HostBuffer) -> Completion:
        began = time.monotonic()
        buffer.view[:] = self._bodies[block.key]
        return BlockRead(ticket, ReadOutcome.OK, time.monotonic() - began)
