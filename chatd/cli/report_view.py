"""A report of sessions as a table, as CSV and as JSON. Pure but for writing to a console."""

import csv
import json
from typing import Any, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chatd.cli.chat_screen import harmless
from chatd.cli.money import fixed

COLUMNS = (
    "session_id",
    "title",
    "currency",
    "turns",
    "prompt_tokens",
    "gpu_hit",
    "disk_hit",
    "computed",
    "output_tokens",
    "hit_rate",
    "cost_nano",
    "without_cache_nano",
    "saved_nano",
    "first_at",
    "last_at",
)
"""Of CSV, in order; the names are those of the JSON."""

COUNTS = {
    "turns": "turns",
    "prompt_tokens": "prompt",
    "gpu_hit": "from\nGPU",
    "disk_hit": "from\ndisk",
    "computed": "computed",
    "output_tokens": "output",
}
GAP = 2
"""Columns between two cells of a table."""
SHORTEST_TITLE, LONGEST_TITLE = 12, 48

Row = dict[str, Any]
Report = dict[str, list[Row]]
"""``sessions`` (the last used first) and ``totals`` (one for each currency)."""


def write_json(value: object, out: TextIO) -> None:
    json.dump(value, out, ensure_ascii=False, indent=2)
    out.write("\n")


def write_csv(report: Report, out: TextIO) -> None:
    """One line a session. Text that a spreadsheet would run as a formula is quoted with an apostrophe."""
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for row in report["sessions"]:
        writer.writerow([_cell(row[name]) for name in COLUMNS])


def _cell(value: object) -> object:
    return (
        "'" + value
        if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        else value
    )


def print_table(report: Report, console: Console) -> None:
    """Counts are tokens. Disk hits have a column once there are any. Figures are never cut, titles are."""
    totals = report["totals"]
    if not totals:
        console.print("No session yet. Start one with `chatd chat`, or on the page.", markup=False)
        return
    names = [name for name in COUNTS if name != "disk_hit" or any(total["disk_hit"] for total in totals)]
    money = f"cost\n{totals[0]['currency']}" if len(totals) == 1 else "cost"
    headings = [*(COUNTS[name] for name in names), "reused", money, "without\ncache"]
    rows = [[row["title"] or row["session_id"], *_figures(row, names)] for row in report["sessions"]]
    sums = [[f"total ({total['sessions']:,})", *_figures(total, names)] for total in totals]
    if len(totals) > 1:
        for line, row in zip([*rows, *sums], [*report["sessions"], *totals], strict=True):
            line[-2] += f" {row['currency']}"
    _print_columns(["session", *headings], rows, sums, console)


def _print_columns(
    headings: list[str], rows: list[list[str]], sums: list[list[str]], console: Console
) -> None:
    """The first column takes what room the others leave."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    widths = [max(cell_len(cells[i]) for cells in rows + sums) for i in range(1, len(headings))]
    widths = [max(w, *map(len, head.split("\n"))) for w, head in zip(widths, headings[1:], strict=True)]
    room = console.width - sum(widths) - GAP * len(widths)
    room = max(SHORTEST_TITLE, min(LONGEST_TITLE, room))
    table.add_column(headings[0], no_wrap=True, overflow="ellipsis", max_width=room)
    for heading, width in zip(headings[1:], widths, strict=True):
        table.add_column(heading, justify="right", no_wrap=True, min_width=width)
    for row in rows:
        table.add_row(Text(harmless(row[0])), *row[1:])
    table.add_section()
    for row in sums:
        table.add_row(*row, style="bold")
    whole = room + sum(widths) + GAP * len(widths)
    console.print(table, width=max(whole, console.width), crop=False, no_wrap=True, overflow="ignore")


def _figures(row: Row, names: list[str]) -> list[str]:
    counts = [f"{row[name]:,}" for name in names]
    return [
        *counts,
        f"{100 * row['hit_rate']:.0f} %",
        fixed(row["cost_nano"]),
        fixed(row["without_cache_nano"]),
    ]


def print_verdict(verdict: dict[str, Any], console: Console) -> None:
    """What `chatd report --verify` found."""
    looked = ", ".join(_count(verdict[name], name) for name in ("runs", "responses", "messages", "pieces"))
    if notice := _killed(verdict):
        console.print(notice, style="yellow", soft_wrap=True)
    if verdict["ok"]:
        console.print(f"The ledger is right: {looked} agree.", style="green", soft_wrap=True)
        return
    places = _count(len(verdict["findings"]), "places")
    console.print(f"The ledger is wrong in {places} ({looked} read):", style="red", soft_wrap=True)
    for finding in verdict["findings"]:
        line = f"  {finding['check']}  {finding['subject']}  {finding['message']}"
        console.print(line, markup=False, soft_wrap=True)


def _count(number: int, things: str) -> str:
    """``things`` is the plural."""
    return f"{number:,} {things.removesuffix('s') if number == 1 else things}"


def _killed(verdict: dict[str, Any]) -> str:
    """What a killed server left, if there is anything to say of it."""
    if verdict["settled"]:
        answers = _count(verdict["settled"], "answers")
        return f"The last server was killed. {answers} it left open: settled now, billed for what was stored."
    if verdict["unsettled"] is not None:
        answers = _count(verdict["unsettled"], "answers")
        return f"The last server was killed. {answers} it left open: settled when the next one starts."
    return ""
