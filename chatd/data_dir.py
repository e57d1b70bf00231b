"""The data folder: 0700, one server (or one command that writes) at a time.

``server.lock`` is held with `fcntl.flock` for as long as the owner lives, so a crash leaves nothing
to clean up. ``server.json`` (0600) says where the owner listens, for commands, and holds the token by which
it knows them; it is believed only while the lock is held.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from chatd.config import CONFIG_NAME
from chatd.errors import SetupError

LOCK_NAME = "server.lock"
ADDRESS_NAME = "server.json"
LOOK_S = 0.2
"""`live_server` holds the lock for the blink of an eye: that must not keep a server from starting."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """``url`` is the page's, without a slash at its end. ``token`` opens the operator's routes: whoever can
    read it here could read the files as well. Never shown. ``cert`` is the file of the certificate to
    expect, if the server speaks TLS: it need not be one for this address.
    """

    pid: int
    url: str
    version: str
    token: str = field(default="", repr=False)
    cert: str = ""


def make_data_dir(path: Path) -> None:
    """Create ``path`` if need be and keep other users out of it.

    A folder that is open to others and holds things that are not ours is left alone: it may be
    somebody's home, or ``/tmp``.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_ours = not any(path.iterdir()) or (path / LOCK_NAME).exists() or (path / CONFIG_NAME).exists()
        if path.stat().st_mode & 0o077 and is_ours:
            path.chmod(0o700)
        is_open = bool(path.stat().st_mode & 0o077)
    except OSError as error:
        raise SetupError(
            f"The data folder {path} cannot be used: {error.strerror}. Choose another with --data-dir."
        ) from None
    if is_open:
        raise SetupError(
            f"The data folder {path} is open to other users and holds files that are not chatd's. "
            "Close it (chmod 700), or choose an empty one with --data-dir."
        )


@contextlib.contextmanager
def hold_data_dir(path: Path) -> Iterator[None]:
    """Make the folder and hold its lock. `SetupError` names the process that has it."""
    make_data_dir(path)
    try:
        lock = os.fdopen(os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="ascii")
    except OSError as error:
        raise SetupError(f"The data folder {path} cannot be written: {error.strerror}.") from None
    with lock:
        if not _lock_within(lock, LOOK_S):
            pid, server = lock.read(), read_address(path)
            owner = f"Process {pid}" if pid else "Another process"
            where = f" and serves it at {server.url}" if server else ""
            raise SetupError(
                f"{owner} is already using the data folder {path}{where}. "
                "Stop it first, or choose another folder with --data-dir."
            )
        (path / ADDRESS_NAME).unlink(missing_ok=True)  # of one that was killed
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        try:
            yield
        finally:
            (path / ADDRESS_NAME).unlink(missing_ok=True)
            lock.truncate(0)


def _lock_within(lock: IO[Any], seconds: float) -> bool:
    """Whether the lock could be had; it is asked for at least once."""
    until = time.monotonic() + seconds
    while not (is_ours := _try_lock(lock)) and time.monotonic() < until:
        time.sleep(seconds / 20)
    return is_ours


def _try_lock(lock: IO[Any]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_address(path: Path, address: ServerAddress) -> None:
    """Say where the server that holds ``path`` listens. A reader sees the whole file or none."""
    fresh = path / (ADDRESS_NAME + ".new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(asdict(address), file)
    fresh.replace(path / ADDRESS_NAME)


def read_address(path: Path) -> ServerAddress | None:
    """The address that was written last, whether its server still lives or not."""
    try:
        return ServerAddress(**json.loads((path / ADDRESS_NAME).read_text("utf-8")))
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError, TypeError):
        return None


def live_server(path: Path) -> ServerAddress | None:
    """The server that holds ``path`` now, or None. Changes nothing."""
    address = read_address(path)
    if address is None:
        return None
    with (path / LOCK_NAME).open("rb") as lock:
        return None if _try_lock(lock) else address
