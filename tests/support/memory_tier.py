"""A disk tier in memory, whose jobs are done when the test says so, and fail as it says."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chatd.cache.block_tier import (
    BLOCK_LEN,
    Block,
    BlockRead,
    BlocksGone,
    BlockWritten,
    Completion,
    ReadOutcome,
)
from chatd.cache.radix_node import ID_BYTES, SHARED
from chatd.engine.plan import HostBuffer
from chatd.ids import Namespace

_BYTES = BLOCK_LEN * ID_BYTES


@dataclass
class MemoryTier:
    """``stored`` is what a disk would hold. Jobs wait in ``jobs`` until `work`."""

    block_bytes: int
    stored: dict[bytes, tuple[Block, bytes]] = field(default_factory=dict)
    accepts: bool = True
    read_outcome: Callable[[Block], ReadOutcome] = lambda block: ReadOutcome.OK
    write_ok: Callable[[Block], bool] = lambda block: True
    seconds: float = 0.001
    pins: dict[str, list[Block]] = field(default_factory=dict)
    used: list[bytes] = field(default_factory=list)
    jobs: list[Callable[[], Completion]] = field(default_factory=list)

    def start(self, post: Callable[[Completion], None]) -> None:
        self._post = post

    def work(self, most: int = 1 << 30) -> list[Completion]:
        """Do the jobs that wait, ``most`` at most, oldest first."""
        done = [job() for job in self.jobs[:most]]
        del self.jobs[: len(done)]
        return done

    def chain(self, packed_ids: bytes, namespace: Namespace, shared_len: int) -> list[Block]:
        blocks, parent = [], b""
        for i in range(len(packed_ids) // _BYTES):
            ids = packed_ids[i * _BYTES : (i + 1) * _BYTES]
            owner = SHARED if (i + 1) * BLOCK_LEN <= shared_len else namespace
            key = hashlib.blake2b(parent + owner.encode() + b"\0" + ids, digest_size=16).digest()
            blocks.append(Block(key, parent, owner, ids))
            parent = key
        return blocks

    def has(self, key: bytes) -> bool:
        return key in self.stored

    def write(self, ticket: int, block: Block, buffer: HostBuffer) -> None:
        def job() -> Completion:
            body = bytes(buffer.view)
            buffer.release()
            ok = self.accepts and self.write_ok(block)
            if ok:
                self.stored[block.key] = block, body
            return BlockWritten(ticket, ok, self.seconds)

        self.jobs.append(job)

    def read(self, ticket: int, block: Block, buffer: HostBuffer) -> None:
        def job() -> Completion:
            outcome = self.read_outcome(block) if block.key in self.stored else ReadOutcome.MISSING
            if outcome is ReadOutcome.OK:
                buffer.view[:] = self.stored[block.key][1]
            elif outcome is ReadOutcome.DAMAGED:
                self.stored.pop(block.key, None)
                buffer.view[:] = b"\xee" * len(buffer.view)
            return BlockRead(ticket, outcome, self.seconds)

        self.jobs.append(job)

    def use(self, blocks: Sequence[Block]) -> None:
        self.used += [block.key for block in blocks]

    def forget(self, ticket: int, paths: Sequence[Sequence[Block]]) -> None:
        def job() -> Completion:
            gone = 0
            for path in paths:
                for block in reversed(path):
                    children = any(other.parent == block.key for other, _ in self.stored.values())
                    if children:
                        break
                    gone += self.stored.pop(block.key, None) is not None
            return BlocksGone(ticket, gone)

        self.jobs.append(job)

    def clear(self, ticket: int, namespace: Namespace | None) -> None:
        def job() -> Completion:
            pinned = {block.key for blocks in self.pins.values() for block in blocks}
            doomed = [
                key
                for key, (block, _) in self.stored.items()
                if namespace in (None, block.namespace) and key not in pinned
            ]
            for key in doomed:
                del self.stored[key]
            return BlocksGone(ticket, len(doomed))

        self.jobs.append(job)

    def pin(self, name: str, blocks: Sequence[Block]) -> None:
        self.pins[name] = list(blocks)

    def unpin(self, name: str) -> None:
        self.pins.pop(name, None)
