"""Care of a database file: a backup while it is in use, and a check of the file itself."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from chatd.errors import SetupError
from chatd.store.verify_report import Finding

MOST_FINDINGS = 20
"""Of each kind: a broken file has thousands."""


def back_up(database: Path, target: Path) -> int:
    """Copies ``database`` to the new file ``target`` (0600); its size in bytes.

    The copy is one moment's state, whether a server writes meanwhile or not. It appears whole or not
    at all, and is on the disk when this returns. SetupError if ``target`` is there already or cannot be
    written.
    """
    if target.exists():
        raise SetupError(f"{target} is there already, and a backup replaces nothing: choose another name.")
    partial = target.with_name(target.name + ".partial")
    try:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise SetupError(
            f"{partial} is there: another backup is being made, or one was cut off. If none is, delete it."
        ) from None
    except OSError as error:
        raise SetupError(f"{target} cannot be written: {error.strerror}.") from None
    try:
        _copy(database, partial)
        # Unlike a rename, a link never replaces a file that came into being meanwhile.
        os.link(partial, target)
    except FileExistsError:
        raise SetupError(f"{target} came into being meanwhile; nothing was replaced.") from None
    except (OSError, sqlite3.Error) as error:
        raise SetupError(f"{target} cannot be written: {error}.") from None
    finally:
        partial.unlink()
    return target.stat().st_size


def _copy(database: Path, partial: Path) -> None:
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(partial)) as copy:
        # In one go, so that it is one read transaction: page by page it would start anew at every commit.
        source.backup(copy)
        # A copy in WAL mode would be two files.
        copy.execute("PRAGMA journal_mode = DELETE")
    with partial.open("rb+") as file:
        os.fsync(file.fileno())


def check_file(conn: Connection) -> list[Finding]:
    """What SQLite itself finds wrong: damaged pages and indices, references that lead nowhere."""
    try:
        lines = conn.exec_driver_sql(f"PRAGMA integrity_check({MOST_FINDINGS})").scalars().all()
        if lines != ["ok"]:
            return [Finding("integrity", "file", str(line)) for line in lines]
        broken = conn.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(MOST_FINDINGS)
    except DBAPIError as error:
        return [Finding("integrity", "file", str(error.orig))]
    return [
        Finding("reference", f"{table} {row}", f"refers to a row of {parent} that is not there")
        for table, row, parent, _ in broken
    ]
