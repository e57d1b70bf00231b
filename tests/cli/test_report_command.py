"""``chatd report`` as it is typed."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from chatd.store.store import DATABASE_NAME
from tests.cli.commands import Run, fill, run
from tests.store.long_ledger import make_long_ledger
from tests.store.test_reports import some_turns_of

__all__ = ["run"]


@pytest.fixture
def filled(data_dir: Path) -> Path:
    fill(data_dir, some_turns_of(40))
    return data_dir


@pytest.mark.parametrize("by", ["session", "branch", "day", "model", "key", "namespace"])
def test_each_report_in_each_form(run: Run, filled: Path, tmp_path: Path, by: str) -> None:
    code, out, err = run("report", "--by", by)
    assert (code, err, "total" in out) == (0, "", True)
    document = json.loads(run("report", "--by", by, "--json")[1])
    lines = run("report", "--by", by, "--csv")[1].splitlines()
    assert len(lines) == len(document["rows"]) + 1
    page, parquet = tmp_path / "r.html", tmp_path / "r.parquet"
    assert run("report", "--by", by, "--html", str(page))[:2] == (0, f"Wrote {page}.\n")
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert run("report", "--by", by, "--parquet", str(parquet))[:2] == (0, f"Wrote {parquet}.\n")
    assert sum(row["turns"] for row in document["rows"]) == document["totals"][0]["turns"] == 80


def keep(folder: Path, **byte_seconds: int) -> None:
    with closing(sqlite3.connect(folder / DATABASE_NAME)) as connection, connection:
        (version,) = connection.execute("SELECT version FROM price_books").fetchone()
        rows = [(20_787, "alice", tier, version, count) for tier, count in byte_seconds.items()]
        connection.executemany("INSERT INTO storage_days VALUES (?, ?, ?, ?, ?)", rows)


def test_kept_kv_has_lines_of_its_own(run: Run, filled: Path, tmp_path: Path) -> None:
    before = run("report")[1]
    assert "KV kept" not in before
    gib_hour = 2**30 * 3600
    keep(filled, disk=3 * gib_hour, pinned=gib_hour // 2)
    out = run("report")[1]
    assert out.startswith(before.rstrip("\n")), "what turns cost is as it was"
    assert "KV kept on disk: 3.000 GiB-hours, n/a. It is in no sum above." in out
    priced = run("report", "--what-if", "storage=0.02")[1]
    assert "KV kept on disk: 3.000 GiB-hours, 0.060 CNY." in priced
    assert "KV kept pinned in memory: 0.500 GiB-hours, 0.010 CNY." in priced
    assert "GiB-hours, 0 CNY." in run("report", "--what-if", "storage=0")[1]
    (disk, pinned) = json.loads(run("report", "--json", "--what-if", "storage=0.02")[1])["storage"]
    assert disk == {
        "tier": "disk",
        "byte_seconds": 3 * gib_hour,
        "currency": "CNY",
        "cost_nano": 60_000_000,
    }
    assert pinned["cost_nano"] == 10_000_000
    for form in (["--csv"], ["--parquet", str(tmp_path / "r.parquet")]):
        code, out, err = run("report", *form)
        assert (code, "in none of these" in out, "reports/storage?format=csv" in err) == (0, False, True)
    page = tmp_path / "r.html"
    run("report", "--html", str(page))
    assert "KV kept on disk: 3.000 GiB-hours, n/a." in page.read_text("utf-8")
    for scope in (("--model", "m"), ("--until", "2026-11-28")):
        assert "KV kept" not in run("report", *scope)[1], "of other days, and of no model"


def test_a_limit_pages_and_the_totals_stay(run: Run, data_dir: Path) -> None:
    make_long_ledger(data_dir, 3000)
    whole = json.loads(run("report", "--json")[1])
    some = json.loads(run("report", "--json", "--limit", "7")[1])
    assert whole["next"] is None
    assert some["rows"] == whole["rows"][:7]
    assert some["totals"] == whole["totals"]
    assert "There are more sessions" in run("report")[1]


def test_a_session_by_the_beginning_of_its_id(run: Run, filled: Path) -> None:
    rows = json.loads(run("report", "--json")[1])["rows"]
    chosen = rows[2]["session_id"]
    (row,) = json.loads(run("report", "--json", "--session", chosen)[1])["rows"]
    assert row == rows[2]
    code, _, err = run("report", "--session", "nobody")
    assert (code, err) == (2, "chatd: There is no session whose id begins with nobody.\n")
    assert "more than one session" in run("report", "--session", "fill")[2]


def test_days_choose_and_say_so(run: Run, filled: Path) -> None:
    (day,) = [row["day"] for row in json.loads(run("report", "--by", "day", "--json")[1])["rows"]]
    assert day == "2027-01-15"
    code, out, _ = run("report", "--by", "day", "--since", day, "--until", day)
    assert (code, "Turns asked from 2027-01-15 to 2027-01-15 (UTC)." in out) == (0, True)
    assert json.loads(run("report", "--since", "2027-01-16", "--json")[1])["rows"] == []
    assert "is no day; write it as 2026-11-29" in run("report", "--since", "15.1.2027")[2]


def test_views_of_prices(run: Run, filled: Path, tmp_path: Path) -> None:
    billed = json.loads(run("report", "--json")[1])["totals"][0]
    dearer = json.loads(run("report", "--json", "--what-if", "output=4")[1])["totals"][0]
    assert dearer["cost_nano"] > billed["cost_nano"]
    assert dearer["cost_nano"] - billed["cost_nano"] == dearer["output_tokens"] * 2_000
    theirs = json.loads(run("report", "--json", "--reprice", "deepseek-like")[1])["totals"][0]
    assert (theirs["currency"], theirs["turns"]) == ("CNY", billed["turns"])
    code, out, _ = run("report", "--reprice", "openai-like")
    assert (code, "At the prices of openai-like-2025-08 (USD, as of 2025-08-07)." in out) == (0, True)
    gap = tmp_path / "gap.toml"
    gap.write_text('version = "gap"\ncurrency = "EUR"\nvalid_from = 2026-12-01\ncomputed = 0\n')
    assert "n/a" in run("report", "--reprice", str(gap))[1]
    free = tmp_path / "free.toml"
    free.write_text(gap.read_text() + "gpu_hit = 0\ndisk_hit = 0\noutput = 0\n")
    assert "0.000000" in run("report", "--reprice", str(free))[1]
    assert json.loads(run("report", "--json")[1])["totals"][0] == billed, "nothing was changed"


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (["--reprice", "deepsek-like"], "did you mean deepseek-like?"),
        (["--reprice", "nobody's"], "chatd comes with: anthropic-like, "),
        (["--what-if", "discount=1"], "does not know discount"),
        (["--what-if", "output"], "is not of the form disk_hit=0.05"),
        (["--what-if", "output=cheap"], "is not a number"),
        (["--what-if", "output=-1"], "a number from 0 to"),
        (["--csv", "--json"], "One of --csv, --json"),
        (["--verify", "--csv"], "--verify goes with --json alone"),
        (["--limit", "0"], "--limit"),
        (["--html", "/nowhere/at/all.html"], "cannot be written"),
    ],
)
def test_mistakes_are_named(run: Run, filled: Path, args: list[str], wanted: str) -> None:
    code, out, err = run("report", *args)
    assert (code, out) == (2, "")
    assert wanted in err.replace("\n", " ")


def test_the_books_that_come_with_it(run: Run) -> None:
    code, out, _ = run("report", "--books")
    assert code == 0
    assert "deepseek-like" in out
    assert "computed 3, reused 0.3, from disk 0.3, surcharge for writing 0.75, output 15" in out
    assert "Prices change" in out
    assert {"name", "currency", "valid_from", "note"} == set(
        json.loads(run("report", "--books", "--json")[1])[0]
    )


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        (("--model", "NAME"), "No turn is of the model NAME."),
        (("--since", "2001-01-01", "--until", "2001-01-02"), "No turn is of those days."),
        (("--model", "NAME", "--since", "2001-01-01"), "No turn is of the model NAME and of those days."),
    ],
)
def test_filters_that_leave_nothing_are_named(
    run: Run, tmp_path: Path, filters: tuple[str, ...], said: str
) -> None:
    assert run("report", *filters)[1] == f"{said}\n"
    page = tmp_path / "page.html"
    assert run("report", "--html", str(page), *filters)[0] == 0
    assert said in page.read_text()


def test_a_report_of_an_empty_folder(run: Run) -> None:
    assert "No session yet" in run("report")[1]
    empty: dict[str, object] = {"by": "session", "rows": [], "totals": [], "next": None, "storage": []}
    assert json.loads(run("report", "--json")[1]) == empty
