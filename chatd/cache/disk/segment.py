"""One segment file: a first block that says what it is, a table of headers, then the bodies in equal slots.

    [ label 512 ][ header 0 ][ header 1 ] ... [ header slots-1 ][ gap to 4 KiB ][ body 0 ][ body 1 ] ...

All headers of a segment are read at once, which is what makes a start fast: the index of 100,000 records
of 1.47 MB is 50 MB of headers in some 600 stretches, and not 100,000 seeks in 147 GB. Slots are equal, so
a removed record's is written again as it is: a full tier neither grows nor copies.
"""

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from chatd.cache.disk.files import Bytes
from chatd.cache.disk.record import FORMAT_VERSION, HEADER_BYTES, KEY_BYTES, SUM_BYTES, checksum

SEGMENT_BYTES = 256 << 20
MOST_SLOTS = 2048
"""Of small bodies: keeps the table, which is written with zeros when a segment is made, at 1 MiB."""

SUFFIX = ".seg"
_MAGIC = b"chatdSG\n"
_LABEL = struct.Struct(f"<8sIIQ{KEY_BYTES}s")
_PAGE = 4096


class Label(NamedTuple):
    """What is the same for all of a file's records. The file's name means nothing: it may be renamed."""

    fingerprint: bytes
    body_len: int
    slots: int

    def pack(self) -> bytes:
        """512 bytes."""
        fields = _LABEL.pack(_MAGIC, FORMAT_VERSION, self.slots, self.body_len, self.fingerprint)
        padded = fields.ljust(HEADER_BYTES - SUM_BYTES, b"\0")
        return padded + checksum(padded)


def is_whole(data: Bytes) -> bool:
    """Whether this is a label, of whatever format, as it was written."""
    return len(data) == HEADER_BYTES and checksum(data[:-SUM_BYTES]) == data[-SUM_BYTES:]


def unpack_label(data: Bytes) -> Label | None:
    """None if these bytes are not the label of a segment of this format."""
    if not is_whole(data):
        return None
    magic, version, slots, body_len, fingerprint = _LABEL.unpack_from(data)
    is_ours = magic == _MAGIC and version == FORMAT_VERSION and slots > 0 and body_len > 0
    return Label(fingerprint, body_len, slots) if is_ours else None


def slots_for(body_len: int, quota_bytes: int) -> int:
    """Slots of a new segment: 256 MiB or, of a small quota, a sixteenth, so that whole files can go."""
    wanted = min(SEGMENT_BYTES, quota_bytes // 16)
    return max(1, min(MOST_SLOTS, wanted // (body_len + HEADER_BYTES)))


@dataclass(slots=True, eq=False)
class Segment:
    """What is known of a file. Changed by `SegmentFolder` only.

    Slots below ``used`` have room in the file. Of these ``free`` hold nothing and may be written, ``live``
    hold records, and the rest is out of use: the disk did not take what was written there.
    """

    number: int
    label: Label
    used: int = 0
    live: int = 0
    free: list[int] = field(default_factory=list)
    synced: bool = True

    @property
    def bodies_at(self) -> int:
        return bodies_at(self.label.slots)

    @property
    def nbytes(self) -> int:
        """Length of the file."""
        return self.bodies_at + self.used * self.label.body_len

    @property
    def room(self) -> int:
        """Slots that could be written without another file."""
        return len(self.free) + self.label.slots - self.used

    @property
    def name(self) -> str:
        return file_name(self.number)

    def body_at(self, slot: int) -> int:
        return self.bodies_at + slot * self.label.body_len


def bodies_at(slots: int) -> int:
    """Bytes before the first body."""
    return -(-(1 + slots) * HEADER_BYTES // _PAGE) * _PAGE


def header_at(slot: int) -> int:
    return (1 + slot) * HEADER_BYTES


def file_name(number: int) -> str:
    return f"{number:08d}{SUFFIX}"


def number_of(name: str) -> int | None:
    """The inverse; None for names of other files."""
    stem = name.removesuffix(SUFFIX)
    return int(stem) if name.endswith(SUFFIX) and stem.isdecimal() and name == file_name(int(stem)) else None
