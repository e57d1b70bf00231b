"""How a connection to the database is set up. There is no other way to get one.

Transactions are begun by us, never by the driver: without ``isolation_level = None`` sqlite3 begins
them late and deferred, and 39 of 40 concurrent read-then-write transactions lost their update.
"""

import sqlite3
from pathlib import Path
from typing import Literal

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

BUSY_TIMEOUT_MS = 5_000
"""How long a statement waits for another process (a backup tool, a shell) that holds the lock."""


def make_engine(
    database: Path,
    *,
    begin: Literal["BEGIN", "BEGIN IMMEDIATE"],
    connections: int,
    foreign_keys: bool = True,
    read_only: bool = False,
) -> Engine:
    """An engine of at most ``connections`` connections, whose every transaction starts with ``begin``.

    ``foreign_keys`` off is for migrations, which rebuild tables. ``read_only`` connections refuse
    to write. Checkpoints are never automatic: the writer makes them (see `chatd.store.writer`). Errors do not
    show parameters: these hold what people wrote, and errors are logged.
    """
    engine = create_engine(
        f"sqlite:///{database}",
        pool_size=connections,
        max_overflow=0,
        hide_parameters=True,
        connect_args={"check_same_thread": False},
    )
    pragmas = (
        f"busy_timeout = {BUSY_TIMEOUT_MS}",
        "journal_mode = WAL",
        "synchronous = NORMAL",
        f"foreign_keys = {int(foreign_keys)}",
        "wal_autocheckpoint = 0",
        f"query_only = {int(read_only)}",
    )

    def connected(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    def began(connection: Connection) -> None:
        if not driver_of(connection).in_transaction:  # the writer's has begun already
            connection.exec_driver_sql(begin)

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", began)
    return engine


def driver_of(connection: Connection) -> sqlite3.Connection:
    """What ``connection`` is made of."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver
