"""Reading a data folder's database from a command, beside a running server or without one.

Commands that only read do not ask the server: a report of a long ledger would take its processor from the
answers, and here it does not. They never wait for its lock either.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection

from chatd.config import Settings
from chatd.data_dir import hold_data_dir, live_server
from chatd.errors import SetupError
from chatd.resources import migrations_dir
from chatd.store.migrate import schema_of
from chatd.store.store import DATABASE_NAME
from chatd.store.upgrade import reading, upgrade


def database_of(settings: Settings) -> Path:
    """SetupError if there is no data folder."""
    if not settings.data_dir.is_dir():
        raise SetupError(f"There is no data folder {settings.data_dir}; name the server's with --data-dir.")
    return settings.data_dir / DATABASE_NAME


@contextmanager
def read_data(settings: Settings) -> Iterator[Connection]:
    """One snapshot of the database, which is made or migrated first if no server is in the way."""
    database, scripts = database_of(settings), migrations_dir()
    schema, newest = schema_of(database, scripts)
    if schema != newest:
        if live_server(settings.data_dir) is not None:
            raise SetupError(
                f"The running server has an older database (schema {schema}) than this command reads "
                f"({newest}): restart it with this version of chatd."
            )
        with hold_data_dir(settings.data_dir):
            upgrade(database, scripts)
    with reading(database) as connection:
        yield connection
