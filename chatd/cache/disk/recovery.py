"""The index from what the files say: every start does this, so there is no second truth to trust.

Only labels and headers are read. What is not a record, whole and with its body in the file, is not one.
"""

from dataclasses import dataclass, field

from chatd.cache.disk.failures import Failures
from chatd.cache.disk.files import TEMPORARY
from chatd.cache.disk.index import Entry
from chatd.cache.disk.record import DEAD_HEADER, HEADER_BYTES, Header, unpack
from chatd.cache.disk.segment import (
    SUFFIX,
    Label,
    Segment,
    bodies_at,
    header_at,
    is_whole,
    number_of,
    unpack_label,
)
from chatd.cache.disk.segment_folder import SegmentFolder

_LARGEST_TABLE = 1 << 24


@dataclass(slots=True)
class Found:
    """``entries`` by key; ``damaged`` labels, and headers that are neither empty nor a record's."""

    entries: dict[bytes, Entry] = field(default_factory=dict)
    damaged: int = 0


def recover(folder: SegmentFolder, failures: Failures) -> Found:
    """Read all segments into ``folder``. Removes what is none, or of another format, or temporary.

    A file that the disk does not let us read is left alone and counted. Raises `OSError` if the folder
    itself cannot be read.
    """
    found = Found()
    names = [name for name in folder.names() if name.endswith((SUFFIX, TEMPORARY))]
    folder.last_number = max((number_of(name) or 0 for name in names), default=0)
    for name in names:
        try:
            _recover_file(folder, name, found)
        except OSError as error:
            failures.add("start", error)
    return found


def _recover_file(folder: SegmentFolder, name: str, found: Found) -> None:
    number = number_of(name)
    label = None if number is None else _read_label(folder, name, found)
    if number is None or label is None:
        folder.remove_stray(name)
        return
    segment = Segment(number, label)
    table = memoryview(bytearray(segment.bodies_at))
    count, size = folder.read_start(name, table)
    segment.used = min(label.slots, max(0, size - segment.bodies_at) // label.body_len)
    live, spoilt = _read_table(segment, table[:count], found)
    segment.live = len(live)
    segment.free = sorted(set(range(segment.used)) - live, reverse=True)
    folder.adopt(segment)
    last = max(live, default=-1) + 1
    if size != segment.bodies_at + last * label.body_len:
        folder.cut(segment, last)
    for slot in spoilt:
        folder.blank(segment, slot)


def _read_label(folder: SegmentFolder, name: str, found: Found) -> Label | None:
    head = bytearray(HEADER_BYTES)
    folder.read_start(name, memoryview(head))
    label = unpack_label(head)
    if label is not None and bodies_at(label.slots) <= _LARGEST_TABLE:
        return label
    found.damaged += any(head) and not is_whole(head)
    return None


def _read_table(segment: Segment, table: memoryview, found: Found) -> tuple[set[int], list[int]]:
    """The slots that hold records, now in ``found``, and those whose header is to be emptied."""
    live: set[int] = set()
    spoilt: list[int] = []
    for slot in range(segment.label.slots):
        data = table[header_at(slot) : header_at(slot + 1)]
        if data == DEAD_HEADER or not data:
            continue
        header = unpack(data)
        if header is None or slot >= segment.used or not _belongs(header, segment):
            found.damaged += 1
            spoilt.append(slot)
        elif header.key in found.entries:  # a crash came between a record's move and its end
            spoilt.append(slot)
        else:
            found.entries[header.key] = _entry(header, segment, slot)
            live.add(slot)
    return live, spoilt


def _belongs(header: Header, segment: Segment) -> bool:
    return header.fingerprint == segment.label.fingerprint and header.body_len == segment.label.body_len


def _entry(header: Header, segment: Segment, slot: int) -> Entry:
    when = int(header.written_at)
    return Entry(header.key, header.parent, header.namespace, segment, slot, when, when)
