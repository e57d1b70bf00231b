"""Bringing a data folder's database up to date, and reading one beside a running server."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from chatd.errors import SetupError
from chatd.store.connect import make_engine
from chatd.store.migrate import migrate, schema_of
from chatd.store.rollups import fill


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The schema before ("" for a new file) and after, and the backup that was made, if one was."""

    before: str
    after: str
    backup: Path | None


def upgrade(database: Path, scripts: Path) -> Upgrade:
    """Runs the migrations that are missing, a backup first, and fills what they made empty.

    Only for the owner of the data folder's lock. SetupError if the file cannot be used.
    """
    before, _ = schema_of(database, scripts)
    backup = migrate(database, scripts)
    with writing(database) as connection:
        fill(connection)
    return Upgrade(before, schema_of(database, scripts)[0], backup)


@contextmanager
def reading(database: Path) -> Iterator[Connection]:
    """One read transaction on one snapshot, whether a server writes meanwhile or not.

    Keep it short: as long as it lasts, a server cannot empty its log.
    """
    engine = make_engine(database, begin="BEGIN", connections=1, read_only=True)
    try:
        # Rolled back, never committed: a damaged file would not let itself be.
        with engine.connect() as connection:
            yield connection
    except DBAPIError as error:
        raise SetupError(f"{database} cannot be read: {error.orig}") from error
    finally:
        engine.dispose()


@contextmanager
def writing(database: Path) -> Iterator[Connection]:
    """One transaction that writes, all of it or nothing. Only for the owner of the data folder's lock."""
    engine = make_engine(database, begin="BEGIN IMMEDIATE", connections=1)
    try:
        with engine.connect() as connection, connection.begin():
            yield connection
    except DBAPIError as error:
        raise SetupError(f"{database} cannot be written: {error.orig}") from error
    finally:
        engine.dispose()
