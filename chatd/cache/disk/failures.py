"""Failures of the disk, counted by what was tried and why it failed."""

import errno
import logging
from collections import Counter
from collections.abc import Callable

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class Failures:
    """``counts`` has keys such as "write ENOSPC"."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, action: str, error: OSError) -> str:
        """The error's name."""
        name = errno.errorcode.get(error.errno or 0, "OSError")
        self.counts[f"{action} {name}"] += 1
        return name


class Suspension:
    """Writing stops when a write failed and is tried again after 1 s, then 2, up to a minute.

    Over when a write succeeds. Until then each pause ends with one try: a full disk costs a lost block a
    minute, and nobody has to say that there is room again.
    """

    def __init__(self, timer: Callable[[], float]) -> None:
        self._timer = timer
        self._pause_s = 0.0
        self._until = 0.0
        self.cause = ""
        """Why the last write failed; empty once one succeeded."""

    @property
    def active(self) -> bool:
        return bool(self.cause) and self._timer() < self._until

    def failed(self, cause: str) -> None:
        if not self.cause:  # once for each stretch of failures, however many there are
            log.warning(
                "KV cannot be written to disk (%s): serving goes on, and writing is tried again", cause
            )
        self._pause_s = min(max(FIRST_PAUSE_S, 2 * self._pause_s), LONGEST_PAUSE_S)
        self._until = self._timer() + self._pause_s
        self.cause = cause

    def succeeded(self) -> None:
        if self.cause:
            log.warning("KV is written to disk again")
        self.cause, self._pause_s = "", 0.0
