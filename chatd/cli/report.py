"""``chatd report``: what sessions, days, models ... used and cost, and whether the ledger is right."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from chatd.cli.connect import ask_operator
from chatd.cli.options import common_options, settings_from
from chatd.cli.report_view import print_verdict, write_json
from chatd.config import Settings
from chatd.data_dir import live_server
from chatd.price_file import changed, find_book, load_prices, parse_changes, shipped_books
from chatd.store.days import day_number
from chatd.store.prices import PriceBook
from chatd.store.pricing import View
from chatd.store.usage import By, Scope

EXIT_WRONG = 1
NANO = 10**9
TABLE_ROWS = 50
KEPT_ELSEWHERE = (
    "KV that was kept on disk or pinned is in none of these lines: `chatd report` and --json have what it "
    "comes to, and the server by day, at /api/v1/reports/storage?format=csv."
)


def _day(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else day_number(value)
    except ValueError:
        raise click.BadParameter(f"{value} is no day; write it as 2026-11-29.") from None


@click.command()
@click.option(
    "--by",
    type=click.Choice([str(by) for by in By]),
    default=str(By.SESSION),
    show_default=True,
    help="What to have a line for.",
)
@click.option("--session", metavar="ID", help="Only this session; the beginning of its id will do.")
@click.option("--model", metavar="NAME", help="Only turns of this model.")
@click.option("--since", metavar="DAY", callback=_day, help="From this day (UTC) on, such as 2026-11-01.")
@click.option("--until", metavar="DAY", callback=_day, help="Up to this day (UTC), itself included.")
@click.option("--limit", type=click.IntRange(1), help="Most lines.  [default: 50 in a table, all in a file]")
@click.option(
    "--reprice", metavar="BOOK", help="At the prices of BOOK: a TOML file, or a book that --books lists."
)
@click.option(
    "--what-if", multiple=True, metavar="PRICE=N", help="As if a price were N, such as disk_hit=0.05."
)
@click.option("--csv", "as_csv", is_flag=True, help="Write CSV.")
@click.option("--parquet", metavar="FILE", help="Write a Parquet file (needs the extra chatd[parquet]).")
@click.option("--html", metavar="FILE", help="Write one page with charts, which needs nothing else.")
@click.option("--books", is_flag=True, help="List the price books that come with chatd.")
@click.option(
    "--verify", is_flag=True, help="Check the ledger against what was stored and counted; exit 1 if wrong."
)
@common_options
def report(
    by: str,
    session: str | None,
    model: str | None,
    since: int | None,
    until: int | None,
    limit: int | None,
    reprice: str | None,
    what_if: tuple[str, ...],
    as_csv: bool,
    parquet: str | None,
    html: str | None,
    books: bool,
    verify: bool,
    config_file: Path | None,
    as_json: bool,
    data_dir: str | None,
) -> int:
    """What was used, what of it was reused, how fast that was, and what it cost.

    Reads the data folder, whether a server runs or not.
    """
    if sum(map(bool, (as_csv, as_json, parquet, html))) > 1:
        raise click.UsageError("One of --csv, --json, --parquet and --html.")
    if verify and (as_csv or parquet or html):
        raise click.UsageError("--verify goes with --json alone.")
    settings = settings_from({"data_dir": data_dir}, config_file)
    console = Console(highlight=False)
    if books:
        return _list_books(console, as_json)
    if verify:
        verdict = _verdict(settings)
        write_json(verdict, sys.stdout) if as_json else print_verdict(verdict, console)
        return 0 if verdict["ok"] else EXIT_WRONG
    view = view_of(reprice, what_if)
    # Reading the ledger takes what a start of the server does; --books and --verify do without.
    from chatd.cli import report_run

    wanted = report_run.Wanted(By(by), Scope(None, None, model, since, until), view, limit, session)
    if html:
        report_run.write_page(settings, wanted, Path(html), now=time.time())
        console.print(f"Wrote {html}.", markup=False)
    elif parquet:
        has_kept = report_run.write_parquet(settings, wanted, Path(parquet))
        console.print(f"Wrote {parquet}.", markup=False)
        _say_of_kept(has_kept)
    elif as_csv:
        _say_of_kept(report_run.write_csv_text(settings, wanted, sys.stdout))
    elif as_json:
        report_run.write_json_text(settings, wanted, sys.stdout)
    else:
        report_run.show(settings, wanted, console, now=time.time())
    return 0


def _say_of_kept(has_kept: bool) -> None:
    if has_kept:
        click.echo(KEPT_ELSEWHERE, err=True)


def view_of(reprice: str | None, what_if: tuple[str, ...]) -> View:
    """`SetupError` for a book that is not there or is wrong; a usage error for a change that cannot be."""
    book = None if reprice is None else find_book(reprice)
    return View(book, _change(what_if, book or load_prices(None)) if what_if else None)


def _change(texts: tuple[str, ...], example: PriceBook) -> Callable[[PriceBook], PriceBook]:
    try:
        changes = parse_changes(texts)
        changed(example, changes)
    except ValueError as error:
        raise click.UsageError(f"--what-if {error}.") from None
    return lambda book: changed(book, changes)


def _list_books(console: Console, as_json: bool) -> int:
    found = {name: find_book(name) for name in shipped_books()}
    if as_json:
        listed = [
            {"name": name, "currency": book.currency, "valid_from": book.valid_from, "note": book.note}
            for name, book in found.items()
        ]
        write_json(listed, sys.stdout)
        return 0
    for name, book in found.items():
        console.print(f"[bold]{name}[/bold]  {book.currency}, as of {book.valid_from}")
        console.print(f"  {_rates(book)} for a million tokens", markup=False, soft_wrap=True)
        console.print(f"  {book.note}", markup=False, soft_wrap=True)
    console.print("Prices change: look them up before you decide anything by them.", style="dim")
    return 0


def _rates(book: PriceBook) -> str:
    """Of the book itself, in its currency."""
    prices = [("computed", book.computed), ("reused", book.gpu_hit), ("from disk", book.disk_hit)]
    if book.write:
        prices.append(("surcharge for writing", book.write))
    prices.append(("output", book.generated))
    return ", ".join(f"{name} {'n/a' if nano is None else f'{nano / NANO:g}'}" for name, nano in prices)


def _verdict(settings: Settings) -> dict[str, Any]:
    if server := live_server(settings.data_dir):
        found: dict[str, Any] = ask_operator(server, "GET", "/api/v1/report/verify")
        return found
    from chatd.cli import report_offline

    return report_offline.verdict(settings)
