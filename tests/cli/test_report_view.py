"""Reports as people see them in a terminal."""

import dataclasses
import io
from datetime import datetime

import pytest
from rich.console import Console

from chatd.cli.report_view import Heading, ago, print_table, print_verdict, span
from chatd.server.report_views import verdict_of
from chatd.server.usage_views import usage_of
from chatd.store.prices import PriceBook
from chatd.store.usage import By, Scope, UsageReport, UsageRow
from chatd.store.verify_report import Finding, VerifyReport
from tests.cli.usage_rows import session, total

NOW = 1_700_000_060 + 5 * 60


def table(
    *rows: UsageRow,
    totals: tuple[UsageRow, ...] | None = None,
    width: int = 130,
    by: By = By.SESSION,
    following: str | None = None,
    heading: Heading | None = None,
) -> str:
    console = Console(file=(out := io.StringIO()), width=width)
    report = UsageReport(by, rows, (total(),) if totals is None else totals, following)
    print_table(usage_of(report), console, NOW, heading)
    return out.getvalue()


def test_a_table_shows_each_session_and_the_total() -> None:
    lines = table(session("Bread")).splitlines()
    counts = ["3", "1,200", "900", "300", "64", "75", "%"]
    times = ["47", "ms", "1.5", "s", "38", "s"]
    figures = [*counts, *times, "0.000518", "0.001328"]
    assert next(line for line in lines if "Bread" in line).split() == ["Bread", *figures]
    assert next(line for line in lines if "total" in line).split() == ["total", "(1", "session)", *figures]


def test_sessions_with_one_title_are_told_apart() -> None:
    """By as much of their ids as that takes, and by when they were used last."""
    ids = ["3fa2b1c0" + "00" * 12, "3fa2b1c0" + "0f" * 12, "7" * 32]
    lines = [line.strip() for line in table(*(session("Hello", one) for one in ids)).splitlines()]
    assert [line for line in lines if "ago" in line] == [
        "3fa2b1c000 · 5 min ago",
        "3fa2b1c00f · 5 min ago",
        "7777777777 · 5 min ago",
    ]


def test_a_branch_says_of_which_session_it_is() -> None:
    first, other = session("Hello"), session("Hello")
    first = dataclasses.replace(first, labels={**first.labels, "branch_id": first.labels["session_id"]})
    other = dataclasses.replace(other, labels={**other.labels, "branch_id": "b" * 32})
    shown = table(first, other, by=By.BRANCH, width=160)
    assert "3fa2b1c0 · 5 min ago" in shown
    assert "3fa2b1c0 · branch bbbbbbbb · 5 min ago" in shown


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-9, "just now"),
        (59, "just now"),
        (60, "1 min ago"),
        (3599, "59 min ago"),
        (3600, "1 h ago"),
        (86_399, "23 h ago"),
        (86_400, "1 d ago"),
        (7 * 86_400 - 1, "6 d ago"),
        (9 * 86_400, datetime.fromtimestamp(NOW - 9 * 86_400).date().isoformat()),
    ],
)
def test_how_long_ago(seconds: int, words: str) -> None:
    assert ago(NOW - seconds, NOW) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0"),
        (0.0471, "47 ms"),
        (1.52, "1.5 s"),
        (38.2, "38 s"),
        (720, "12 min"),
        (18_720, "5.2 h"),
        (1e6, "11.6 d"),
    ],
)
def test_how_long(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_a_narrow_terminal_keeps_titles_readable() -> None:
    shown = {width: table(session("Why is the sky blue?"), width=width) for width in (80, 140)}
    for text in shown.values():
        assert "Why is the sky blue?" in text
        assert "3fa2b1c0 · 5 min ago" in text
    assert "computed" not in shown[80]
    assert "computed" in shown[140]


def test_disk_hits_have_a_column_once_there_are_any() -> None:
    assert "disk" not in table(session("Bread"))
    some = dataclasses.replace(total(), disk_hit=48)
    assert "disk" in table(session("Bread"), totals=(some,))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_figures_are_never_cut(width: int) -> None:
    shown = table(session("A very long title " * 9), width=width)
    assert "0.000518" in shown
    assert "A very lo" in shown


def test_no_price_is_not_zero() -> None:
    unpriced = dataclasses.replace(session("Bread"), cost_nano=None, without_cache_nano=None, unpriced=3)
    free = dataclasses.replace(session("Milk"), cost_nano=0, without_cache_nano=0)
    lines = table(unpriced, free, totals=(dataclasses.replace(total(), unpriced=3),)).splitlines()
    assert next(line for line in lines if "Bread" in line).split()[-2:] == ["n/a", "n/a"]
    assert next(line for line in lines if "Milk" in line).split()[-2:] == ["0.000000", "0.000000"]
    assert lines[-1] == "3 turns of models without a price: in no sum of money."


def test_two_currencies_never_share_a_sum() -> None:
    euro = dataclasses.replace(session("Brot"), currency="EUR", cost_nano=7_000)
    totals = (total(), dataclasses.replace(total(), currency="EUR"))
    shown = table(session("Bread"), euro, totals=totals)
    assert "0.000007 EUR" in shown
    assert shown.count("0.000518 CNY") == 2


def test_a_title_steers_neither_the_terminal_nor_the_markup() -> None:
    shown = table(session("[red]x[/red]\x1b]0;owned\x07"))
    assert "\x1b" not in shown
    assert "[red]x[/red]" in shown


def test_it_fits_a_terminal_of_80_columns() -> None:
    shown = table(session("A very long title " * 9), width=80)
    assert max(map(len, shown.splitlines())) <= 80


def test_nothing_yet_says_what_to_do() -> None:
    assert "chatd chat" in table(totals=())


def test_what_is_not_all_says_so() -> None:
    assert "There are more sessions" in table(session("Bread"), following="1~a")
    day = dataclasses.replace(session(""), labels={"day": "2026-11-29"})
    assert "There are more days" in table(day, by=By.DAY, following="1")


def test_a_view_of_prices_says_that_it_is_one() -> None:
    book = PriceBook(version="theirs", currency="USD", valid_from="2025-09-29", note="Rules of theirs.")
    shown = table(session("Bread"), heading=Heading(book, True, Scope(first_day=20_758, last_day=20_787)))
    assert "At the prices of theirs (USD, as of 2025-09-29)." in shown
    assert "Rules of theirs. Prices change" in shown
    assert "Nothing of this was billed." in shown
    assert "Turns asked from 2026-11-01 to 2026-11-30 (UTC)." in shown


def test_verdicts() -> None:
    def shown(findings: tuple[Finding, ...], unsettled: int | None = None, settled: int = 0) -> str:
        console = Console(file=(out := io.StringIO()), width=80)
        report = VerifyReport(findings, 1, 1000, 2000, 3000, unsettled)
        print_verdict(verdict_of(report, settled), console)
        return out.getvalue()

    right = "The ledger is right: 1 run, 1,000 responses, 2,000 messages, 3,000 pieces agree.\n"
    assert shown(()) == right
    killed = "The last server was killed. "
    assert shown((), 2) == killed + "2 answers it left open: settled when the next one starts.\n" + right
    assert shown((), settled=1) == (
        killed + "1 answer it left open: settled now, billed for what was stored.\n" + right
    )
    wrong = shown((Finding("buckets", "r[1]", "sum 3, prompt 4"),))
    assert "wrong in 1 place " in wrong
    assert "buckets  r[1]  sum 3, prompt 4" in wrong
