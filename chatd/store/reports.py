"""What each session used and cost, summed from the ledger alone.

Sums of integers: a session's cost is the sum of its rows' bills, each rounded when it ended. Rows that
are open count with what they would cost if they ended now.
"""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Label, and_, func, select, true
from sqlalchemy.sql.selectable import FromClause

from chatd.ids import ConversationId, Namespace
from chatd.store.prices import TOKENS_PER_PRICE
from chatd.store.records import ReportTotal, SessionRow, SessionsReport
from chatd.store.schema import conversations, price_books, responses

_SUMS = ("prompt_tokens", "gpu_hit", "disk_hit", "computed", "output_tokens")


def sessions_report(
    conn: Connection,
    namespace: Namespace | None,
    *,
    since: int | None,
    until: int | None,
    limit: int | None,
) -> SessionsReport:
    """Responses opened in ``since <= t < until``; at most ``limit`` sessions, totals over all."""
    which = _chosen(namespace, since, until)
    billed = responses.join(price_books, price_books.c.version == responses.c.price_version)
    return SessionsReport(sessions=_sessions(conn, billed, which, limit), totals=_totals(conn, billed, which))


def _chosen(namespace: Namespace | None, since: int | None, until: int | None) -> ColumnElement[bool]:
    chosen: ColumnElement[bool] = true()
    if namespace is not None:
        chosen = and_(chosen, responses.c.namespace == namespace)
    if since is not None:
        chosen = and_(chosen, responses.c.opened_at >= since)
    if until is not None:
        chosen = and_(chosen, responses.c.opened_at < until)
    return chosen


def _sessions(
    conn: Connection, billed: FromClause, which: ColumnElement[bool], limit: int | None
) -> tuple[SessionRow, ...]:
    session, currency = responses.c.conversation_id, price_books.c.currency
    last_at = func.max(func.coalesce(responses.c.ended_at, responses.c.opened_at)).label("last_at")
    query = select(
        session.label("session_id"),
        func.max(responses.c.namespace).label("namespace"),
        func.coalesce(func.max(conversations.c.title), "").label("title"),
        currency.label("currency"),
        func.count().label("turns"),
        *_sums(),
        func.min(responses.c.opened_at).label("first_at"),
        last_at,
    )
    query = query.select_from(billed.outerjoin(conversations, conversations.c.id == session))
    query = query.where(which).group_by(session, currency).order_by(last_at.desc(), session)
    rows = conn.execute(query if limit is None else query.limit(limit))
    return tuple(_to_session(row._asdict()) for row in rows)


def _to_session(values: dict[str, Any]) -> SessionRow:
    session_id, namespace = values.pop("session_id"), values.pop("namespace")
    return SessionRow(session_id=ConversationId(session_id), namespace=Namespace(namespace), **values)


def _totals(conn: Connection, billed: FromClause, which: ColumnElement[bool]) -> tuple[ReportTotal, ...]:
    query = select(
        price_books.c.currency.label("currency"),
        func.count(responses.c.conversation_id.distinct()).label("sessions"),
        func.count().label("turns"),
        *_sums(),
    )
    query = query.select_from(billed).where(which)
    query = query.group_by(price_books.c.currency).order_by(price_books.c.currency)
    return tuple(ReportTotal(**row._mapping) for row in conn.execute(query))


def _sums() -> list[Label[Any]]:
    tokens = [func.sum(responses.c[name]).label(name) for name in _SUMS]
    output = _bill("output_nano", responses.c.output_tokens, price_books.c.generated)
    prompt = [
        _bill(f"{bucket}_nano", responses.c[bucket], price_books.c[bucket])
        for bucket in ("gpu_hit", "disk_hit", "computed")
    ]
    cold = _bill("without_cache_nano", responses.c.prompt_tokens, price_books.c.computed, output)
    return [
        *tokens,
        func.sum(prompt[0] + prompt[1] + prompt[2] + output).label("cost_nano"),
        func.sum(cold).label("without_cache_nano"),
    ]


def _bill(
    stored: str, tokens: ColumnElement[int], price: ColumnElement[int], plus: Any = 0
) -> ColumnElement[int]:
    """The stored bill, of an open row what `chatd.store.prices.nano_cost` makes of it."""
    now = (tokens * price + TOKENS_PER_PRICE // 2) // TOKENS_PER_PRICE + plus
    return func.coalesce(responses.c[stored], now)
