"""Verification of the roll-ups: each worked out again from the ended rows of the ledger.

Rows and roll-ups are read side by side in the order of their sessions, so that a ledger of any size takes the
memory of its largest session and of its days.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Row, Table, select

from chatd.store.latencies import pack
from chatd.store.rollups import (
    BILL,
    BRANCH_KEY,
    DAY_KEY,
    DAY_SUMS,
    TURN_COLUMNS,
    Key,
    Tally,
    Turn,
    tally,
    to_turn,
)
from chatd.store.schema import SUMS, responses, usage_branches, usage_days, usage_sessions

Expect = Callable[[bool, str, str, str], None]
"""What holds or not: the check's name, the subject, what was found."""

CHECK = "rollup"
_YIELD = {"yield_per": 500}


def verify_rollups(conn: Connection, expect: Expect) -> None:
    days: dict[Key, Tally] = {}
    stored = groupby(_all(conn, usage_branches), key=lambda row: row.conversation_id)
    for session, rows, kept in _beside(_ledger(conn), stored):
        # A row whose bill is gone is a finding elsewhere and has no sum.
        turns = [to_turn(row) for row in rows if row.ended_at is not None and _billed(row)]
        _compare(_Told(usage_branches, BRANCH_KEY, SUMS), tally(turns, BRANCH_KEY, SUMS), kept, expect)
        _add_days(days, turns)
        _session(conn, session, rows, expect)
    _compare(_Told(usage_days, DAY_KEY, DAY_SUMS), days, list(_all(conn, usage_days)), expect)
    known = select(responses.c.seq).where(responses.c.conversation_id == usage_sessions.c.conversation_id)
    for session in conn.execute(select(usage_sessions.c.conversation_id).where(~known.exists())).scalars():
        expect(False, CHECK, session, "is a session without a turn")


def _ledger(conn: Connection) -> Iterator[tuple[str, Iterator[Row[Any]]]]:
    query = select(*TURN_COLUMNS, *(responses.c[name] for name in BILL))
    rows = conn.execute(query.order_by(responses.c.conversation_id), execution_options=_YIELD)
    return groupby(rows, key=lambda row: row.conversation_id)


def _all(conn: Connection, table: Table) -> Iterable[Row[Any]]:
    query = select(table).order_by(*table.c[:2])
    return conn.execute(query, execution_options=_YIELD)


Groups = Iterator[tuple[str, Iterator[Row[Any]]]]


def _beside(left: Groups, right: Groups) -> Iterator[tuple[str, list[Row[Any]], list[Row[Any]]]]:
    """Two sorted runs of groups, those of one name together."""
    one, other = next(left, None), next(right, None)
    while one or other:
        name = min(group[0] for group in (one, other) if group)
        ours = list(one[1]) if one and one[0] == name else []
        theirs = list(other[1]) if other and other[0] == name else []
        yield name, ours, theirs
        if one and one[0] == name:
            one = next(left, None)
        if other and other[0] == name:
            other = next(right, None)


def _billed(row: Row[Any]) -> bool:
    return all(getattr(row, name) is not None for name in (*BILL, "without_cache_nano"))


def _add_days(days: dict[Key, Tally], turns: Iterable[Turn]) -> None:
    for turn in turns:
        key = tuple(getattr(turn, name) for name in DAY_KEY)
        if key not in days:
            days[key] = Tally(dict.fromkeys(DAY_SUMS, 0))
        days[key].add(turn)


class _Told:
    """A roll-up, as findings name its rows."""

    def __init__(self, table: Table, key: Sequence[str], sums: Sequence[str]) -> None:
        self.key = key
        self.columns = [name for name in (*sums, "first_at", "last_at") if name in table.c]
        self.name = table.name

    def of(self, key: Key) -> str:
        return f"{self.name} " + " ".join(str(part) for part in key if part != "")

    def right(self, one: Tally) -> dict[str, int]:
        times = {"first_at": one.first_at, "last_at": one.last_at}
        return {name: one.sums.get(name, times.get(name, 0)) for name in self.columns}


def _compare(told: _Told, right: dict[Key, Tally], kept: Sequence[Row[Any]], expect: Expect) -> None:
    left = dict(right)
    for row in kept:
        key = tuple(getattr(row, name) for name in told.key)
        one = left.pop(key, None)
        if one is None:
            expect(False, CHECK, told.of(key), "counts turns that are not in the ledger")
            continue
        for name, value in told.right(one).items():
            stored = getattr(row, name)
            expect(stored == value, CHECK, told.of(key), f"{name} is {stored}, the rows say {value}")
        expect(row.latencies == pack(one.counts), CHECK, told.of(key), "has other latencies than the rows")
    for key in left:
        expect(False, CHECK, told.of(key), "is missing")


def _session(conn: Connection, session: str, rows: Sequence[Row[Any]], expect: Expect) -> None:
    if not rows:
        return
    kept = conn.execute(select(usage_sessions).where(usage_sessions.c.conversation_id == session)).first()
    first_at = min(row.opened_at for row in rows)
    last_at = max(row.opened_at if row.ended_at is None else max(row.opened_at, row.ended_at) for row in rows)
    if kept is None:
        expect(False, CHECK, session, "is missing among the sessions")
        return
    same = (kept.first_at, kept.last_at) == (first_at, last_at)
    expect(same, CHECK, session, "was used at other times than its rows say")
