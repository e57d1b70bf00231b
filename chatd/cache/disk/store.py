"""What the worker is asked for, over `Records`: to store, to fetch, to keep and to remove."""

from collections.abc import Iterable

from chatd.cache.block_tier import Block, ReadOutcome
from chatd.cache.disk import removal
from chatd.cache.disk.files import Bytes
from chatd.cache.disk.index import Entry
from chatd.cache.disk.record import Header, checksum, stored_namespace
from chatd.cache.disk.records import Records
from chatd.cache.disk.room import find_room
from chatd.cache.disk.segment import Segment
from chatd.ids import Namespace

UNBOUNDED = 1 << 62
"""A quota for looking at a folder without changing what is kept."""


class Store(Records):
    """Only `has` may be called from any thread."""

    def has(self, key: bytes) -> bool:
        """From memory."""
        entry = self.index.get(key)
        return entry is not None and not self.index.is_expired(entry, self.clock())

    def use(self, keys: Iterable[bytes]) -> None:
        """Those that are stored were used now."""
        now = int(self.clock())
        for key in keys:
            entry = self.index.get(key)
            if entry is not None:
                self.index.use(entry, now)

    def put(self, block: Block, body: Bytes) -> None:
        """Store a block, or use it if it is stored. Raises `OSError` or `NoRoom`: then it is not visible."""
        now = self.clock()
        known = self.index.get(block.key)
        if known is not None:
            self.index.use(known, int(now))
            return
        namespace = stored_namespace(block.namespace)
        header = Header(
            self.keys.fingerprint,
            block.key,
            block.parent,
            namespace,
            block.ids,
            len(body),
            checksum(body),
            now,
        )
        packed = header.pack()
        self.index.hold(block.parent)
        try:
            segment = find_room(self)
            slot = self._write(segment, packed, body)
        finally:
            self.index.let_go(block.parent)
        self.index.add(Entry(block.key, block.parent, namespace, segment, slot, int(now), int(now)))
        self.events["stored"] += 1

    def _write(self, segment: Segment, header: bytes, body: Bytes) -> int:
        try:
            return self.folder.write(segment, header, body)
        except FileNotFoundError:
            self.lost(segment)
            raise

    def fetch(self, block: Block, into: memoryview) -> ReadOutcome:
        """Fill ``into`` with a block's body. What does not hold that is removed."""
        entry = self.index.get(block.key)
        if entry is None:
            return ReadOutcome.MISSING
        if self.index.is_expired(entry, self.clock()):
            self.expire()
            return ReadOutcome.MISSING
        try:
            header = self.read(entry, into)
        except FileNotFoundError:
            self.lost(entry.segment)
            return ReadOutcome.DAMAGED
        except OSError as error:
            self.failures.add("read", error)
            return ReadOutcome.FAILED
        if header is None or header.ids != block.ids or header.parent != block.parent:
            self.discard(entry)
            return ReadOutcome.DAMAGED
        self.index.use(entry, int(self.clock()))
        return ReadOutcome.OK

    def forget(self, paths: Iterable[Iterable[Block]]) -> int:
        return removal.forget(self, paths)

    def clear(self, namespace: Namespace | None) -> int:
        return removal.clear(self, namespace)

    # -- the operator's rules

    def pin(self, name: str, keys: Iterable[bytes]) -> None:
        """Pin in place of what ``name`` pinned before."""
        self.index.unpinned(self.rules.pin(name, keys))
        self._save_rules()

    def unpin(self, name: str) -> None:
        self.index.unpinned(self.rules.unpin(name))
        self._save_rules()

    def set_ttl(self, namespace: Namespace | None, seconds: float | None) -> None:
        """``namespace`` as records have it."""
        self.rules.set_ttl(namespace, seconds)
        self.index.restore_order()
        self._save_rules()

    def _save_rules(self) -> None:
        """They hold from now on in any case; housekeeping saves them if the disk refuses that now."""
        try:
            self.rules.save()
        except OSError as error:
            self.failures.add("save", error)
