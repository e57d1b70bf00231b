"""The seam between the engine thread and the disk tier: blocks, jobs and completions.

A block is 64 tokens of one path from the root. The tier knows it by a chained keyed hash, so a block's key
says all that is above it as well. The engine hands in jobs and never waits; every job with a ticket is
answered by one completion, in any order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from chatd.engine.plan import HostBuffer
from chatd.ids import Namespace

BLOCK_LEN = 64
"""Tokens of a block; where a path passes from shared to private is a border of blocks too."""


@dataclass(frozen=True, slots=True)
class Block:
    """``key`` and ``parent`` (empty for a path's first block) are 16 bytes, ``ids`` 64 packed token ids.

    ``namespace`` is `SHARED` for a block that all may use.
    """

    key: bytes
    parent: bytes
    namespace: Namespace
    ids: bytes


class ReadOutcome(StrEnum):
    OK = "ok"
    MISSING = "missing"  # evicted or forgotten since it was looked up
    DAMAGED = "damaged"  # it held something else than it should, and is gone now
    FAILED = "failed"  # it could not be read this time; it stays


@dataclass(frozen=True, slots=True)
class BlockWritten:
    """``ok`` False: it was not stored and is not visible. The buffer is free again either way."""

    ticket: int
    ok: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class BlockRead:
    """With OK the buffer holds the block's bytes, verified against its ids and its checksum."""

    ticket: int
    outcome: ReadOutcome
    seconds: float


@dataclass(frozen=True, slots=True)
class BlocksGone:
    """How many records `forget` or `clear` removed."""

    ticket: int
    blocks: int


Completion = BlockWritten | BlockRead | BlocksGone


class BlockTier(Protocol):
    """What the engine thread may ask of the disk tier. No call blocks on I/O; none raises for I/O."""

    block_bytes: int

    def start(self, post: Callable[[Completion], None]) -> None:
        """``post`` is called on the worker's thread, once for each job with a ticket."""
        ...

    def chain(self, packed_ids: bytes, namespace: Namespace, shared_len: int) -> list[Block]:
        """The whole blocks of a path, from the root; those within ``shared_len`` tokens are shared ones."""
        ...

    def has(self, key: bytes) -> bool:
        """Is a complete record visible? From memory; it may turn out damaged."""
        ...

    @property
    def accepts(self) -> bool:
        """False while writing is off or suspended (a full disk): then `write` would only fail."""
        ...

    def write(self, ticket: int, block: Block, buffer: HostBuffer) -> None:
        """Store ``buffer``, whose bytes must stay until the completion. Reads go before writes."""
        ...

    def read(self, ticket: int, block: Block, buffer: HostBuffer) -> None:
        """Fill ``buffer``. Counts as a use of the block and of all above it."""
        ...

    def use(self, blocks: Sequence[Block]) -> None:
        """These were hit in memory: they are recently used on disk too."""
        ...

    def forget(self, ticket: int, paths: Sequence[Sequence[Block]]) -> None:
        """Remove paths from their ends upwards, but for blocks that other stored blocks hang under."""
        ...

    def clear(self, ticket: int, namespace: Namespace | None) -> None:
        """Remove all records of a namespace, or all; pinned ones stay."""
        ...

    def pin(self, name: str, blocks: Sequence[Block]) -> None:
        """Never evict these, once stored, until `unpin`; survives restarts."""
        ...

    def unpin(self, name: str) -> None: ...


class NoTier:
    """There is no disk tier: it has nothing and takes nothing."""

    block_bytes = 0
    accepts = False

    def start(self, post: Callable[[Completion], None]) -> None:
        """There is no worker."""

    def chain(self, packed_ids: bytes, namespace: Namespace, shared_len: int) -> list[Block]:
        return []

    def has(self, key: bytes) -> bool:
        return False

    def write(self, ticket: int, block: Block, buffer: HostBuffer) -> None:
        raise AssertionError("it does not accept blocks")

    def read(self, ticket: int, block: Block, buffer: HostBuffer) -> None:
        raise AssertionError("it has no blocks")

    def use(self, blocks: Sequence[Block]) -> None:
        """It has none."""

    def forget(self, ticket: int, paths: Sequence[Sequence[Block]]) -> None:
        raise AssertionError("it has no blocks")

    def clear(self, ticket: int, namespace: Namespace | None) -> None:
        raise AssertionError("it has no blocks")

    def pin(self, name: str, blocks: Sequence[Block]) -> None:
        """There is nothing to pin."""

    def unpin(self, name: str) -> None:
        """Nothing was pinned."""
