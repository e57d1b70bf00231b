"""Every column of every report of 200 answers, worked out here from the ledger's rows alone; and the same
figures in each form: JSON, CSV, Parquet, the table and the page.
"""

import csv
import json
import math
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from chatd.store.store import DATABASE_NAME
from chatd.store.usage import By
from tests.cli.commands import Run, run
from tests.store.usage_fixture import write_turns

__all__ = ["run"]

TURNS = 200
MS_PER_TOKEN = 0.6
"""What a computed token took in the fixture."""
SHORTEST_MS = 0.1
"""Percentiles tell shorter times not apart."""
Row = dict[str, Any]

LABELS = {
    By.SESSION: "conversation_id AS session_id, namespace",
    By.BRANCH: "conversation_id AS session_id, branch_id, namespace",
    By.DAY: "date(opened_at / 1000000, 'unixepoch') AS day",
    By.MODEL: "model",
    By.KEY: "namespace, key_id",
    By.NAMESPACE: "namespace",
}
FIGURES = """
    gpu_hit_nano + disk_hit_nano + computed_nano + output_nano AS cost, without_cache_nano AS cold,
    prompt_tokens, gpu_hit, disk_hit, computed, output_tokens, preemptions, recomputed,
    ttft_ms, tpot_ms, queue_ms, total_ms,
    strftime('%Y-%m-%dT%H:%M:%S', opened_at / 1000000, 'unixepoch') AS at
"""
SUMS = ("prompt_tokens", "gpu_hit", "disk_hit", "computed", "output_tokens", "preemptions", "recomputed")
ROUGH = {"saved_s": 0.05}
"""Columns that are estimates, and how good they are; so are those in milliseconds."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written once: reports change nothing."""
    data_dir = tmp_path_factory.mktemp("forms")
    write_turns(data_dir, TURNS, seed=23)
    return data_dir


def ledger(folder: Path, by: By) -> dict[tuple[str, ...], list[Row]]:
    """The ledger's rows by what the report has a line for."""
    found: dict[tuple[str, ...], list[Row]] = {}
    with closing(sqlite3.connect(folder / DATABASE_NAME)) as connection:
        connection.row_factory = sqlite3.Row
        for row in connection.execute(f"SELECT {LABELS[by]}, {FIGURES} FROM responses"):
            key = tuple(row[name] for name in row.keys()[: row.keys().index("cost")])
            found.setdefault(key, []).append(dict(row))
    return found


def rank(rows: list[Row], column: str, share: float) -> float | None:
    """The nearest rank of the sorted values."""
    values = sorted(max(SHORTEST_MS, row[column]) for row in rows if row[column] is not None)
    return values[math.ceil(share * len(values)) - 1] if values else None


def worked_out(rows: list[Row]) -> Row:
    sums = {name: sum(row[name] for row in rows) for name in SUMS}
    reused = sums["gpu_hit"] + sums["disk_hit"]
    is_hit = [2 * (row["gpu_hit"] + row["disk_hit"]) >= row["prompt_tokens"] > 0 for row in rows]
    hits = [row for row, hit in zip(rows, is_hit, strict=True) if hit]
    misses = [row for row, hit in zip(rows, is_hit, strict=True) if not hit]
    cost, cold = sum(row["cost"] for row in rows), sum(row["cold"] for row in rows)
    return {
        "currency": "CNY",
        "turns": len(rows),
        **sums,
        "hit_rate": reused / sums["prompt_tokens"] if sums["prompt_tokens"] else 0.0,
        "ttft_hit_p50_ms": rank(hits, "ttft_ms", 0.5),
        "ttft_hit_p95_ms": rank(hits, "ttft_ms", 0.95),
        "ttft_miss_p50_ms": rank(misses, "ttft_ms", 0.5),
        "ttft_miss_p95_ms": rank(misses, "ttft_ms", 0.95),
        "tpot_p50_ms": rank(rows, "tpot_ms", 0.5),
        "queue_p95_ms": rank(rows, "queue_ms", 0.95),
        "total_p50_ms": rank(rows, "total_ms", 0.5),
        "saved_s": reused * MS_PER_TOKEN / 1000,
        "cost_nano": cost,
        "without_cache_nano": cold,
        "saved_nano": cold - cost,
        "unpriced": 0,
    }


def label_of(by: By, row: Row) -> tuple[str, ...]:
    names = re.findall(r"(\w+)(?:,|$)", LABELS[by].replace("opened_at / 1000000, ", ""))
    return tuple(row[name] for name in names)


def check(found: Row, wanted: Row) -> None:
    for name, value in wanted.items():
        if isinstance(value, float):
            off = 1e-6 if name == "hit_rate" else ROUGH.get(name, 0.05) * value + 0.001
            assert found[name] == pytest.approx(value, abs=off), name
        else:
            assert found[name] == value, name


def as_json(run: Run, folder: Path, by: By, *more: str) -> Row:
    code, out, err = run("report", "--by", str(by), "--json", *more, folder=folder)
    assert (code, err) == (0, "")
    document: Row = json.loads(out)
    return document


