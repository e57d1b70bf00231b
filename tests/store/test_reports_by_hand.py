"""Reports of 200 responses against sums written as SQL by hand, and percentiles against the sorted values.

All endings, each cold, hit, hit on disk and preempted; two namespaces, two models, two keys, several days.
"""

import json
import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chatd.errors import InvalidParameter, NotFound
from chatd.ids import ConversationId
from chatd.price_file import changed, find_book, parse_changes, shipped_books
from chatd.store.days import day_number
from chatd.store.prices import PriceBook, Prices, Rules
from chatd.store.pricing import View
from chatd.store.reports import find_session, usage_report
from chatd.store.store import DATABASE_NAME
from chatd.store.upgrade import reading
from chatd.store.usage import Asked, By, Scope, UsageReport, UsageRow
from tests.store.scribe import NS, OTHER
from tests.store.usage_fixture import ODD, write_turns

TURNS = 200
KEYS = {
    By.SESSION: "conversation_id",
    By.BRANCH: "conversation_id || '/' || branch_id",
    By.DAY: "date(opened_at / 1000000, 'unixepoch')",
    By.MODEL: "model",
    By.KEY: "namespace || '/' || key_id",
    By.NAMESPACE: "namespace",
}
NAMES: dict[By, Callable[[UsageRow], str]] = {
    By.SESSION: lambda row: row.labels["session_id"],
    By.BRANCH: lambda row: f"{row.labels['session_id']}/{row.labels['branch_id']}",
    By.DAY: lambda row: row.labels["day"],
    By.MODEL: lambda row: row.labels["model"],
    By.KEY: lambda row: f"{row.labels['namespace']}/{row.labels['key_id']}",
    By.NAMESPACE: lambda row: row.labels["namespace"],
}
SUMS = """
    count(*), sum(prompt_tokens), sum(gpu_hit), sum(disk_hit), sum(computed), sum(output_tokens),
    sum(preemptions), sum(recomputed)
"""
BILLED = "sum(gpu_hit_nano + disk_hit_nano + computed_nano + output_nano), sum(without_cache_nano)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written once: nothing here changes it."""
    data_dir = tmp_path_factory.mktemp("by-hand")
    write_turns(data_dir, TURNS, seed=11)
    return data_dir


def report(folder: Path, by: By, **asked: Any) -> UsageReport:
    with reading(folder / DATABASE_NAME) as connection:
        return usage_report(connection, Asked(by, **{"limit": 1000, **asked}))


def by_hand(folder: Path, by: By, money: str = BILLED, where: str = "1") -> dict[str, tuple[int, ...]]:
    query = f"SELECT {KEYS[by]}, {SUMS}, {money} FROM responses WHERE {where} GROUP BY 1"
    with closing(sqlite3.connect(folder / DATABASE_NAME)) as connection:
        return {row[0]: tuple(row[1:]) for row in connection.execute(query)}


def sums_of(by: By, found: UsageReport) -> dict[str, tuple[int | None, ...]]:
    names = ("turns", "prompt_tokens", "gpu_hit", "disk_hit", "computed", "output_tokens")
    more = ("preemptions", "recomputed", "cost_nano", "without_cache_nano")
    return {NAMES[by](row): tuple(getattr(row, name) for name in names + more) for row in found.rows}


def test_the_fixture_has_every_kind(folder: Path) -> None:
    with closing(sqlite3.connect(folder / DATABASE_NAME)) as connection:
        kinds = connection.execute(
            "SELECT count(DISTINCT substr(id, instr(id, '-') + 1)), count(DISTINCT model),"
            "count(DISTINCT key_id), count(DISTINCT opened_at / 86400000000), sum(admitted_at IS NULL),"
            "count(*) FROM responses"
        ).fetchone()
    assert kinds[:3] == (20, 2, 2)
    assert kinds[3] >= 3
    assert kinds[4] >= 3
    assert kinds[5] == TURNS


@pytest.mark.parametrize("by", By)
def test_sums_equal_sql_by_hand(folder: Path, by: By) -> None:
    found = report(folder, by)
    assert sums_of(by, found) == by_hand(folder, by)
    assert len(found.rows) > 1
    (total,) = found.totals
    assert total.turns == TURNS
    assert total.sessions == 8
    for name in ("turns", "prompt_tokens", "output_tokens", "cost_nano", "without_cache_nano"):
        assert getattr(total, name) == sum(getattr(row, name) for row in found.rows)
    for row in (*found.rows, total):
        assert row.saved_nano == (row.without_cache_nano or 0) - (row.cost_nano or 0)
        assert row.hit_rate == (row.gpu_hit + row.disk_hit) / max(1, row.prompt_tokens)


