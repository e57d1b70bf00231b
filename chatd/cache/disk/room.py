"""Room for one more record within the quota: a free slot, a new one, or that of an old record."""

import math

from chatd.cache.disk.records import Records
from chatd.cache.disk.segment import Segment, bodies_at, slots_for


class NoRoom(Exception):
    """All that the quota allows is pinned, or is what the new record hangs under."""


def find_room(records: Records) -> Segment:
    """A segment that a record fits in. Old records make room for it. Raises `NoRoom`, `OSError`."""
    while True:
        segment = _with_free_slot(records) or _with_new_slot(records) or _new_segment(records)
        if segment is not None:
            return segment
        make_room(records)


def make_room(records: Records) -> None:
    """Drop a segment of another model or, if there is none, the oldest record. Raises `NoRoom`, `OSError`.

    If the disk refuses a removal, that is all: or else a disk that may only be read would lose everything.
    """
    if _drop_foreign(records):
        return
    oldest = records.index.oldest()
    if oldest is None:
        raise NoRoom
    if refused := records.remove(oldest, "evicted"):
        raise refused


def _with_free_slot(records: Records) -> Segment | None:
    """The fullest such: so that others empty, and their files can go."""
    having = (one for one in records.folder.segments.values() if one.free and records.own(one))
    return max(having, key=lambda one: one.live, default=None)


def _with_new_slot(records: Records) -> Segment | None:
    if records.folder.nbytes + records.body_len > records.quota_bytes:
        return None
    having = (one for one in records.folder.segments.values() if one.room and records.own(one))
    return next(having, None)


def _new_segment(records: Records) -> Segment | None:
    slots = slots_for(records.body_len, records.quota_bytes)
    if records.folder.nbytes + bodies_at(slots) + records.body_len > records.quota_bytes:
        return None
    return records.folder.create(records.keys.fingerprint, records.body_len, slots)


def _drop_foreign(records: Records) -> bool:
    """Drop the segment of another model that was not used for longest. False if none can be.

    They go whole: their slots are of no use to us. Pins are for the model that runs.
    """
    folder = records.folder
    used = {one.number: -math.inf for one in folder.segments.values() if not records.own(one)}
    if not used:
        return False
    entries = [one for one in records.index.entries() if one.segment.number in used]
    for entry in entries:
        number = entry.segment.number
        used[number] = max(used[number], entry.last_used)
    for number in sorted(used, key=lambda number: used[number]):
        segment = folder.segments[number]
        if records.drop(segment, [one for one in entries if one.segment is segment], "evicted"):
            return True
    return False
