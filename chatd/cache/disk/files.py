"""The system calls that the disk tier makes, so that tests can put in their place ones that fail."""

import os
from pathlib import Path

Bytes = bytes | bytearray | memoryview


class Files:
    """Every touch of the disk. All raise `OSError`; offsets and sizes are bytes."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """A descriptor to read and write. ``create``: a new, empty file of the owner's alone (0600)."""
        flags = os.O_CREAT | os.O_TRUNC if create else 0
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def read(self, fd: int, into: memoryview, at: int) -> int:
        """Fill ``into``. The number of bytes, less than asked for only where the file ends."""
        done = 0
        while done < len(into) and (count := os.preadv(fd, [into[done:]], at + done)):
            done += count
        return done

    def write(self, fd: int, data: Bytes, at: int) -> None:
        """Write all of ``data``. After an error any part of it may have been written."""
        view, done = memoryview(data), 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], at + done)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """What was written to the file, and its length, outlives a power cut from here on."""
        os.fdatasync(fd)

    def sync_folder(self, path: Path) -> None:
        """What was created, renamed and unlinked in the folder outlives a power cut from here on."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def names(self, folder: Path) -> list[str]:
        """What is in the folder, sorted."""
        return sorted(os.listdir(folder))


def read_file(files: Files, path: Path, limit: int = 1 << 30) -> bytes | None:
    """All of a small file; None if there is none, or if it is larger than ``limit``."""
    try:
        fd = files.open(path)
    except FileNotFoundError:
        return None
    try:
        size = files.size(fd)
        if size > limit:
            return None
        data = bytearray(size)
        return bytes(data[: files.read(fd, memoryview(data), 0)])
    finally:
        files.close(fd)


def replace_file(files: Files, path: Path, data: bytes) -> None:
    """Put ``data`` in place of the file at once: a crash at any point leaves the old one or the new one.

    An error leaves the old one, and no temporary file if one can be removed.
    """
    fresh = path.with_name(path.name + TEMPORARY)
    try:
        fd = files.open(fresh, create=True)
        try:
            files.write(fd, data, 0)
            files.sync(fd)
        finally:
            files.close(fd)
        files.rename(fresh, path)
    except OSError:
        _remove(files, fresh)
        raise
    files.sync_folder(path.parent)


def _remove(files: Files, path: Path) -> None:
    try:
        files.unlink(path)
    except OSError:
        return  # it is not there, or is removed at the next start


TEMPORARY = ".new"
