"""The disk tier as the engine and the commands see it."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from chatd.cache.block_tier import Block, Completion
from chatd.cache.disk.failures import Failures, Suspension
from chatd.cache.disk.files import Files
from chatd.cache.disk.housekeeping import Housekeeping
from chatd.cache.disk.index import Index
from chatd.cache.disk.jobs import Call, Clear, Forget, Jobs, Read, Use, Write
from chatd.cache.disk.keys import Keys, load_secret
from chatd.cache.disk.lock import FolderLock
from chatd.cache.disk.recency import load_recency
from chatd.cache.disk.record import stored_namespace
from chatd.cache.disk.recovery import recover
from chatd.cache.disk.report import NamespaceUse, PathUse, PinUse, TierStats, namespaces, paths, pin_uses
from chatd.cache.disk.rules import Rules
from chatd.cache.disk.segment import bodies_at, slots_for
from chatd.cache.disk.segment_folder import SegmentFolder
from chatd.cache.disk.store import UNBOUNDED, Store
from chatd.cache.disk.verify import Checked, Damage, verify
from chatd.cache.disk.worker import Worker
from chatd.engine.plan import HostBuffer
from chatd.errors import SetupError
from chatd.ids import Namespace

MOST_QUEUED_WRITES = 64
JOIN_S = 5.0
"""How long `DiskTier.close` waits for a call that the disk does not answer, beyond its budget."""

T = TypeVar("T")


class DiskTier:
    """A `BlockTier` over files in one folder. Made by `open`; ended by `close`, on every path.

    What is asked of it before `start` or after `close` is answered on the caller's thread, but for jobs
    with a ticket, which want a started tier.
    """

    def __init__(self, store: Store, files: Files, lock: FolderLock, timer: Callable[[], float]) -> None:
        self.block_bytes = store.body_len
        self._store = store
        self._lock = lock
        self._timer = timer
        self._jobs = Jobs()
        self._writing = Suspension(timer)
        self._keeping = Housekeeping(store, files, timer)
        self._worker = Worker(store, self._keeping, self._jobs, self._writing, timer)
        self._closed = False

    @classmethod
    def open(
        cls,
        folder: Path,
        fingerprint: bytes,
        block_bytes: int,
        quota_bytes: int,
        *,
        ttl_s: float | None = None,
        files: Files | None = None,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> "DiskTier":
        """Take the folder and read its index. Raises `SetupError` if it is in use or cannot be used.

        ``fingerprint`` are any bytes that change with the model and the layout of pages. ``ttl_s`` takes
        the place of the default TTL that was set last. ``clock`` is the wall's, ``timer`` never goes back.
        """
        least = bodies_at(slots_for(block_bytes, quota_bytes)) + block_bytes
        if quota_bytes < least:
            raise SetupError(
                f"--disk-bytes is {quota_bytes:,}, but a block of this model takes {least:,}. "
                "Allow more, or turn the tier off with --disk off."
            )
        files = files or Files()
        lock = FolderLock(folder)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(lock.release)
            try:
                store = _open_store(folder, fingerprint, block_bytes, quota_bytes, files, clock)
            except OSError as error:
                where = error.filename or folder
                raise SetupError(
                    f"The folder of the disk tier cannot be read: {error.strerror}: {where}. "
                    "Mend that, or turn the tier off with --disk off."
                ) from None
            on_failure.pop_all()
        tier = cls(store, files, lock, timer)
        if ttl_s is not None:
            tier.set_ttl(None, ttl_s)
        return tier

    @classmethod
    def look(cls, folder: Path) -> "DiskTier":
        """For commands while no server runs: all records are there, and none can be hit or evicted."""
        return cls.open(folder, b"", 1, UNBOUNDED)

    def start(self, post: Callable[[Completion], None]) -> None:
        self._worker.start(post)

    def close(self, budget_s: float = 0.0) -> bool:
        """Finish what was handed in, writes for ``budget_s`` at most, and give the folder free.

        False if the disk did not answer: then the folder stays locked until the process ends.
        """
        if self._closed:
            return True
        self._closed = True
        if self._worker.running:
            self._worker.stop(budget_s)
            if not self._worker.join(budget_s + JOIN_S):
                return False
        else:
            self._jobs.close()
            self._keeping.finish()
        self._store.folder.close()
        self._lock.release()
        return True

    # -- the engine's side

    def chain(self, packed_ids: bytes, namespace: Namespace, shared_len: int) -> list[Block]:
        return self._store.keys.chain(packed_ids, namespace, shared_len)

    def has(self, key: bytes) -> bool:
        return self._store.has(key) and self._worker.failure is None

    @property
    def accepts(self) -> bool:
        return not (
            self._jobs.closing
            or self._writing.active
            or self._jobs.writes >= MOST_QUEUED_WRITES
            or self._worker.failure is not None
        )

    def write(self, ticket: int, block: Block, buffer: HostBuffer) -> None:
        self._put(Write(ticket, block, buffer, self._timer(), refused=not self.accepts))

    def read(self, ticket: int, block: Block, buffer: HostBuffer) -> None:
        self._put(Read(ticket, block, buffer, self._timer()))

    def use(self, blocks: Sequence[Block]) -> None:
        self._jobs.put(Use([block.key for block in blocks]))

    def forget(self, ticket: int, paths: Sequence[Sequence[Block]]) -> None:
        self._put(Forget(ticket, paths))

    def clear(self, ticket: int, namespace: Namespace | None) -> None:
        self._put(Clear(ticket, namespace))

    def _put(self, job: Read | Write | Forget | Clear) -> None:
        if not self._jobs.put(job):
            self._worker.refuse(job)

    # -- the operator's side

    def pin(self, name: str, blocks: Sequence[Block]) -> None:
        keys = [block.key for block in blocks]
        self._soon(lambda: self._store.pin(name, keys))

    def unpin(self, name: str) -> None:
        self._soon(lambda: self._store.unpin(name))

    def set_ttl(self, namespace: Namespace | None, seconds: float | None) -> None:
        """For a namespace, or the default. None takes it away. Survives restarts.

        It counts from the last use of a block, or of what is stored under it; pinned ones do not expire.
        """
        name = None if namespace is None else stored_namespace(namespace)
        self._soon(lambda: self._store.set_ttl(name, seconds))

    def stats(self) -> TierStats:
        store = self._store
        segments = list(store.folder.segments.values())
        return TierStats(
            blocks=sum(one.live for one in segments if store.own(one)),
            foreign_blocks=sum(one.live for one in segments if not store.own(one)),
            pinned_blocks=sum(store.index.get(key) is not None for key in store.rules.pinned()),
            nbytes=store.folder.nbytes,
            quota_bytes=store.quota_bytes,
            segments=len(segments),
            block_bytes=store.body_len,
            queued_reads=self._jobs.reads,
            queued_writes=self._jobs.writes,
            suspended=self._writing.cause if self._writing.active else "",
            fault=repr(self._worker.failure) if self._worker.failure else "",
            read=self._worker.read_rate,
            write=self._worker.write_rate,
            events=dict(store.events),
            failures=dict(store.failures.counts),
        )

    def ls(self) -> list[NamespaceUse]:
        return namespaces(self._store.index.entries(), self._store.keys.fingerprint)

    def kept_bytes(self) -> dict[Namespace, int]:
        """What each namespace has on disk, of all models; what all share is under `SHARED`."""
        kept: dict[Namespace, int] = {}
        for use in self.ls():
            kept[use.namespace] = kept.get(use.namespace, 0) + use.nbytes
        return kept

    def paths(self) -> list[PathUse]:
        store = self._store
        return paths(store.index.entries(), store.keys.fingerprint, store.rules)

    def pins(self) -> list[PinUse]:
        return self._ask(lambda: pin_uses(self._store.rules, self._store.index))

    def ids_of(self, key: bytes) -> bytes | None:
        """The packed ids of a stored block, read from its record. None if that is not there or not whole."""
        return self._ask(lambda: self._store.ids_of(key))

    def verify(self) -> Iterator[Checked]:
        """Read every record in full; damaged ones are removed. Waits for the worker: not for the engine.

        While the tier runs each check waits until nothing else does, so it disturbs nobody.
        """

        def run(check: Callable[[], Damage | None]) -> Damage | None:
            return self._ask(check, check=True)

        return verify(self._store, run)

    def _soon(self, what: Callable[[], None]) -> None:
        """On the worker's thread, or here if it does not run."""
        if not (self._worker.running and self._jobs.put(Call(what, fail=_nothing))):
            what()

    def _ask(self, what: Callable[[], T], *, check: bool = False) -> T:
        """The same, and wait for the answer."""
        if not self._worker.running or self._worker.is_me:
            return what()
        done = threading.Event()
        answers: list[T] = []

        def run() -> None:
            answers.append(what())
            done.set()

        if not self._jobs.put(Call(run, fail=done.set), check=check):
            raise SetupError("The disk tier is closing.")
        done.wait()
        if not answers:
            raise SetupError(f"The disk tier has failed: {self._worker.failure!r}. Restart the server.")
        return answers[0]


def _nothing() -> None:
    pass


def _open_store(
    folder: Path,
    fingerprint: bytes,
    block_bytes: int,
    quota_bytes: int,
    files: Files,
    clock: Callable[[], float],
) -> Store:
    """Everything that one start does with the folder. Raises `OSError`."""
    failures = Failures()
    secret, is_new = load_secret(files, folder)
    keys = Keys(secret, fingerprint)
    rules = Rules(files, folder)
    rules_whole = rules.load()
    segments = SegmentFolder(files, folder, failures)
    index = Index(keys.fingerprint, rules)
    store = Store(
        keys, segments, index, rules, failures, clock, body_len=block_bytes, quota_bytes=quota_bytes
    )
    found = recover(segments, failures)
    load_recency(files, folder, found.entries, int(clock()))
    index.restore(found.entries.values())
    store.events["damaged"] += found.damaged + (not rules_whole)
    if is_new:
        store.clear(None)  # keys of another secret: nothing can ever find these
    return store
