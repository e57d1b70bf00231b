"""All segment files of a folder: slots are taken, written, read and given back here.

Nothing here knows of keys or recency. No method leaves a segment saying other than what the file holds,
whichever call in it fails.
"""

from collections import OrderedDict
from pathlib import Path

from chatd.cache.disk.failures import Failures
from chatd.cache.disk.files import Bytes, Files
from chatd.cache.disk.record import DEAD_HEADER, HEADER_BYTES
from chatd.cache.disk.segment import Label, Segment, header_at

MOST_OPEN = 48
"""File descriptors held: a large tier has more segments than a process may have open."""

Place = tuple[Segment, int]
"""A slot of a segment."""


class SegmentFolder:
    """``nbytes`` is what the files take up. Not thread-safe."""

    def __init__(self, files: Files, folder: Path, failures: Failures) -> None:
        self._files = files
        self._failures = failures
        self.folder = folder
        self.segments: dict[int, Segment] = {}
        self.nbytes = 0
        self.last_number = 0
        """No file has a higher one; none is used twice in a run."""
        self._open: OrderedDict[int, int] = OrderedDict()
        self._new_names = False
        self.unsynced_bytes = 0
        """Written to bodies since the last `sync`."""
        self._undead: list[Place] = []

    # -- files

    def create(self, fingerprint: bytes, body_len: int, slots: int) -> Segment:
        """A new segment without a body. Raises `OSError`, and then there is no file."""
        self.last_number += 1
        label = Label(fingerprint, body_len, slots)
        segment = Segment(self.last_number, label, synced=False)
        path = self.folder / segment.name
        fd = self._files.open(path, create=True)
        try:
            self._files.write(fd, bytes(segment.bodies_at - HEADER_BYTES), HEADER_BYTES)
            self._files.write(fd, label.pack(), 0)
        except OSError:
            self._files.close(fd)
            self._unlink(path)
            raise
        self._keep_open(segment.number, fd)
        self._new_names = True
        self.adopt(segment)
        return segment

    def adopt(self, segment: Segment) -> None:
        """Count a segment whose file is there."""
        self.segments[segment.number] = segment
        self.nbytes += segment.nbytes

    def drop(self, segment: Segment) -> None:
        """Remove the file with all that it holds. Raises `OSError`, and then it is all still there."""
        self._files.unlink(self.folder / segment.name)
        self._new_names = True
        self.disown(segment)

    def disown(self, segment: Segment) -> None:
        """Know it no more; its file is not there."""
        del self.segments[segment.number]
        self.nbytes -= segment.nbytes
        fd = self._open.pop(segment.number, None)
        if fd is not None:
            self._files.close(fd)

    def remove_stray(self, name: str) -> None:
        """Remove a file that is no segment of ours. Raises `OSError`."""
        self._files.unlink(self.folder / name)
        self._new_names = True

    def _unlink(self, path: Path) -> None:
        try:
            self._files.unlink(path)
        except OSError:
            return  # it holds no record, and the next start removes it

    # -- slots

    def write(self, segment: Segment, header: bytes, body: Bytes) -> int:
        """Write a record to a slot of the segment, which must have `Segment.room`; the slot.

        The header comes last: until it is there in full there is no record. Raises `OSError`: then there is
        none either, and the slot is free again.
        """
        fd = self._fd(segment)
        slot = segment.free.pop() if segment.free else segment.used
        try:
            self._files.write(fd, body, segment.body_at(slot))
        except OSError:
            self._give_back(segment, slot, fd)
            raise
        if slot == segment.used:
            segment.used += 1
            self.nbytes += segment.label.body_len
        segment.synced = False
        self.unsynced_bytes += len(body)
        try:
            self._files.write(fd, header, header_at(slot))
        except OSError:
            self._bury(segment, slot)
            raise
        segment.live += 1
        return slot

    def _give_back(self, segment: Segment, slot: int, fd: int) -> None:
        """A slot whose body could not be written: cut off, or left for when no other slot is free."""
        if slot < segment.used:
            segment.free.insert(0, slot)
            return
        try:
            self._files.truncate(fd, segment.nbytes)
        except OSError as error:  # the file is longer than it need be; nothing reads it there
            self._failures.add("truncate", error)

    def kill(self, segment: Segment, slot: int) -> OSError | None:
        """Remove a record. If the disk refuses, with what is returned, its slot is of no use for now."""
        segment.live -= 1
        return self._bury(segment, slot)

    def _bury(self, segment: Segment, slot: int) -> OSError | None:
        try:
            self._files.write(self._fd(segment), DEAD_HEADER, header_at(slot))
        except OSError as error:
            self._failures.add("remove", error)
            self._undead.append((segment, slot))
            return error
        segment.synced = False
        segment.free.append(slot)
        return None

    def bury_again(self) -> None:
        """Remove what could not be removed before."""
        undead, self._undead = self._undead, []
        for segment, slot in undead:
            if self.segments.get(segment.number) is segment:
                self._bury(segment, slot)

    @property
    def undead(self) -> int:
        """Records that are gone from memory, while the disk did not let them be removed yet."""
        return len(self._undead)

    def read_header(self, place: Place) -> bytes:
        """Up to 512 bytes: fewer if the file was cut. Raises `OSError`."""
        data = bytearray(HEADER_BYTES)
        count = self._files.read(self._fd(place[0]), memoryview(data), header_at(place[1]))
        return bytes(data[:count])

    def read_body(self, place: Place, into: memoryview) -> int:
        """Bytes read: fewer than a body has if the file was cut. Raises `OSError`."""
        return self._files.read(self._fd(place[0]), into, place[0].body_at(place[1]))

    def read_start(self, name: str, into: memoryview) -> tuple[int, int]:
        """Bytes read of a file's start, and the file's length. Raises `OSError`."""
        fd = self._files.open(self.folder / name)
        try:
            return self._files.read(fd, into, 0), self._files.size(fd)
        finally:
            self._files.close(fd)

    def blank(self, segment: Segment, slot: int) -> None:
        """Empty the header of a slot that holds none, so that it is not taken for a damaged one again."""
        if slot < segment.used:
            segment.free.remove(slot)
            self._bury(segment, slot)
            return
        self._files.write(self._fd(segment), DEAD_HEADER, header_at(slot))

    def cut(self, segment: Segment, used: int) -> None:
        """Cut off what is right of slot ``used - 1``, where no live record may be. Raises `OSError`."""
        shorter = segment.bodies_at + used * segment.label.body_len
        self._files.truncate(self._fd(segment), shorter)
        self.nbytes -= segment.nbytes - shorter
        segment.used = used
        segment.free = [slot for slot in segment.free if slot < used]
        segment.synced = False

    # -- durability

    def sync(self) -> None:
        """All that was written and removed so far outlives a power cut. Raises `OSError`."""
        for segment in [one for one in self.segments.values() if not one.synced]:
            self._files.sync(self._fd(segment))
            segment.synced = True
        if self._new_names:
            self._files.sync_folder(self.folder)
            self._new_names = False
        self.unsynced_bytes = 0

    @property
    def synced(self) -> bool:
        return not self._new_names and all(one.synced for one in self.segments.values())

    def names(self) -> list[str]:
        return self._files.names(self.folder)

    def close(self) -> None:
        while self._open:
            self._files.close(self._open.popitem()[1])

    # -- descriptors

    def _fd(self, segment: Segment) -> int:
        number = segment.number
        fd = self._open.get(number)
        if fd is None:
            fd = self._files.open(self.folder / segment.name)
            self._keep_open(number, fd)
        else:
            self._open.move_to_end(number)
        return fd

    def _keep_open(self, number: int, fd: int) -> None:
        self._open[number] = fd
        while len(self._open) > MOST_OPEN:
            self._files.close(self._open.popitem(last=False)[1])
