"""What is stored: records in segments under an index, and how one goes. One thread at a time."""

from collections import Counter
from collections.abc import Callable

from chatd.cache.disk.failures import Failures
from chatd.cache.disk.index import Entry, Index
from chatd.cache.disk.keys import Keys
from chatd.cache.disk.record import Header, checksum, unpack
from chatd.cache.disk.rules import Rules
from chatd.cache.disk.segment import Segment
from chatd.cache.disk.segment_folder import SegmentFolder


class Records:
    """``events`` counts what became of records: stored, evicted, expired, damaged, removed, moved.

    Files are at most ``quota_bytes``, but after a start with a smaller quota than before, until housekeeping
    has evicted enough. ``body_len`` is of the records of ``keys.fingerprint``; others may have others.
    """

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

    def own(self, segment: Segment) -> bool:
        """Whether our records can be in it."""
        label = segment.label
        return label.fingerprint == self.keys.fingerprint and label.body_len == self.body_len

    # -- reading

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

    # -- going

    def remove(self, entry: Entry, why: str) -> OSError | None:
        """Remove a record, and count why. What the disk said if it refused: then its slot is not free."""
        self.index.remove(entry)
        self.events[why] += 1
        return self.folder.kill(entry.segment, entry.slot)

    def discard(self, entry: Entry) -> None:
        """Remove a record that is not what it should be."""
        self.remove(entry, "damaged")

    def expire(self) -> None:
        """Remove all that is expired."""
        for entry in self.index.expired(self.clock()):
            self.remove(entry, "expired")

    def lost(self, segment: Segment) -> None:
        """Somebody took a file away, and all that it held is gone."""
        self.folder.disown(segment)
        for entry in [one for one in self.index.entries() if one.segment is segment]:
            self.index.remove(entry)
            self.events["damaged"] += 1

    def drop(self, segment: Segment, entries: list[Entry], why: str) -> bool:
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
