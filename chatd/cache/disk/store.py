"""Records in segments under an index: store, fetch, remove, make room. One thread at a time."""

import math
from collections import Counter
from collections.abc import Callable, Iterable

from chatd.cache.block_tier import Block, ReadOutcome
from chatd.cache.disk.failures import Failures
from chatd.cache.disk.files import Bytes
from chatd.cache.disk.index import Entry, Index
from chatd.cache.disk.keys import Keys
from chatd.cache.disk.record import Header, checksum, stored_namespace, unpack
from chatd.cache.disk.rules import Rules
from chatd.cache.disk.segment import Segment, bodies_at, slots_for
from chatd.cache.disk.segment_folder import SegmentFolder
from chatd.ids import Namespace

UNBOUNDED = 1 << 62
"""A quota for looking at a folder without changing what is kept."""


class NoRoom(Exception):
    """All that the quota allows is pinned, or is what the new record hangs under."""


class Store:
    """``events`` counts what became of records: stored, evicted, expired, damaged, removed, moved."""

    def __init__(
        self,
        keys: Keys,
        folder: SegmentFolder,
        index: Index,
        rules: Rules,
        failures: Failures,
        clock: Callable[[], float],
        *,
        body_len: int,
        quota_bytes: int,
    ) -> None:
        self.keys = keys
        self.folder = folder
        self.index = index
        self.rules = rules
        self.failures = failures
        self.clock = clock
        self.body_len = body_len
        self.quota_bytes = quota_bytes
        self.events: Counter[str] = Counter()

    def has(self, key: bytes) -> bool:
        """From any thread."""
        entry = self.index.get(key)
        return entry is not None and not self.index.is_expired(entry, self.clock())

    def use(self, keys: Iterable[bytes]) -> None:
        """Those that are stored were used now."""
        now = int(self.clock())
        for key in keys:
            entry = self.index.get(key)
            if entry is not None:
                self.index.use(entry, now)

    # -- one record

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
            segment = self._segment_with_room()
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

    def read(self, entry: Entry, into: memoryview) -> Header | None:
        """A record, whole and as the index says, or None. Raises `OSError`."""
        place = entry.segment, entry.slot
        header = unpack(self.folder.read_header(place))
        if header is None or header.key != entry.key or header.body_len != len(into):
            return None
        if header.fingerprint != entry.segment.label.fingerprint or header.namespace != entry.namespace:
            return None
        if self.folder.read_body(place, into) != len(into) or checksum(into) != header.body_sum:
            return None
        return header

    def discard(self, entry: Entry) -> None:
        """Remove a record that is not what it should be."""
        self.remove(entry, "damaged")

    def lost(self, segment: Segment) -> None:
        """Somebody took a file away, and all that it held is gone."""
        self.folder.disown(segment)
        for entry in [one for one in self.index.entries() if one.segment is segment]:
            self.index.remove(entry)
            self.events["damaged"] += 1

    def remove(self, entry: Entry, why: str) -> None:
        """Remove a record, and count why."""
        self.index.remove(entry)
        self.folder.kill(entry.segment, entry.slot)
        self.events[why] += 1

    # -- many

    def forget(self, paths: Iterable[Iterable[Block]]) -> int:
        """See `BlockTier.forget`; under the fingerprints of other models too. How many went."""
        before = self.events["removed"]
        foreign = {one.label.fingerprint for one in self.folder.segments.values()} - {self.keys.fingerprint}
        for path in paths:
            blocks = list(path)
            self._forget([block.key for block in blocks])
            for fingerprint in foreign:
                self._forget(self.keys.under(fingerprint, blocks))
        self._sync_removals()
        return self.events["removed"] - before

    def _forget(self, keys: list[bytes]) -> None:
        for key in reversed(keys):
            entry = self.index.get(key)
            if self.index.children(key) or (entry and self.rules.is_pinned(key)):
                return
            if entry:
                self.remove(entry, "removed")

    def clear(self, namespace: Namespace | None) -> int:
        """See `BlockTier.clear`. How many went."""
        before = self.events["removed"]
        name = None if namespace is None else stored_namespace(namespace)
        going = [one for one in self.index.entries() if name in (None, one.namespace)]
        self._remove_all([one for one in going if not self.rules.is_pinned(one.key)], "removed")
        self._sync_removals()
        return self.events["removed"] - before

    def expire(self) -> None:
        """Remove all that is expired."""
        for entry in self.index.expired(self.clock()):
            self.remove(entry, "expired")

    def _remove_all(self, entries: Iterable[Entry], why: str) -> None:
        """A segment of which nothing stays goes as one file."""
        groups: dict[int, list[Entry]] = {}
        for entry in entries:
            groups.setdefault(entry.segment.number, []).append(entry)
        for number, group in groups.items():
            segment = self.folder.segments[number]
            if segment.live > len(group) or not self._drop(segment, group, why):
                for entry in group:
                    self.remove(entry, why)

    def _drop(self, segment: Segment, entries: list[Entry], why: str) -> bool:
        """Remove a segment, whose records ``entries`` are. False if the disk refused."""
        try:
            self.folder.drop(segment)
        except OSError as error:
            self.failures.add("remove", error)
            return False
        for entry in entries:
            self.index.remove(entry)
        self.events[why] += len(entries)
        return True

    # -- the operator's rules

    def pin(self, name: str, keys: Iterable[bytes]) -> None:
        """Pin in place of what ``name`` pinned before."""
        self.unpin(name)
        self.rules.pin(name, keys)
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

    def ids_of(self, key: bytes) -> bytes | None:
        """The ids in a record, or None."""
        entry = self.index.get(key)
        if entry is None:
            return None
        try:
            header = unpack(self.folder.read_header((entry.segment, entry.slot)))
        except OSError as error:
            self.failures.add("read", error)
            return None
        return header.ids if header is not None and header.key == key else None

    def _sync_removals(self) -> None:
        """What somebody asked to be removed does not come back after a power cut either."""
        try:
            self.folder.sync()
        except OSError as error:
            self.failures.add("sync", error)

    # -- room

    def _segment_with_room(self) -> Segment:
        """One that a record fits in, by the quota. Old records make room. Raises `NoRoom`, `OSError`."""
        while True:
            segment = self._with_free_slot() or self._with_new_slot() or self._new_segment()
            if segment is not None:
                return segment
            if not self.drop_foreign():
                oldest = self.index.oldest()
                if oldest is None:
                    raise NoRoom
                self.remove(oldest, "evicted")

    def own(self, segment: Segment) -> bool:
        """Whether our records can be in it."""
        label = segment.label
        return label.fingerprint == self.keys.fingerprint and label.body_len == self.body_len

    def _with_free_slot(self) -> Segment | None:
        """The fullest such: so that others empty, and their files can go."""
        having = (one for one in self.folder.segments.values() if one.free and self.own(one))
        return max(having, key=lambda one: one.live, default=None)

    def _with_new_slot(self) -> Segment | None:
        if self.folder.nbytes + self.body_len > self.quota_bytes:
            return None
        having = (one for one in self.folder.segments.values() if one.room and self.own(one))
        return next(having, None)

    def _new_segment(self) -> Segment | None:
        slots = slots_for(self.body_len, self.quota_bytes)
        if self.folder.nbytes + bodies_at(slots) + self.body_len > self.quota_bytes:
            return None
        return self.folder.create(self.keys.fingerprint, self.body_len, slots)

    def drop_foreign(self) -> bool:
        """Drop the segment of another model that was not used for longest. False if there is none.

        They go whole: their slots are of no use to us. Pins are for the model that runs.
        """
        used = {one.number: -math.inf for one in self.folder.segments.values() if not self.own(one)}
        if not used:
            return False
        entries = [one for one in self.index.entries() if one.segment.number in used]
        for entry in entries:
            number = entry.segment.number
            used[number] = max(used[number], entry.last_used)
        for number in sorted(used, key=lambda number: used[number]):
            segment = self.folder.segments[number]
            if self._drop(segment, [one for one in entries if one.segment is segment], "evicted"):
                return True
        return False