@pytest.mark.parametrize("by", By)
def test_a_scope_chooses(folder: Path, by: By) -> None:
    first, last = "2027-01-15", "2027-01-16"
    scope = Scope(NS, None, "large", day_number(first), day_number(last))
    where = (
        f"namespace = '{NS}' AND model = 'large' AND "
        f"date(opened_at / 1000000, 'unixepoch') BETWEEN '{first}' AND '{last}'"
    )
    found = report(folder, by, scope=scope)
    assert sums_of(by, found) == by_hand(folder, by, where=where)
    assert 0 < found.totals[0].turns < TURNS
    assert found.totals[0].turns == sum(row.turns for row in found.rows)


@pytest.mark.parametrize("by", By)
def test_one_session(folder: Path, by: By) -> None:
    session = ConversationId("id3")
    found = report(folder, by, scope=Scope(session=session))
    assert sums_of(by, found) == by_hand(folder, by, where="conversation_id = 'id3'")
    assert found.totals[0].sessions == 1


@pytest.mark.parametrize("by", By)
@pytest.mark.parametrize("view", [View(), View(book=find_book("openai-like"))], ids=["billed", "repriced"])
def test_pages_are_the_report(folder: Path, by: By, view: View) -> None:
    whole = report(folder, by, view=view)
    rows: list[UsageRow] = []
    page = report(folder, by, view=view, limit=1)
    while True:
        assert page.totals == whole.totals
        rows.extend(page.rows)
        if page.next is None:
            break
        page = report(folder, by, view=view, limit=1, after=page.next)
    assert tuple(rows) == whole.rows


def latencies(folder: Path, column: str, where: str) -> list[float]:
    query = f"SELECT {column} FROM responses WHERE {column} IS NOT NULL AND {where} ORDER BY 1"
    with closing(sqlite3.connect(folder / DATABASE_NAME)) as connection:
        return [row[0] for row in connection.execute(query)]


HIT = "2 * (gpu_hit + disk_hit) >= prompt_tokens AND prompt_tokens > 0"


@pytest.mark.parametrize(
    ("name", "column", "where", "share"),
    [
        ("ttft_hit_p50_ms", "ttft_ms", HIT, 0.5),
        ("ttft_hit_p95_ms", "ttft_ms", HIT, 0.95),
        ("ttft_miss_p50_ms", "ttft_ms", f"NOT ({HIT})", 0.5),
        ("ttft_miss_p95_ms", "ttft_ms", f"NOT ({HIT})", 0.95),
        ("tpot_p50_ms", "tpot_ms", "1", 0.5),
        ("queue_p95_ms", "queue_ms", "1", 0.95),
        ("total_p50_ms", "total_ms", "1", 0.5),
    ],
)
def test_percentiles_are_those_of_the_rows_within_5_percent(
    folder: Path, name: str, column: str, where: str, share: float
) -> None:
    for row in report(folder, By.MODEL).rows:
        values = latencies(folder, column, f"model = '{row.labels['model']}' AND {where}")
        exact = values[max(1, math.ceil(share * len(values))) - 1]
        assert getattr(row, name) == pytest.approx(exact, rel=0.05)


def test_the_time_saved_is_what_the_tokens_would_have_taken(folder: Path) -> None:
    """The fixture's turns took 0.6 ms a computed token, and a queue that has nothing to do with it."""
    for by in (By.SESSION, By.DAY, By.MODEL):
        for row in report(folder, by).rows:
            assert row.saved_s == pytest.approx((row.gpu_hit + row.disk_hit) * 0.6 / 1000, rel=0.05)


RULED = replace(ODD, version="ruled", rules=Rules(256, 64))
UNIT = "(CASE WHEN gpu_hit + disk_hit >= 256 THEN (gpu_hit + disk_hit) / 64 * 64 ELSE 0 END)"
RULED_MONEY = f"""
    sum((min(gpu_hit, {UNIT}) * iif(model = 'large', 7, 98765432) + 500000) / 1000000
      + (({UNIT} - min(gpu_hit, {UNIT})) * iif(model = 'large', 0, 55555555) + 500000) / 1000000
      + ((prompt_tokens - {UNIT}) * (iif(model = 'large', 9876543210, 1234567891)
         + iif(model = 'large' AND prompt_tokens >= 256, 3, 0)) + 500000) / 1000000
      + (output_tokens * iif(model = 'large', 5000000001, 777777777) + 500000) / 1000000),
    sum((prompt_tokens * iif(model = 'large', 9876543210, 1234567891) + 500000) / 1000000
      + (output_tokens * iif(model = 'large', 5000000001, 777777777) + 500000) / 1000000)
"""


@pytest.mark.parametrize("by", By)
def test_repriced_sums_equal_sql_by_hand(folder: Path, by: By) -> None:
    """By models, least hits, units and a surcharge for writing, each rounded by itself."""
    found = report(folder, by, view=View(book=RULED))
    assert sums_of(by, found) == by_hand(folder, by, RULED_MONEY)
    page = report(folder, by, view=View(book=RULED), limit=1)
    assert page.totals == found.totals


