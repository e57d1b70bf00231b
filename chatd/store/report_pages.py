"""Which groups are on a page of a report, found by keyset, and how they are called."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Table, or_, select, true, tuple_

from chatd.errors import InvalidParameter
from chatd.store.days import day_of
from chatd.store.report_scope import in_rollup
from chatd.store.rollups import DAY_US
from chatd.store.schema import conversations, usage_branches, usage_sessions
from chatd.store.usage import Asked, By

Group = tuple[Any, ...]

COLUMNS: Mapping[By, tuple[str, ...]] = {
    By.SESSION: ("conversation_id",),
    By.BRANCH: ("conversation_id", "branch_id"),
    By.DAY: ("day",),
    By.MODEL: ("model",),
    By.KEY: ("namespace", "key_id"),
    By.NAMESPACE: ("namespace",),
}
"""The columns that make a group."""

_WHOLE = frozenset({"day", "last_at"})


def group_of(row: Row[Any], by: By) -> Group:
    return tuple(getattr(row, name) for name in COLUMNS[by])


def page_of_groups(
    conn: Connection, asked: Asked, table: Table, opened: Sequence[Row[Any]]
) -> tuple[list[Group], str | None]:
    """Days the newest first, all others by name; and the ``after`` of the next page."""
    columns, is_newest_first = COLUMNS[asked.by], asked.by is By.DAY
    query = select(*(table.c[name] for name in columns)).where(in_rollup(asked.scope, table)).distinct()
    found = {tuple(row) for row in conn.execute(query)} | {group_of(row, asked.by) for row in opened}
    if asked.after is not None:
        after = _cursor(asked.after, columns)
        found = {group for group in found if (group < after if is_newest_first else group > after)}
    page = list(islice(sorted(found, reverse=is_newest_first), asked.limit + 1))
    return _cut(page, asked.limit)


def page_of_sessions(
    conn: Connection, asked: Asked, opened: Sequence[Row[Any]]
) -> tuple[list[Group], str | None]:
    """The last used first."""
    table, scope = usage_sessions.c, asked.scope
    which: list[ColumnElement[bool]] = [true()]
    if scope.namespace is not None:
        which.append(table.namespace == scope.namespace)
    if scope.session is not None:
        which.append(table.conversation_id == scope.session)
    if not scope.is_all:
        its = usage_branches.c.conversation_id == table.conversation_id
        used = select(usage_branches.c.day).where(its, in_rollup(scope, usage_branches))
        ids = [row.conversation_id for row in opened]
        which.append(or_(used.exists(), table.conversation_id.in_(ids)))
    if scope.first_day is not None:
        which.append(table.last_at >= scope.first_day * DAY_US)
    if asked.after is not None:
        after = _cursor(asked.after, ("last_at", "conversation_id"))
        which.append(tuple_(table.last_at, table.conversation_id) < tuple_(*after))
    query = select(table.last_at, table.conversation_id).where(*which)
    query = query.order_by(table.last_at.desc(), table.conversation_id.desc()).limit(asked.limit + 1)
    page, following = _cut([tuple(row) for row in conn.execute(query)], asked.limit)
    return [(session,) for _, session in page], following


def _cut(page: list[Group], limit: int) -> tuple[list[Group], str | None]:
    following = "~".join(map(str, page[limit - 1])) if len(page) > limit else None
    return page[:limit], following


def _cursor(text: str, columns: Sequence[str]) -> Group:
    """What `_cut` made of the last group of a page. Ids have no ``~``."""
    parts = text.rsplit("~", len(columns) - 1)
    fit = len(parts) == len(columns) and len(text) <= 500
    whole = [part for part, name in zip(parts, columns, strict=False) if name in _WHOLE]
    if not fit or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in whole):
        raise InvalidParameter("after must be the `next` of an earlier page", param="after")
    return tuple(int(part) if name in _WHOLE else part for part, name in zip(parts, columns, strict=True))


Labels = Callable[[Group], dict[str, str]]


def labels_of(conn: Connection, by: By, groups: Sequence[Group]) -> Labels:
    """How a group is called in a report."""
    if by in (By.SESSION, By.BRANCH):
        return _session_labels(conn, by, groups)
    if by is By.DAY:
        return lambda group: {"day": day_of(group[0])}
    return lambda group: dict(zip(COLUMNS[by], group, strict=True))


def _session_labels(conn: Connection, by: By, groups: Sequence[Group]) -> Labels:
    """Sessions of deleted conversations stay, with an empty title."""
    table = usage_sessions.c
    query = select(table.conversation_id, table.namespace, conversations.c.title)
    query = query.outerjoin_from(usage_sessions, conversations, conversations.c.id == table.conversation_id)
    rows = conn.execute(query.where(table.conversation_id.in_([group[0] for group in groups])))
    known = {row.conversation_id: row for row in rows}

    def labels(group: Group) -> dict[str, str]:
        row = known[group[0]]
        names = {"session_id": group[0], "title": row.title or "", "namespace": row.namespace}
        return names | ({"branch_id": group[1]} if by is By.BRANCH else {})

    return labels
