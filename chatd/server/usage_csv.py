"""Reports as CSV: what ``chatd report --csv`` writes and the page downloads. Pure.

Money is whole nano-units; what is unknown is empty.
"""

import csv
from collections.abc import Iterable
from typing import Any, Protocol

from chatd.store.usage import By

LABELS = {
    By.SESSION: ("session_id", "title", "namespace"),
    By.BRANCH: ("session_id", "title", "namespace", "branch_id"),
    By.DAY: ("day",),
    By.MODEL: ("model",),
    By.KEY: ("namespace", "key_id"),
    By.NAMESPACE: ("namespace",),
}
FIGURES = (
    "currency",
    "turns",
    "prompt_tokens",
    "gpu_hit",
    "disk_hit",
    "computed",
    "output_tokens",
    "hit_rate",
    "ttft_hit_p50_ms",
    "ttft_hit_p95_ms",
    "ttft_miss_p50_ms",
    "ttft_miss_p95_ms",
    "tpot_p50_ms",
    "queue_p95_ms",
    "total_p50_ms",
    "saved_s",
    "cost_nano",
    "without_cache_nano",
    "saved_nano",
    "unpriced",
    "preemptions",
    "recomputed",
)
STORAGE = ("day", "namespace", "tier", "byte_seconds", "currency", "cost_nano")
TIMES = ("first_at", "last_at")

Page = dict[str, Any]


class Writable(Protocol):
    """What the csv module writes to."""

    def write(self, text: str, /) -> object: ...


def columns(by: By) -> tuple[str, ...]:
    """In order; the names are those of the JSON."""
    return (*LABELS[by], *FIGURES, *(TIMES if by in (By.SESSION, By.BRANCH) else ()))


def write_csv_head(by: By, out: Writable) -> None:
    csv.writer(out).writerow(columns(by))


def write_csv_page(by: By, page: Page, out: Writable) -> None:
    """Text that a spreadsheet would run as a formula is quoted with an apostrophe."""
    names = columns(by)
    csv.writer(out).writerows([_cell(row[name]) for name in names] for row in page["rows"])


def write_csv_rows(by: By, pages: Iterable[Page], out: Writable) -> None:
    write_csv_head(by, out)
    for page in pages:
        write_csv_page(by, page, out)


def write_csv_storage(rows: Iterable[Page], out: Writable) -> None:
    """KV that was kept: what ``/api/v1/reports/storage`` has by day."""
    writer = csv.writer(out)
    writer.writerow(STORAGE)
    writer.writerows([_cell(row[name]) for name in STORAGE] for row in rows)


def _cell(value: object) -> object:
    if value is None:
        return ""
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if is_formula else value