@pytest.mark.parametrize("by", By)
def test_every_column_is_what_the_ledger_says(run: Run, folder: Path, by: By) -> None:
    rows = ledger(folder, by)
    found = as_json(run, folder, by)
    assert sorted(label_of(by, row) for row in found["rows"]) == sorted(rows)
    for row in found["rows"]:
        own = rows[label_of(by, row)]
        check(row, worked_out(own))
        if by in (By.SESSION, By.BRANCH):
            assert row["first_at"][:19] == min(one["at"] for one in own)
    (total,) = found["totals"]
    check(total, worked_out([row for own in rows.values() for row in own]))
    assert (total["turns"], total["sessions"]) == (TURNS, 8)
    named = {"session_id", "title", "namespace", "branch_id", "day", "model", "key_id", "first_at", "last_at"}
    assert set(found["rows"][0]) <= {*named, *worked_out([])}, "a column that nobody has worked out"


@pytest.mark.parametrize("by", By)
def test_csv_and_parquet_say_what_json_says(run: Run, folder: Path, tmp_path: Path, by: By) -> None:
    rows = as_json(run, folder, by)["rows"]
    in_csv = list(csv.DictReader(run("report", "--by", str(by), "--csv", folder=folder)[1].splitlines()))
    assert in_csv == [{name: "" if v is None else str(v) for name, v in row.items()} for row in rows]
    path = tmp_path / "report.parquet"
    run("report", "--by", str(by), "--parquet", str(path), folder=folder)
    assert pyarrow.parquet.read_table(path).to_pylist() == rows


SHOWN = ("turns", "prompt_tokens", "gpu_hit", "disk_hit", "computed", "output_tokens", "hit_rate")
SHOWN_TIMES = ("ttft_hit_p50_ms", "ttft_miss_p50_ms", "saved_s")
SHOWN_MONEY = ("cost_nano", "without_cache_nano")


def for_people(name: str, value: float | None) -> str:
    """As the table and the page show it, without the spaces."""
    if value is None:
        return "n/a"
    if name == "hit_rate":
        return f"{100 * value:.0f}%"
    if name.endswith("_nano"):
        return f"{int(value + 500) // 1000 / 10**6:,.6f}"
    return f"{value:,}" if name in SHOWN else ""


def cells(row: Row, *more: str) -> list[str]:
    return [for_people(name, row[name]) for name in (*SHOWN, *SHOWN_TIMES, *SHOWN_MONEY, *more)]


def check_shown(rows: list[Row], shown: list[list[str]], *more: str) -> None:
    """Times are rounded to two digits or so: other tests have them."""
    assert len(shown) == len(rows)
    for row, found in zip(rows, shown, strict=True):
        wanted = cells(row, *more)
        assert [a or b for a, b in zip(wanted, found, strict=True)] == found


@pytest.mark.parametrize("by", By)
def test_the_table_says_what_json_says(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, by: By
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    document = as_json(run, folder, by)
    out = run("report", "--by", str(by), folder=folder)[1]
    # Names have spaces of one, and so have a figure and its unit; columns lie two apart at least.
    lines = [re.split(r" {2,}", line.strip()) for line in out.splitlines()]
    rows = [*document["rows"], *document["totals"]]
    shown = [[cell.replace(" ", "") for cell in line[1:]] for line in lines if len(line) > 1]
    check_shown(rows, [line for line in shown if re.fullmatch(r"[\d,]+", line[0])])


class Tables(HTMLParser):
    """The cells of a page's tables, row by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self._cell = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._cell = ""
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])

    def handle_data(self, data: str) -> None:
        self._cell += data

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.tables[-1][-1].append(self._cell)


def body_of(page: Path) -> Iterator[list[str]]:
    for line in Tables(page.read_text("utf-8")).tables[0][1:]:
        yield [cell.replace(" ", "") for cell in line[1:]]


@pytest.mark.parametrize("by", By)
def test_the_page_says_what_json_says(run: Run, folder: Path, tmp_path: Path, by: By) -> None:
    document = as_json(run, folder, by)
    page = tmp_path / "report.html"
    run("report", "--by", str(by), "--html", str(page), folder=folder)
    check_shown([*document["rows"], *document["totals"]], list(body_of(page)), "saved_nano")


def test_no_price_is_na_and_a_price_of_zero_is_zero_in_each_form(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    book, parquet, page = (tmp_path / name for name in ("gap.toml", "r.parquet", "r.html"))
    free = "computed = 0\ngpu_hit = 0\ndisk_hit = 0\noutput = 0\n"
    book.write_text(f'version = "gap"\ncurrency = "CNY"\nvalid_from = 2026-12-01\n[models.small]\n{free}')
    more = ("--reprice", str(book))
    large, small = as_json(run, folder, By.MODEL, *more)["rows"]
    money = ("cost_nano", "without_cache_nano", "saved_nano")
    assert [large[name] for name in money] == [None, None, None]
    assert [small[name] for name in money] == [0, 0, 0]
    out = run("report", "--by", "model", "--csv", *more, folder=folder)[1]
    in_csv = list(csv.DictReader(out.splitlines()))
    assert [[row[name] for name in money] for row in in_csv] == [["", "", ""], ["0", "0", "0"]]
    run("report", "--by", "model", "--parquet", str(parquet), *more, folder=folder)
    assert pyarrow.parquet.read_table(parquet).to_pylist() == [large, small]
    lines = run("report", "--by", "model", *more, folder=folder)[1].splitlines()
    ends = [line.split()[-2:] for line in lines if line.startswith(("large", "small"))]
    assert ends == [["n/a", "n/a"], ["0.000000", "0.000000"]]
    run("report", "--by", "model", "--html", str(page), *more, folder=folder)
    assert [line[-3:] for line in body_of(page)][:2] == [["n/a"] * 3, ["0.000000"] * 3]
