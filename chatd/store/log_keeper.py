"""Keeps the write-ahead log small: writes it back to the database and cuts it to nothing.

SQLite could do that by itself at a commit, but only when no reader looks at the log in that very
moment; with steady readers it grows without bound (91 MB in 20,000 commits, measured with one reader left
open). So when the log is too long, new readers wait at the gate until those inside are done, and
meanwhile the writer goes on.
"""

import os
import sqlite3
import time
from pathlib import Path

import structlog
from sqlalchemy import Connection

from chatd.store.connect import BUSY_TIMEOUT_MS
from chatd.store.readers import ReadGate

log = structlog.get_logger(__name__)

LIMIT_BYTES = 8 * 2**20
"""A longer log is written back: every 22 flushes of 64 streams, in 9 to 13 ms (measured on two cores)."""

LOOK_EVERY = 4
"""Commits between two looks at the log's length: a look takes as long as a twentieth of a flush."""

RETRY_BYTES = 4 * 2**20
"""Having given up on a long reader, try again when the log has grown by this much."""

PRESSING_BYTES = 32 * 2**20
"""Above this, readers are kept waiting `PRESSING_PATIENCE_S` rather than `PATIENCE_S`."""

PATIENCE_S = 1.0
PRESSING_PATIENCE_S = 30.0
LOOK_AGAIN_S = 0.02
"""How often an idle writer looks whether the readers are gone."""


class LogKeeper:
    """Belongs to the writer's thread, which calls `after_commit` after each commit, and
    `after_wait` when nothing was to be written for ``wait_s``.
    """

    def __init__(self, gate: ReadGate, database: Path, *, idle_s: float) -> None:
        self._gate = gate
        self._wal = str(database.with_name(database.name + "-wal"))
        self._idle_s = idle_s
        self._dirty = True
        self._due_bytes = LIMIT_BYTES
        self._gives_up_at: float | None = None
        self._commits = 0

    @property
    def wait_s(self) -> float | None:
        """None: there is nothing to do before the next commit."""
        if self._gives_up_at is not None:
            return LOOK_AGAIN_S
        return self._idle_s if self._dirty else None

    def after_commit(self, connection: Connection) -> None:
        """Empties the log if it is too long, once the readers inside have left."""
        self._dirty = True
        self._commits += 1
        if self._commits % LOOK_EVERY == 0 and self._size() >= self._due_bytes:
            self._drain(connection)

    def after_wait(self, connection: Connection) -> None:
        """Goes on waiting for readers, or uses an idle moment if nobody reads just now."""
        if self._gives_up_at is not None:
            self._drain(connection)
        elif self._gate.shut():
            self._empty(connection)
        else:
            self._gate.open()

    def stop(self) -> None:
        """The writer ends: readers must not wait for it."""
        self._gate.open()

    def _drain(self, connection: Connection) -> None:
        now = time.monotonic()
        if self._gives_up_at is None:
            pressing = self._size() >= PRESSING_BYTES
            self._gives_up_at = now + (PRESSING_PATIENCE_S if pressing else PATIENCE_S)
        if self._gate.shut():
            self._empty(connection)
        elif now >= self._gives_up_at:
            self._reopen(self._size() + RETRY_BYTES)

    def _empty(self, connection: Connection) -> None:
        try:
            self._dirty = not _checkpoint(connection)
        finally:
            self._reopen(self._size() + RETRY_BYTES if self._dirty else LIMIT_BYTES)

    def _size(self) -> int:
        try:
            return os.stat(self._wal).st_size
        except FileNotFoundError:
            return 0

    def _reopen(self, due_bytes: int) -> None:
        self._due_bytes = due_bytes
        self._gives_up_at = None
        self._gate.open()


def _checkpoint(connection: Connection) -> bool:
    """Whether all of the log was written back; not while another process reads, or on a full disk."""
    # Not through `connection.execute`: that would begin a transaction.
    cursor = connection.connection.cursor()
    try:
        # A reader in another process is not worth the whole timeout.
        cursor.execute("PRAGMA busy_timeout = 100")
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        row = cursor.fetchone()
        return row is not None and row[0] == 0
    except sqlite3.OperationalError as error:
        # What was committed stays in the log; the next turn tries again.
        log.warning("checkpoint failed", error=str(error))
        return False
    finally:
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        cursor.close()
