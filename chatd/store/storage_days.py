"""KV that is kept on disk or pinned, metered by the day: bytes times seconds."""

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, select
from sqlalchemy.dialects.sqlite import insert

from chatd.ids import Namespace
from chatd.store.prices import storage_cost
from chatd.store.pricing import AS_BILLED, View
from chatd.store.schema import storage_days
from chatd.store.usage import Scope, StorageRow, StorageSum, StorageUse


def add_storage(conn: Connection, uses: Sequence[StorageUse], *, day: int, price_version: str) -> None:
    """Adds what was kept since it was metered last to the day's sums."""
    new = insert(storage_days)
    grown = {"byte_seconds": storage_days.c.byte_seconds + new.excluded.byte_seconds}
    key = ["day", "namespace", "tier", "price_version"]
    rows = [
        {
            "day": day,
            "namespace": use.namespace,
            "tier": use.tier,
            "price_version": price_version,
            "byte_seconds": use.byte_seconds,
        }
        for use in uses
    ]
    if rows:
        conn.execute(new.on_conflict_do_update(index_elements=key, set_=grown), rows)


def storage_report(conn: Connection, scope: Scope, view: View = AS_BILLED) -> tuple[StorageRow, ...]:
    """The newest day first. Model and session of the scope say nothing here."""
    table, books = storage_days.c, view.books(conn)
    query = select(storage_days).order_by(table.day.desc(), table.namespace, table.tier, table.price_version)
    if scope.namespace is not None:
        query = query.where(table.namespace == scope.namespace)
    if scope.first_day is not None:
        query = query.where(table.day >= scope.first_day)
    if scope.last_day is not None:
        query = query.where(table.day <= scope.last_day)
    found = []
    for row in conn.execute(query):
        price = books[row.price_version].storage
        cost = None if price is None else storage_cost(row.byte_seconds, price)
        name, currency = Namespace(row.namespace), books[row.price_version].currency
        found.append(StorageRow(row.day, name, row.tier, row.byte_seconds, currency, cost))
    return tuple(found)


def storage_sums(rows: Iterable[StorageRow]) -> tuple[StorageSum, ...]:
    """By tier and currency; what has no price is apart from what has one."""
    sums: dict[tuple[str, str, bool], StorageSum] = {}
    for row in rows:
        key = (row.tier, row.currency, row.cost_nano is None)
        byte_seconds, cost = row.byte_seconds, row.cost_nano
        if (before := sums.get(key)) is not None:
            byte_seconds += before.byte_seconds
            cost = None if cost is None or before.cost_nano is None else cost + before.cost_nano
        sums[key] = StorageSum(row.tier, byte_seconds, row.currency, cost)
    return tuple(sums[key] for key in sorted(sums))