def test_what_if_changes_one_price_for_every_model(folder: Path) -> None:
    view = View(change=lambda book: changed(book, parse_changes(["disk_hit=0.05"])))
    money = """
        sum(gpu_hit_nano + computed_nano + output_nano + (disk_hit * 50000000 + 500000) / 1000000),
        sum(without_cache_nano)
    """
    assert sums_of(By.MODEL, report(folder, By.MODEL, view=view)) == by_hand(folder, By.MODEL, money)


def test_views_bill_each_row_as_the_book_itself_does(folder: Path) -> None:
    """Every shipped book: SQL and `PriceBook.quote` are two ways to the same sum."""
    with closing(sqlite3.connect(folder / DATABASE_NAME)) as connection:
        rows = connection.execute(
            "SELECT model, gpu_hit, disk_hit, computed, output_tokens FROM responses"
        ).fetchall()
    for book in (*map(find_book, shipped_books()), RULED):
        costs = [
            book.cost(model=model, gpu_hit=gpu, disk_hit=disk, computed=computed, output=output)
            for model, gpu, disk, computed, output in rows
        ]
        (total,) = report(folder, By.DAY, view=View(book=book)).totals
        assert total.currency == book.currency
        assert total.cost_nano == sum(cost.total_nano for cost in costs)
        assert total.without_cache_nano == sum(cost.without_cache_nano for cost in costs)


def test_no_price_is_no_sum_and_a_price_of_zero_is_zero(folder: Path) -> None:
    gap = PriceBook("gap", computed=None, models=(("small", Prices(0, 0, 0, 0)),))
    found = report(folder, By.MODEL, view=View(book=gap))
    large, small = found.rows
    assert (large.cost_nano, large.without_cache_nano, large.saved_nano) == (None, None, None)
    assert large.unpriced == large.turns
    assert (small.cost_nano, small.without_cache_nano, small.saved_nano, small.unpriced) == (0, 0, 0, 0)
    (total,) = found.totals
    assert (total.cost_nano, total.unpriced) == (0, large.turns)
    days = report(folder, By.DAY, view=View(book=gap), limit=1)
    assert days.totals == found.totals


def test_the_sql_views_say_the_same(folder: Path) -> None:
    with closing(sqlite3.connect(folder / DATABASE_NAME)) as connection:
        sessions = connection.execute(
            "SELECT session_id, turns, prompt_tokens, cost_nano, without_cache_nano, currency"
            " FROM v_session_cost"
        ).fetchall()
        days = connection.execute(
            "SELECT day, sum(turns), sum(prompt_tokens), sum(cost_nano), sum(without_cache_nano), currency"
            " FROM v_daily_cost GROUP BY day"
        ).fetchall()
    for by, rows in ((By.SESSION, sessions), (By.DAY, days)):
        names = ("turns", "prompt_tokens", "cost_nano", "without_cache_nano", "currency")
        found = {
            NAMES[by](row): tuple(getattr(row, name) for name in names) for row in report(folder, by).rows
        }
        assert found == {row[0]: tuple(row[1:]) for row in rows}


def test_order_is_newest_first_or_by_name(folder: Path) -> None:
    days = [row.labels["day"] for row in report(folder, By.DAY).rows]
    assert days == sorted(days, reverse=True)
    last = [row.last_at for row in report(folder, By.SESSION).rows]
    assert last == sorted(last, reverse=True)  # type: ignore[type-var]
    assert [row.labels["model"] for row in report(folder, By.MODEL).rows] == ["large", "small"]


@pytest.mark.parametrize("after", ["", "x", "1~", "x~y", "9" * 30 + "~a", "~" * 600, "١~a"])
def test_a_cursor_that_cannot_be_is_refused(folder: Path, after: str) -> None:
    if after == "1~":
        assert report(folder, By.SESSION, after=after).rows == ()
        return
    with pytest.raises(InvalidParameter):
        report(folder, By.SESSION, after=after)


def test_a_session_by_its_beginning(folder: Path) -> None:
    with reading(folder / DATABASE_NAME) as connection:
        assert find_session(connection, ConversationId("id3")) == "id3"
        for beginning in ("id", "", "nobody", "%"):
            with pytest.raises(NotFound):
                find_session(connection, ConversationId(beginning))


def test_other_namespaces_are_out_of_sight(folder: Path) -> None:
    for by in By:
        one, other = (report(folder, by, scope=Scope(namespace=ns)) for ns in (NS, OTHER))
        assert one.totals[0].turns + other.totals[0].turns == TURNS
        assert json.dumps([dict(row.labels) for row in one.rows]).find(OTHER) == -1
