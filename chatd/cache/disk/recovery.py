"""The index from what the files say: every start does this, so there is no second truth to trust.

Only labels and headers are read. What cannot be a record is not one: it is counted, and its slot is
written over with zeros when it is next used or cut off if it is the file's tail.
"""

from dataclasses import dataclass, field

from chatd.cache.disk.failures import Failures
from chatd.cache.disk.files import TEMPORARY
from chatd.cache.disk.index import Entry
from chatd.cache.disk.record import DEAD_HEADER, HEADER_BYTES, Header, unpack
from chatd.cache.disk.segment import SUFFIX, Segment, bodies_at, header_at, unpack_label
from chatd.cache.disk.segment_folder import SegmentFolder

_LARGEST_TABLE = 1 << 24


@dataclass(slots=True)
class Found:
    """``entries`` by key; ``damaged`` headers that are neither a record nor empty, or labels."""

    entries: dict[bytes, Entry] = field(default_factory=dict)
    damaged: int = 0


def recover(folder: SegmentFolder, failures: Failures) -> Found:
    """Read all segments into ``folder``. Removes files that are none of ours, or of another format.

    A file that the disk does not let us read is left alone and counted. Raises `OSError` if the folder
    itself cannot be read.
    """
    found = Found()
    for name in folder.names():
        if not name.endswith((SUFFIX, TEMPORARY)):
            continue
        try:
            if name.endswith(TEMPORARY) or not _recover_segment(folder, name, found):
                folder.remove_stray(name)
        except OSError as error:
            failures.add("start", error)
    return found


def _recover_segment(folder: SegmentFolder, name: str, found: Found) -> bool:
    """False if the file is no segment, or none under this name."""
    head = bytearray(HEADER_BYTES)
    folder.read_start(name, memoryview(head))
    label = unpack_label(head)
    if label is None or bodies_at(label.slots) > _LARGEST_TABLE:
        found.damaged += any(head)
        return False
    segment = Segment(label)
    if segment.name != name:
        found.damaged += 1
        return False
    table = bytearray(segment.bodies_at)
    count, size = folder.read_start(name, memoryview(table))
    segment.used = min(label.slots, max(0, size - segment.bodies_at) // label.body_len)
    live = _read_table(folder, segment, memoryview(table)[:count], found)
    segment.live = len(live)
    segment.free = sorted(set(range(segment.used)) - live, reverse=True)
    folder.adopt(segment)
    last = max(live, default=-1) + 1
    if size != segment.bodies_at + last * label.body_len:
        folder.cut(segment, last)
    return True


def _read_table(folder: SegmentFolder, segment: Segment, table: memoryview, found: Found) -> set[int]:
    """The slots that hold records, entered in ``found``."""
    live: set[int] = set()
    for slot in range(segment.label.slots):
        data = table[header_at(slot) : header_at(slot + 1)]
        if data == DEAD_HEADER or not data:
            continue
        header = unpack(data)
        if header is None or slot >= segment.used or not _belongs(header, segment):
            found.damaged += 1
        elif header.key not in found.entries:  # else: a crash came between a record's move and its end
            found.entries[header.key] = _entry(header, segment, slot)
            live.add(slot)
    return live


def _belongs(header: Header, segment: Segment) -> bool:
    return header.fingerprint == segment.label.fingerprint and header.body_len == segment.label.body_len


def _entry(header: Header, segment: Segment, slot: int) -> Entry:
    when = int(header.written_at)
    return Entry(header.key, header.parent, header.namespace, segment, slot, when, when)
