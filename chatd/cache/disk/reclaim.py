"""Space goes back to the file system in small steps, while there is nothing else to do.

A full tier needs none of this: each new record takes the slot of an old one. It is for what was
forgotten, cleared or expired, and for a quota that was made smaller.
"""

from chatd.cache.disk.index import Entry
from chatd.cache.disk.records import Records
from chatd.cache.disk.room import NoRoom, make_room
from chatd.cache.disk.segment import Segment


class Reclaimer:
    """Empties the sparsest segments into free slots of others, and removes files that hold nothing."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._folder = records.folder

    def step(self) -> bool:
        """One file call's worth, or one record's. True if there may be more. Raises `OSError`."""
        return self._drop_empty() or self._move_one() or self._cut_tail() or self._shrink()

    def _drop_empty(self) -> bool:
        empty = next((one for one in self._folder.segments.values() if not one.live), None)
        if empty is None:
            return False
        self._folder.drop(empty)
        return True

    def _cut_tail(self) -> bool:
        """Cut off the free slots at a segment's end."""
        for segment in self._folder.segments.values():
            used, free = segment.used, set(segment.free)
            while used - 1 in free:
                used -= 1
            if used < segment.used:
                self._folder.cut(segment, used)
                return True
        return False

    def _move_one(self) -> bool:
        """Move a record out of the sparsest segment, if all of it has room in others' free slots."""
        own = [one for one in self._folder.segments.values() if self._records.own(one)]
        source = min(own, key=lambda one: one.live, default=None)
        if source is None or not (self._is_sparse(source) or self._over_quota):
            return False
        others = [one for one in own if one.free and one is not source]
        if sum(len(one.free) for one in others) < source.live:
            return False
        entry = next(one for one in self._records.index.entries() if one.segment is source)
        self._move(entry, max(others, key=lambda one: one.live))
        return True

    def _move(self, entry: Entry, target: Segment) -> None:
        """The copy is durable before the original goes. After a crash between, the start finds two and
        takes one.
        """
        body = memoryview(bytearray(entry.segment.label.body_len))
        header = self._records.read(entry, body)
        if header is None:
            self._records.discard(entry)
            return
        slot = self._folder.write(target, header.pack(), body)
        try:
            self._folder.sync()
        except OSError:
            self._folder.kill(target, slot)
            raise
        original = entry.segment, entry.slot
        entry.segment, entry.slot = target, slot
        self._folder.kill(*original)
        self._records.events["moved"] += 1

    def _shrink(self) -> bool:
        """Evict one record, or a segment of another model, while the files are over the quota."""
        if not self._over_quota:
            return False
        try:
            make_room(self._records)
        except NoRoom:
            return False
        return True

    @property
    def _over_quota(self) -> bool:
        return self._folder.nbytes > self._records.quota_bytes

    @staticmethod
    def _is_sparse(segment: Segment) -> bool:
        return 2 * segment.live <= segment.label.slots
