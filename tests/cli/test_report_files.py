"""Reports as spreadsheets and programs see them."""

import csv
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from chatd.cli.report_files import ParquetFile, write_json_rows
from chatd.errors import SetupError
from chatd.server.usage_csv import columns, write_csv_rows
from chatd.server.usage_views import usage_of
from chatd.store.usage import By, UsageReport, UsageRow
from tests.cli.usage_rows import session, total


def pages(*rows: UsageRow) -> Iterator[dict[str, Any]]:
    """Each on a page of its own, the totals on the first, as a long report comes."""
    for at, row in enumerate(rows):
        totals = (total(),) if at == 0 else ()
        following = None if at == len(rows) - 1 else "more"
        yield usage_of(UsageReport(By.SESSION, (row,), totals, following))


def test_csv_has_every_field_and_runs_no_formulas() -> None:
    write_csv_rows(By.SESSION, pages(session("=1+1, x"), session("面包")), out := io.StringIO())
    head, row, other = csv.reader(io.StringIO(out.getvalue()))
    assert tuple(head) == columns(By.SESSION)
    named = dict(zip(head, row, strict=True))
    assert named["title"] == "'=1+1, x"
    assert (named["cost_nano"], named["hit_rate"]) == ("518000", "0.75")
    assert named["last_at"] == "2023-11-14T22:14:20.000000Z"
    assert "面包" in other


@pytest.mark.parametrize("by", By)
def test_every_report_has_the_columns_that_its_rows_have(by: By) -> None:
    assert len(set(columns(by))) == len(columns(by))
    assert {"cost_nano", "saved_nano", "unpriced"} <= set(columns(by))
    row = usage_of(UsageReport(By.SESSION, (session("x"),), (), None))["rows"][0]
    if by is By.SESSION:
        assert set(columns(by)) == set(row)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_json_is_one_document_whatever_the_pages(count: int) -> None:
    rows = [session(f"面包 {n}") for n in range(count)]
    empty = usage_of(UsageReport(By.SESSION, (), (), None))
    write_json_rows(By.SESSION, pages(*rows) if rows else iter([empty]), out := io.StringIO())
    found = json.loads(out.getvalue())
    whole = UsageReport(By.SESSION, tuple(rows), (total(),) if rows else (), None)
    assert found == usage_of(whole) | {"storage": []}


def test_parquet_has_types_and_nulls(tmp_path: Path) -> None:
    path = tmp_path / "report.parquet"
    with ParquetFile(path, By.SESSION) as file:
        for page in pages(session("面包"), session("Milk")):
            page["rows"][0]["cost_nano"] = None
            file.write(page["rows"])
    table = pyarrow.parquet.read_table(path)
    assert tuple(table.column_names) == columns(By.SESSION)
    assert table["title"].to_pylist() == ["面包", "Milk"]
    assert table["cost_nano"].to_pylist() == [None, None]
    assert str(table.schema.field("prompt_tokens").type) == "int64"
    assert str(table.schema.field("ttft_hit_p50_ms").type) == "double"


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SetupError, match=r"chatd\[parquet\]"):
        ParquetFile(tmp_path / "x.parquet", By.DAY)


def test_a_parquet_file_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be written"):
        ParquetFile(tmp_path / "nowhere" / "x.parquet", By.DAY).__enter__()
