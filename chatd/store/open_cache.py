"""The open rows between two flushes: not read again if nothing else was written in between.

A flush changes the rows in memory and in the database alike. So what it leaves is right for the next one if

- no transaction was rolled back since, its own above all (the writer says so), and
- no row was changed since, by whatever job (SQLite counts these).

Anything else, such as the opening of a response or a batch that failed, has them read again.
"""

from sqlalchemy import Connection

from chatd.store.connect import driver_of
from chatd.store.records import RunId

KEPT = "open rows"


def take(conn: Connection, run_id: RunId) -> object | None:
    """What the last flush left, if it still holds. Given out once: a flush that fails has spoiled it."""
    rows, *left = conn.info.pop(KEPT, (None,))
    return rows if left == [run_id, driver_of(conn).total_changes] else None


def keep(conn: Connection, run_id: RunId, rows: object) -> None:
    """``rows`` as they are now: good if the transaction that is under way is committed."""
    conn.info[KEPT] = (rows, run_id, driver_of(conn).total_changes)


def forget(conn: Connection) -> None:
    """What was kept was rolled back."""
    conn.info.pop(KEPT, None)
