"""Making the report that was asked for, from a data folder, in the form that was asked for."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from rich.console import Console
from sqlalchemy import Connection

from chatd.cli.data_reading import read_data
from chatd.cli.report_files import ParquetFile, write_json_rows
from chatd.cli.report_view import Heading, print_table
from chatd.config import Settings
from chatd.errors import SetupError
from chatd.ids import ConversationId
from chatd.server.usage_csv import Page, write_csv_rows
from chatd.server.usage_views import storage_sums_of, usage_of
from chatd.store.pricing import View
from chatd.store.reports import MAX_PAGE, find_session, usage_report
from chatd.store.storage_days import storage_report, storage_sums
from chatd.store.usage import Asked, By, Scope, UsageReport

TABLE_ROWS = 50


@dataclass(frozen=True, slots=True)
class Wanted:
    """``session`` may be the beginning of an id; ``limit`` None: what fits the form."""

    by: By
    scope: Scope
    view: View
    limit: int | None
    session: str | None


def show(settings: Settings, wanted: Wanted, console: Console, now: float) -> None:
    """A table for people."""
    with read_data(settings) as connection:
        whole = _whole(connection, wanted)
    print_table(whole, console, now, heading_of(wanted))


def write_json_text(settings: Settings, wanted: Wanted, out: TextIO) -> None:
    """Written as it is read: a long ledger takes no memory."""
    with read_data(settings) as connection:
        pages = _pages(connection, wanted, wanted.limit)
        write_json_rows(wanted.by, pages, out, _storage(connection, wanted))


def write_csv_text(settings: Settings, wanted: Wanted, out: TextIO) -> bool:
    """Written as it is read. Whether KV was kept, too, which has no line there."""
    with read_data(settings) as connection:
        write_csv_rows(wanted.by, _pages(connection, wanted, wanted.limit), out)
        return bool(_storage(connection, wanted))


def write_parquet(settings: Settings, wanted: Wanted, path: Path) -> bool:
    """`SetupError` without pyarrow, or if the file cannot be written. As `write_csv_text`."""
    with read_data(settings) as connection, ParquetFile(path, wanted.by) as file:
        for page in _pages(connection, wanted, wanted.limit):
            file.write(page["rows"])
        return bool(_storage(connection, wanted))


def write_page(settings: Settings, wanted: Wanted, path: Path, now: float) -> None:
    """One HTML file: the report that was asked for, and charts by day and by model."""
    from chatd.cli.report_html import page_html

    with read_data(settings) as connection:
        main, asked = _whole(connection, wanted), _asked(connection, wanted, None)
        days = usage_of(usage_report(connection, replace(asked, by=By.DAY)))
        models = usage_of(usage_report(connection, replace(asked, by=By.MODEL)))
    text = page_html(main, days, models, heading_of(wanted), now)
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise SetupError(f"{path} cannot be written: {error.strerror}.") from None


def heading_of(wanted: Wanted) -> Heading:
    """What the figures are, where they are not simply what was billed."""
    return Heading(wanted.view.book, wanted.view.change is not None, wanted.scope)


def _storage(connection: Connection, wanted: Wanted) -> list[Page]:
    """What was kept and what that costs: in no line of turns. Nothing where only some turns are asked for."""
    scope = wanted.scope
    if wanted.session is not None or scope.model is not None:
        return []
    return storage_sums_of(storage_sums(storage_report(connection, scope, wanted.view)))


def _asked(connection: Connection, wanted: Wanted, limit: int | None) -> Asked:
    scope = wanted.scope
    if wanted.session is not None:
        scope = replace(scope, session=find_session(connection, ConversationId(wanted.session)))
    return Asked(wanted.by, scope, wanted.view, min(limit or MAX_PAGE, MAX_PAGE))


def _whole(connection: Connection, wanted: Wanted) -> Page:
    """All lines that people are shown in one page, and what was kept."""
    pages = list(_pages(connection, wanted, wanted.limit or TABLE_ROWS))
    rows = [row for page in pages for row in page["rows"]]
    return {**pages[0], "rows": rows, "next": pages[-1]["next"], "storage": _storage(connection, wanted)}


def _pages(connection: Connection, wanted: Wanted, limit: int | None) -> Iterator[Page]:
    """Pages until ``limit`` lines (sessions, where the lines are branches); totals are in the first."""
    asked = _asked(connection, wanted, limit)
    left = limit
    while True:
        report: UsageReport = usage_report(connection, asked)
        yield usage_of(report)
        left = None if left is None else left - asked.limit
        if report.next is None or (left is not None and left <= 0):
            return
        size = asked.limit if left is None else min(asked.limit, left)
        asked = replace(asked, after=report.next, limit=size, with_totals=False)
