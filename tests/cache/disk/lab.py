"""Small tiers to take apart: blocks whose bytes follow from their keys, buffers that count, a clock."""

import contextlib
import queue
import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from chatd.cache.block_tier import BLOCK_LEN, Block, BlockWritten, Completion, ReadOutcome
from chatd.cache.disk.files import Files
from chatd.cache.disk.store import Store
from chatd.cache.disk.tier import DiskTier
from chatd.cache.radix_node import pack
from chatd.ids import Namespace
from tests.cache.disk.faults import QuickFiles

BODY = 640
SLOTS = 3
QUOTA = 5 * (4096 + SLOTS * BODY)
"""Of five whole segments."""

ALICE, BOB = Namespace("alice"), Namespace("bob")
MODEL = b"a model and its layout"


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Buffer:
    """A host buffer; ``released`` counts."""

    def __init__(self, data: bytes) -> None:
        self.view = memoryview(bytearray(data))
        self.released = 0

    def release(self) -> None:
        self.released += 1


def body_of(block: Block) -> bytes:
    return random.Random(block.key).randbytes(BODY)


def open_tier(
    folder: Path,
    *,
    files: Files | None = None,
    clock: Clock | None = None,
    quota: int = QUOTA,
    model: bytes = MODEL,
    ttl_s: float | None = None,
) -> DiskTier:
    clock, files = clock or Clock(), files or QuickFiles()
    return DiskTier.open(folder, model, BODY, quota, ttl_s=ttl_s, files=files, clock=clock, timer=clock)


@contextlib.contextmanager
def closing(made: DiskTier) -> Iterator[DiskTier]:
    try:
        yield made
    finally:
        assert made.close(5.0)


def abandon(made: DiskTier) -> None:
    """What the system does with a process that died: close its files, free its lock, write nothing."""
    made._store.folder.close()
    made._lock.release()


def path_of(made: DiskTier, first_id: int, blocks: int, namespace: Namespace = ALICE) -> list[Block]:
    """The blocks of one path; paths with different first ids have nothing in common."""
    ids = pack([first_id, *range(blocks * BLOCK_LEN - 1)])
    return made.chain(ids, namespace, 0)


def put(made: DiskTier, blocks: Sequence[Block]) -> None:
    for block in blocks:
        made._ask(partial(made._store.put, block, body_of(block)))


def fetch(made: DiskTier, block: Block) -> ReadOutcome:
    """Reads a block, and checks that what is read as right is right."""
    into = bytearray(BODY)
    outcome = made._ask(lambda: made._store.fetch(block, memoryview(into)))
    if outcome is ReadOutcome.OK:
        assert into == body_of(block)
    return outcome


def visible(made: DiskTier) -> set[bytes]:
    return {entry.key for entry in made._store.index.entries() if made.has(entry.key)}


def check(made: DiskTier) -> None:
    """The laws of a tier, from first principles: index against segments against the files."""
    made._ask(lambda: _check(made._store))


def _check(inner: Store) -> None:
    inner.index.check()
    held: dict[int, set[int]] = {number: set() for number in inner.folder.segments}
    for entry in inner.index.entries():
        slots = held[entry.segment.number]
        assert entry.slot < entry.segment.used
        assert entry.slot not in slots
        slots.add(entry.slot)
    spare = 0
    for number, segment in inner.folder.segments.items():
        assert segment.live == len(held[number])
        assert not held[number] & set(segment.free)
        assert (inner.folder.folder / segment.name).stat().st_size == segment.nbytes
        spare += segment.used - segment.live - len(segment.free)
    assert spare == inner.folder.undead
    assert inner.folder.nbytes == sum(one.nbytes for one in inner.folder.segments.values())
    assert inner.folder.nbytes <= inner.quota_bytes


class Listener:
    """Takes completions from the worker's thread."""

    def __init__(self) -> None:
        self._got: queue.SimpleQueue[Completion] = queue.SimpleQueue()

    def __call__(self, completion: Completion) -> None:
        self._got.put(completion)

    def next(self) -> Completion:
        return self._got.get(timeout=20)

    def written(self, made: DiskTier, block: Block) -> bool:
        """Hands a write in and waits for its end."""
        buffer = Buffer(body_of(block))
        made.write(1, block, buffer)
        completion = self.next()
        assert isinstance(completion, BlockWritten)
        assert buffer.released == 1
        return completion.ok
