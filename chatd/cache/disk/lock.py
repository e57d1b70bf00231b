"""One server at a time on a folder of records."""

import fcntl
import os
from pathlib import Path

from chatd.errors import SetupError

LOCK_NAME = "lock"


class FolderLock:
    """Held from construction to `release`, or to the death of the process. Makes the folder (0700).

    Raises `SetupError` if another has it, naming its process.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SetupError(
                f"The folder of the disk tier, {folder}, cannot be used: {error.strerror}. "
                "Mend that, choose another with --data-dir, or turn the tier off with --disk off."
            ) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._fd, 32, 0).decode("ascii", "replace")
            os.close(self._fd)
            raise SetupError(
                f"{f'Process {owner}' if owner else 'Another process'} is already using the disk tier in "
                f"{folder}. Stop it first, or choose another folder with --disk-dir."
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)
