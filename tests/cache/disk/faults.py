"""Files that fail, or that the machine dies under, at a chosen call."""

import errno
import random
from collections.abc import Callable
from pathlib import Path

from chatd.cache.disk.files import Bytes, Files

SECTOR = 512


class Crash(BaseException):
    """The process is no more. Nothing of the tier may run after it."""


class QuickFiles(Files):
    """Syncs nothing: what a test's folder holds need not outlive a power cut."""

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, path: Path) -> None:
        pass


class FaultyFiles(QuickFiles):
    """Counts the calls that change something, and asks ``fault`` before each what becomes of it.

    ``fault`` is given the call's number, from 1, and its name. It may raise; with `Crash` in the middle of
    a write half of that is written first, as when a process dies between two pages.
    """

    def __init__(self, fault: Callable[[int, str], BaseException | None] = lambda n, name: None) -> None:
        self.calls = 0
        self.names_of_calls: list[str] = []
        self.fault = fault
        self.read_fault: Callable[[], OSError | None] = lambda: None
        self.last_opened = ""
        self.in_middle = False

    def _before(self, name: str) -> None:
        self.calls += 1
        self.names_of_calls.append(name)
        if error := self.fault(self.calls, name):
            raise error

    def open(self, path: Path, *, create: bool = False) -> int:
        self.last_opened = path.name
        if create:
            self._before("create")
        elif error := self.read_fault():
            raise error
        return super().open(path, create=create)

    def read(self, fd: int, into: memoryview, at: int) -> int:
        if error := self.read_fault():
            raise error
        return super().read(fd, into, at)

    def write(self, fd: int, data: Bytes, at: int) -> None:
        try:
            self._before("write")
        except (OSError, Crash):
            if self.in_middle:
                super().write(fd, memoryview(data)[: len(data) // 2], at)
            raise
        super().write(fd, data, at)

    def truncate(self, fd: int, size: int) -> None:
        self._before("truncate")
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._before("sync")
        super().sync(fd)

    def sync_folder(self, path: Path) -> None:
        self._before("sync_folder")
        super().sync_folder(path)

    def rename(self, old: Path, new: Path) -> None:
        self._before("rename")
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._before("unlink")
        super().unlink(path)


def os_error(number: int) -> OSError:
    return OSError(number, errno.errorcode[number])


class PowerFiles(FaultyFiles):
    """Also knows what was not synced yet: `cut_power` takes a random part of it away again.

    Sectors of 512 bytes are lost or kept each for itself; so are a file's length, and names that were
    made, changed or removed since the folder was synced.
    """

    def __init__(self, fault: Callable[[int, str], BaseException | None] = lambda n, name: None) -> None:
        super().__init__(fault)
        self._paths: dict[int, Path] = {}
        self._sectors: dict[Path, dict[int, list[bytes]]] = {}
        self._sizes: dict[Path, int] = {}
        self._names: dict[Path, bytes | None] = {}

    def open(self, path: Path, *, create: bool = False) -> int:
        if create:
            before = path.read_bytes() if path.exists() else None
        fd = super().open(path, create=create)
        if create:
            self._names.setdefault(path, before)
        self._paths[fd] = path
        return fd

    def write(self, fd: int, data: Bytes, at: int) -> None:
        self._remember(self._paths[fd], at, len(data))
        super().write(fd, data, at)

    def truncate(self, fd: int, size: int) -> None:
        path = self._paths[fd]
        self._remember(path, size, max(0, path.stat().st_size - size))
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        path = self._paths[fd]
        self._sectors.pop(path, None)
        self._sizes.pop(path, None)

    def sync_folder(self, path: Path) -> None:
        super().sync_folder(path)
        self._names.clear()

    def rename(self, old: Path, new: Path) -> None:
        before = new.read_bytes() if new.exists() else None
        super().rename(old, new)
        self._names.setdefault(new, before)
        self._names.setdefault(old, None)
        if old in self._sectors:
            self._sectors[new], self._sizes[new] = self._sectors.pop(old), self._sizes.pop(old)

    def unlink(self, path: Path) -> None:
        before = path.read_bytes()
        super().unlink(path)
        self._names.setdefault(path, before)

    def _remember(self, path: Path, at: int, size: int) -> None:
        content = path.read_bytes()
        self._sizes.setdefault(path, len(content))
        sectors = self._sectors.setdefault(path, {})
        for sector in range(at // SECTOR, -(-(at + size) // SECTOR)):
            old = content[sector * SECTOR : (sector + 1) * SECTOR].ljust(SECTOR, b"\0")
            sectors.setdefault(sector, []).append(old)

    def cut_power(self, rng: random.Random) -> None:
        """The folder as the machine finds it afterwards."""
        for path, sectors in self._sectors.items():
            if path.exists():
                _lose(path, sectors, self._sizes[path], rng)
        for path, before in self._names.items():
            if rng.random() < 0.5:
                continue
            if before is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(before)


def _lose(path: Path, sectors: dict[int, list[bytes]], old_size: int, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    size = len(content)
    for sector, versions in sectors.items():
        if rng.random() < 0.5:
            end = (sector + 1) * SECTOR
            content.extend(bytes(max(0, end - len(content))))
            content[sector * SECTOR : end] = rng.choice(versions)
    kept_size = rng.choice((old_size, size))
    path.write_bytes(bytes(content[:kept_size]).ljust(kept_size, b"\0"))
