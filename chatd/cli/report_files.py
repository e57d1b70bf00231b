"""Reports as JSON and Parquet, page by page. Money is whole nano-units; unknown is null."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TextIO

from chatd.errors import SetupError
from chatd.server.usage_csv import TIMES, Page, columns
from chatd.store.usage import By

TEXTS = frozenset(
    {"session_id", "title", "namespace", "branch_id", "day", "model", "key_id", "currency", *TIMES}
)
REALS = frozenset({"hit_rate", "saved_s"})
"""And all that ends in ``_ms``; the rest are whole numbers."""


def write_json_rows(by: By, pages: Iterable[Page], out: TextIO, storage: Sequence[Page] = ()) -> None:
    """As ``GET /api/v1/reports/...`` answers, in one page, with the totals of ``.../storage``."""
    totals: list[Page] = []
    cursor, between = None, ""
    out.write(f'{{\n  "by": {json.dumps(str(by))},\n  "rows": [')
    for page in pages:
        totals, cursor = totals or page["totals"], page["next"]
        for row in page["rows"]:
            out.write(f"{between}\n    {json.dumps(row, ensure_ascii=False)}")
            between = ","
    end = "\n  ]" if between else "]"
    rest = f'  "totals": {json.dumps(totals)},\n  "next": {json.dumps(cursor)},\n'
    rest += f'  "storage": {json.dumps(list(storage))}\n'
    out.write(f"{end},\n{rest}}}\n")


class ParquetFile:
    """A Parquet file while it is written; `SetupError` without pyarrow."""

    def __init__(self, path: Path, by: By) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise SetupError(
                "Parquet files need pyarrow, which is not installed: pip install 'chatd[parquet]', "
                "or take --csv or --json."
            ) from None
        self._arrow = pyarrow
        self._path = path
        kinds = {name: self._kind(name) for name in columns(by)}
        self._schema = pyarrow.schema(list(kinds.items()))

    def _kind(self, name: str) -> Any:
        if name in TEXTS:
            return self._arrow.string()
        is_real = name in REALS or name.endswith("_ms")
        return self._arrow.float64() if is_real else self._arrow.int64()

    def __enter__(self) -> Self:
        try:
            self._writer = self._arrow.parquet.ParquetWriter(self._path, self._schema)
        except OSError as error:
            raise SetupError(f"{self._path} cannot be written: {error.strerror or error}.") from None
        return self

    def write(self, rows: list[Page]) -> None:
        table = self._arrow.Table.from_pylist(rows, schema=self._schema)
        self._writer.write_table(table)

    def __exit__(self, *_: object) -> None:
        self._writer.close()
