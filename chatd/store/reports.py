"""Reports: what sessions, branches, days, models, keys and namespaces used and cost.

Ended turns come from the roll-ups, so a page costs what it shows, however long the ledger is. Open ones
are few and come from their rows, with what they would cost if they ended now. Bills of a view of prices are
made from the rows (see `chatd.store.pricing`).

A page is a list of groups; everything that is known of these groups is added up, by currency.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select, true, tuple_

from chatd.errors import InvalidParameter, NotFound
from chatd.ids import ConversationId, Namespace
from chatd.store.pricing import AS_BILLED, bill_of, has_prices, is_one_currency
from chatd.store.report_pages import (
    COLUMNS,
    Group,
    group_of,
    labels_of,
    page_of_groups,
    page_of_sessions,
)
from chatd.store.report_scope import ASKED_DAY, ENDED, in_ledger, in_rollup, open_rows
from chatd.store.schema import PACE, responses, usage_branches, usage_days, usage_sessions
from chatd.store.session_report import ReportTotal, SessionRow, SessionsReport
from chatd.store.usage import Asked, By, Scope, UsageReport, UsageRow
from chatd.store.usage_sums import Sums

MAX_PAGE = 1000
_BY_SESSION = (By.SESSION, By.BRANCH)


def usage_report(conn: Connection, asked: Asked) -> UsageReport:
    """InvalidParameter for a limit or an ``after`` that cannot be."""
    if not 1 <= asked.limit <= MAX_PAGE:
        raise InvalidParameter(f"limit must be between 1 and {MAX_PAGE}", param="limit")
    return _Report(conn, asked).make()


def sessions_report(conn: Connection, namespace: Namespace | None, limit: int | None) -> SessionsReport:
    """At most ``limit`` sessions, the last used first, and totals over all."""
    asked = Asked(By.SESSION, Scope(namespace=namespace), limit=min(limit or MAX_PAGE, MAX_PAGE))
    page = usage_report(conn, asked)
    rows, totals = list(page.rows), page.totals
    while limit is None and page.next is not None:
        page = usage_report(conn, replace(asked, after=page.next, with_totals=False))
        rows.extend(page.rows)
    return SessionsReport(tuple(map(SessionRow.of, rows)), tuple(map(ReportTotal.of, totals)))


@dataclass(frozen=True, slots=True)
class _Billed:
    """``bill`` is cost, cost without cache, and turns without a price."""

    group: Group
    price_version: str
    bill: tuple[int | None, int | None, int]


class _Report:
    """One page while it is made."""

    def __init__(self, conn: Connection, asked: Asked) -> None:
        self._conn = conn
        self._asked = asked
        self._books = asked.view.books(conn)
        self._is_view = asked.view != AS_BILLED
        self._pace = self._measured_pace()
        self._open = open_rows(conn, asked.scope)

    def make(self) -> UsageReport:
        asked = self._asked
        if asked.by in _BY_SESSION:
            groups, following = page_of_sessions(self._conn, asked, self._open)
        else:
            groups, following = page_of_groups(self._conn, asked, self._table, self._open)
        lines = self._lines(groups) if groups else []
        is_whole = following is None and asked.after is None
        totals = self._totals(lines if is_whole else None) if asked.with_totals else ()
        labels = labels_of(self._conn, asked.by, groups)
        rows = tuple(one.row(labels(group), self._pace) for group, one in lines)
        return UsageReport(asked.by, rows, totals, following)

    @property
    def _table(self) -> Any:
        """The smallest roll-up that knows what is asked."""
        needs_session = self._asked.by in _BY_SESSION or self._asked.scope.session is not None
        return usage_branches if needs_session else usage_days

    def _measured_pace(self) -> dict[str, float]:
        """Milliseconds for a computed prompt token by model, over all days: the slope of TTFT over tokens."""
        table = usage_days.c
        # total() and not sum(): squares of a long ledger may be more than 64 bits.
        query = select(table.model, *(func.total(table[name]).label(name) for name in PACE))
        found = {}
        for row in self._conn.execute(query.group_by(table.model)):
            spread = row.timed * row.timed_squares - row.timed_tokens**2
            slope = row.timed * row.timed_product - row.timed_tokens * row.timed_us
            if spread > 0 and slope > 0:
                found[row.model] = slope / spread / 1000
        return found

    def _currency(self, price_version: str) -> str:
        return self._books[price_version].currency

    # --- lines ---

    def _lines(self, groups: Sequence[Group]) -> list[tuple[Group, Sums]]:
        """In the order of ``groups``; the branches of a session in the order of their first turns."""
        sums = _Groups()
        size = len(groups[0])
        self._add_rollups(sums, groups)
        self._add_open(sums, set(groups))
        if self._is_view:
            columns = [ASKED_DAY if name == "day" else responses.c[name] for name in COLUMNS[self._asked.by]]
            for line in self._bills(columns, _one_of(columns[:size], groups)):
                sums.of(line.group, self._currency(line.price_version)).add_bill(*line.bill)
        places = {group: at for at, group in enumerate(groups)}

        def place(line: tuple[Group, Sums]) -> tuple[Any, ...]:
            group, one = line
            return (places[group[:size]], one.first_at or 0, group, one.currency)

        return sorted(sums, key=place)

    def _add_rollups(self, sums: "_Groups", groups: Sequence[Group]) -> None:
        table, by = self._table, self._asked.by
        columns = [table.c[name] for name in COLUMNS[by][: len(groups[0])]]
        query = select(table).where(_one_of(columns, groups), in_rollup(self._asked.scope, table))
        for row in self._conn.execute(query):
            one = sums.of(group_of(row, by), self._currency(row.price_version))
            one.add_rollup(row, billed=not self._is_view)
            if by in _BY_SESSION:
                one.see(row.first_at, row.last_at)

    def _add_open(self, sums: "_Groups", page: set[Group]) -> None:
        by = self._asked.by
        size = len(next(iter(page)))
        for row in self._open:
            group = group_of(row, by)
            if group[:size] in page:
                one = sums.of(group, self._currency(row.price_version))
                one.add_open(row, self._books[row.price_version])
                if by in _BY_SESSION:
                    one.see(row.opened_at, row.opened_at)

    def _bills(self, columns: Sequence[ColumnElement[Any]], which: ColumnElement[bool]) -> Iterable[_Billed]:
        """Bills of the view."""
        bill, row = bill_of(self._books), responses.c
        sums = (func.sum(bill.prompt), func.sum(bill.cold_prompt), func.sum(bill.output), func.count())
        apart = [] if is_one_currency(self._books) else [row.price_version, row.model]
        query = select(*columns, func.min(row.price_version), func.min(row.model), *sums)
        query = query.where(ENDED, which, in_ledger(self._asked.scope)).group_by(*columns, *apart)
        for line in self._conn.execute(query):
            *group, version, model, prompt, cold_prompt, output, turns = line
            if turns and has_prices(self._books, version, model):
                yield _Billed(tuple(group), version, (prompt + output, cold_prompt + output, 0))
            elif turns:
                yield _Billed(tuple(group), version, (None, None, turns))

    # --- totals ---

    def _totals(self, lines: Sequence[tuple[Group, Sums]] | None) -> tuple[UsageRow, ...]:
        """``lines`` if they are all there are."""
        found = _Groups()
        if lines is None:
            self._add_all(found)
        for _, one in lines or ():
            found.of((), one.currency).merge(one)
        sessions = self._session_counts()
        totals = [one.row({}, self._pace, sessions.get(one.currency, 0)) for _, one in found]
        return tuple(sorted(totals, key=lambda total: total.currency))

    def _add_all(self, found: "_Groups") -> None:
        table = usage_branches if self._asked.scope.session is not None else usage_days
        for row in self._conn.execute(select(table).where(in_rollup(self._asked.scope, table))):
            found.of((), self._currency(row.price_version)).add_rollup(row, billed=not self._is_view)
        for row in self._open:
            found.of((), self._currency(row.price_version)).add_open(row, self._books[row.price_version])
        if self._is_view:
            for billed in self._bills([], true()):
                found.of((), self._currency(billed.price_version)).add_bill(*billed.bill)

    def _session_counts(self) -> dict[str, int]:
        """Sessions by currency."""
        scope = self._asked.scope
        currencies = {book.currency for book in self._books.values()}
        if len(currencies) == 1 and scope.is_all:
            query = select(func.count()).select_from(usage_sessions)
            if scope.namespace is not None:
                query = query.where(usage_sessions.c.namespace == scope.namespace)
            return {currencies.pop(): self._conn.execute(query).scalar_one()}
        seen: dict[str, set[str]] = defaultdict(set)
        for row in self._open:
            seen[self._currency(row.price_version)].add(row.conversation_id)
        columns = (usage_branches.c.price_version, usage_branches.c.conversation_id)
        query = select(*columns).where(in_rollup(scope, usage_branches)).distinct()
        for used in self._conn.execute(query).all():
            seen[self._currency(used.price_version)].add(used.conversation_id)
        return {currency: len(sessions) for currency, sessions in seen.items()}


class _Groups:
    """Sums by group and currency."""

    def __init__(self) -> None:
        self._sums: dict[tuple[Group, str], Sums] = {}

    def of(self, group: Group, currency: str) -> Sums:
        if (group, currency) not in self._sums:
            self._sums[group, currency] = Sums(currency)
        return self._sums[group, currency]

    def __iter__(self) -> Iterator[tuple[Group, Sums]]:
        return ((group, one) for (group, _), one in self._sums.items())


def _one_of(columns: Sequence[ColumnElement[Any]], groups: Sequence[Group]) -> ColumnElement[bool]:
    if len(columns) == 1:
        return columns[0].in_([group[0] for group in groups])
    return tuple_(*columns).in_(list(groups))


def find_session(conn: Connection, beginning: ConversationId) -> ConversationId:
    """The session whose id begins so. NotFound unless there is exactly one."""
    table = usage_sessions.c.conversation_id
    # The character after all that can be in an id: the range of ids with this beginning.
    query = select(table).where(table >= beginning, table < beginning + "\U0010ffff").limit(2)
    found = conn.execute(query).scalars().all()
    if beginning in found:
        return beginning
    if len(found) != 1:
        how = "is no session whose id begins" if not found else "is more than one session whose id begins"
        raise NotFound(f"There {how} with {beginning}.")
    return ConversationId(found[0])
