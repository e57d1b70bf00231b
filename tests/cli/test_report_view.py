"""Reports as people, spreadsheets and programs see them."""

import csv
import dataclasses
import io
import json
from datetime import datetime

import pytest
from rich.console import Console

from chatd.cli.report_view import COLUMNS, ago, print_table, print_verdict, write_csv, write_json
from chatd.ids import ConversationId, Namespace
from chatd.server.report_views import report_of, verdict_of
from chatd.store.records import Finding, ReportTotal, SessionRow, SessionsReport, VerifyReport

NOW = 1_700_000_060 + 5 * 60


def session(title: str, disk_hit: int = 0, session_id: str = "3fa2b1c0" * 4) -> SessionRow:
    return SessionRow(
        session_id=ConversationId(session_id),
        namespace=Namespace("local"),
        title=title,
        currency="CNY",
        turns=3,
        prompt_tokens=1200 + disk_hit,
        gpu_hit=900,
        disk_hit=disk_hit,
        computed=300,
        output_tokens=64,
        cost_nano=518_000,
        without_cache_nano=1_328_000,
        first_at=1_700_000_000_000_000,
        last_at=1_700_000_060_000_000,
    )


def total(disk_hit: int = 0) -> ReportTotal:
    return ReportTotal("CNY", 1, 3, 1200 + disk_hit, 900, disk_hit, 300, 64, 518_000, 1_328_000)


def table(report: SessionsReport, width: int = 110) -> str:
    console = Console(file=(out := io.StringIO()), width=width)
    print_table(report_of(report), console, NOW)
    return out.getvalue()


def test_a_table_shows_each_session_and_the_total() -> None:
    lines = table(SessionsReport((session("Bread"),), (total(),))).splitlines()
    figures = ["3", "1,200", "900", "300", "64", "75", "%", "0.000518", "0.001328"]
    assert next(line for line in lines if "Bread" in line).split() == ["Bread", *figures]
    assert next(line for line in lines if "total (1)" in line).split() == ["total", "(1)", *figures]


def test_sessions_with_one_title_are_told_apart() -> None:
    """By as much of their ids as that takes, and by when they were used last."""
    ids = ["3fa2b1c0" + "00" * 12, "3fa2b1c0" + "0f" * 12, "7" * 32]
    rows = tuple(session("Hello", session_id=one) for one in ids)
    lines = [line.strip() for line in table(SessionsReport(rows, (total(),))).splitlines()]
    assert [line for line in lines if "ago" in line] == [
        "3fa2b1c000 · 5 min ago",
        "3fa2b1c00f · 5 min ago",
        "7777777777 · 5 min ago",
    ]


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


def test_a_narrow_terminal_keeps_titles_readable() -> None:
    shown = {w: table(SessionsReport((session("Why is the sky blue?"),), (total(),)), w) for w in (80, 120)}
    for text in shown.values():
        assert "Why is the sky blue?" in text
        assert "3fa2b1c0 · 5 min ago" in text
    assert "computed" not in shown[80]
    assert "computed" in shown[120]


def test_disk_hits_have_a_column_once_there_are_any() -> None:
    assert "disk" not in table(SessionsReport((session("Bread"),), (total(),)))
    assert "disk" in table(SessionsReport((session("Bread", 48),), (total(48),)))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_figures_are_never_cut(width: int) -> None:
    shown = table(SessionsReport((session("A very long title " * 9),), (total(),)), width)
    assert "0.000518" in shown
    assert "1,200" in shown
    assert "A very lo" in shown


def test_two_currencies_never_share_a_sum() -> None:
    euro = dataclasses.replace(session("Brot"), currency="EUR", cost_nano=7_000)
    report = SessionsReport((session("Bread"), euro), (total(), dataclasses.replace(total(), currency="EUR")))
    shown = table(report)
    assert "0.000007 EUR" in shown
    assert shown.count("0.000518 CNY") == 2


def test_a_title_steers_neither_the_terminal_nor_the_markup() -> None:
    shown = table(SessionsReport((session("[red]x[/red]\x1b]0;owned\x07"),), (total(),)))
    assert "\x1b" not in shown
    assert "[red]x[/red]" in shown


def test_it_fits_a_terminal_of_80_columns() -> None:
    shown = table(SessionsReport((session("A very long title " * 9),), (total(),)), 80)
    assert max(map(len, shown.splitlines())) <= 80


def test_nothing_yet_says_what_to_do() -> None:
    assert "chatd chat" in table(SessionsReport((), ()))


def test_csv_has_every_field_and_runs_no_formulas() -> None:
    write_csv(report_of(SessionsReport((session("=1+1, x"),), (total(),))), out := io.StringIO())
    head, row = csv.reader(io.StringIO(out.getvalue()))
    assert tuple(head) == COLUMNS
    named = dict(zip(head, row, strict=True))
    assert named["title"] == "'=1+1, x"
    assert (named["cost_nano"], named["hit_rate"]) == ("518000", "0.75")
    assert named["last_at"] == "2023-11-14T22:14:20.000000Z"


def test_json_is_the_report_itself() -> None:
    report = report_of(SessionsReport((session("面包"),), (total(),)))
    write_json(report, out := io.StringIO())
    assert json.loads(out.getvalue()) == report
    assert report["totals"][0]["saved_nano"] == 810_000


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
