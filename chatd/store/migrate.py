"""Brings a database file to the newest schema when the server starts, a backup first."""

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.script.revision import ResolutionError
from alembic.util import CommandError
from sqlalchemy import Connection, inspect
from sqlalchemy.exc import DBAPIError

from chatd.errors import SetupError
from chatd.store.connect import make_engine

_alembic_lock = threading.Lock()
"""Alembic keeps the context of the migration that runs in a module global."""


def schema_of(database: Path, scripts: Path) -> tuple[str, str]:
    """The schema that ``database`` has ("": there is none yet) and the newest in ``scripts``. Makes nothing.

    SetupError if the file is not one of ours, or was written by a newer chatd.
    """
    directory = ScriptDirectory.from_config(_config(scripts))
    head = directory.get_current_head() or ""
    if not database.exists():
        return "", head
    engine = make_engine(database, begin="BEGIN", connections=1, read_only=True)
    try:
        with engine.connect() as connection:
            return _current_revision(connection, directory, database) or "", head
    except DBAPIError as error:
        raise SetupError(f"{database} cannot be used: {error.orig}") from error
    finally:
        engine.dispose()


def _config(scripts: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    return config


def migrate(database: Path, scripts: Path) -> Path | None:
    """Makes ``database`` if there is none and runs every migration in ``scripts`` it lacks.

    Returns the backup that was written beside the file, None where nothing was pending or the file
    is new. A migration that fails leaves the file as it was. SetupError if the file is not one of
    ours, or was written by a newer chatd. Blocks; holds the write lock while it migrates.
    """
    config = _config(scripts)
    directory = ScriptDirectory.from_config(config)
    engine = make_engine(database, begin="BEGIN IMMEDIATE", connections=1, foreign_keys=False)
    try:
        with engine.connect() as connection:
            database.chmod(0o600)
            current = _current_revision(connection, directory, database)
            connection.rollback()
            if current == directory.get_current_head():
                return None
            backup = _back_up(database, current) if current else None
            config.attributes["connection"] = connection
            with _alembic_lock:
                command.upgrade(config, "head")
            _check_references(connection)
            return backup
    except DBAPIError as error:
        raise SetupError(f"{database} cannot be used: {error.orig}") from error
    finally:
        engine.dispose()


def _current_revision(connection: Connection, directory: ScriptDirectory, database: Path) -> str | None:
    current = MigrationContext.configure(connection).get_current_revision()
    if current is None:
        if inspect(connection).get_table_names():
            raise SetupError(f"{database} is not a chatd database: choose another --data-dir")
        return None
    try:
        directory.get_revision(current)
    except (ResolutionError, CommandError) as error:
        raise SetupError(
            f"{database} was written by a newer chatd (schema {current}): upgrade chatd, "
            "or restore the backup that lies beside it"
        ) from error
    return current


def _back_up(database: Path, revision: str) -> Path:
    """A whole copy, complete or absent. One made from the same revision before is replaced."""
    backup = database.with_name(f"{database.name}.schema-{revision}.backup")
    partial = backup.with_name(backup.name + ".partial")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(partial)) as target:
        source.backup(target)
    os.replace(partial, backup)
    return backup


def _check_references(connection: Connection) -> None:
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    connection.rollback()
    if broken:
        raise SetupError(f"the migrated database has {len(broken)} dangling references: {broken[:3]}")
