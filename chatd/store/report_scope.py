"""Which rows of the roll-ups and of the ledger a report's scope takes in."""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Table, and_, select, true

from chatd.store.rollups import DAY_US, OF_TURN
from chatd.store.schema import responses
from chatd.store.usage import Scope

ENDED = responses.c.status != "open"
ASKED_DAY = responses.c.opened_at // DAY_US


def in_rollup(scope: Scope, table: Table) -> ColumnElement[bool]:
    """``table`` has sessions if the scope names one."""
    which = [true(), *_same(scope, table)]
    if scope.first_day is not None:
        which.append(table.c.day >= scope.first_day)
    if scope.last_day is not None:
        which.append(table.c.day <= scope.last_day)
    return and_(*which)


def in_ledger(scope: Scope) -> ColumnElement[bool]:
    which = [true(), *_same(scope, responses)]
    if scope.first_day is not None:
        which.append(responses.c.opened_at >= scope.first_day * DAY_US)
    if scope.last_day is not None:
        which.append(responses.c.opened_at < (scope.last_day + 1) * DAY_US)
    return and_(*which)


def _same(scope: Scope, table: Table) -> list[ColumnElement[bool]]:
    wanted = {"namespace": scope.namespace, "model": scope.model, "conversation_id": scope.session}
    return [table.c[name] == value for name, value in wanted.items() if value is not None]


def open_rows(conn: Connection, scope: Scope) -> list[Row[Any]]:
    """The turns that have not ended, each with the ``day`` on which it was asked."""
    columns = [responses.c[name] for name in (*OF_TURN, "preemptions", "recomputed")]
    query = select(*columns, ASKED_DAY.label("day")).where(~ENDED, in_ledger(scope))
    return list(conn.execute(query))
