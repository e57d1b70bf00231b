"""A report of sessions as a table, as CSV and as JSON. Pure but for writing to a console."""

import csv
import json
from collections.abc import Iterator
from datetime import datetime
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
LEFT_OUT = ("computed", "gpu_hit")
"""Counts that a narrow terminal does without, in this order: the others and the rate tell them."""
GAP = 2
"""Columns between two cells of a table."""
LEAST_ROOM, MOST_ROOM = 23, 48
"""Columns for a session: its title, and below it its id and when it was used last."""
SHORT_ID = 8
"""Characters of an id that are shown, or more where these are not enough to tell sessions apart."""

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


def print_table(report: Report, console: Console, now: float) -> None:
    """Counts are tokens. Disk hits have a column once there are any. Figures are never cut, titles are.

    ``now`` is Unix seconds.
    """
    totals = report["totals"]
    if not totals:
        console.print("No session yet. Start one with `chatd chat`, or on the page.", markup=False)
        return
    rows = report["sessions"]
    for names in _choices(totals):
        columns = _columns(names, rows, totals)
        taken = sum(max(map(cell_len, _lines(column))) + GAP for column in columns)
        if console.width - taken >= LEAST_ROOM:
            break
    room = max(LEAST_ROOM, min(MOST_ROOM, console.width - taken))
    ids = short_ids([row["session_id"] for row in rows])
    sessions = [_session(row, ids[row["session_id"]], now) for row in rows]
    sums = [Text(f"total ({total['sessions']:,})") for total in totals]
    table = _table([*sessions, *sums], columns, room, len(rows))
    whole = max(room + taken, console.width)
    console.print(table, width=whole, crop=False, no_wrap=True, overflow="ignore")


def _choices(totals: list[Row]) -> Iterator[list[str]]:
    """The counts to show, from all that there are to the fewest."""
    names = [name for name in COUNTS if name != "disk_hit" or any(total["disk_hit"] for total in totals)]
    yield names
    for left_out in LEFT_OUT:
        names = [name for name in names if name != left_out]
        yield names


def _columns(names: list[str], rows: list[Row], totals: list[Row]) -> list[list[str]]:
    """Each with its heading first."""
    money = f"cost\n{totals[0]['currency']}" if len(totals) == 1 else "cost"
    headings = [*(COUNTS[name] for name in names), "reused", money, "without\ncache"]
    lines = [_figures(row, names) for row in (*rows, *totals)]
    if len(totals) > 1:
        for line, row in zip(lines, (*rows, *totals), strict=True):
            line[-2] += f" {row['currency']}"
    return [list(column) for column in zip(headings, *lines, strict=True)]


def _lines(column: list[str]) -> list[str]:
    return [line for cell in column for line in cell.split("\n")]


def _session(row: Row, short_id: str, now: float) -> Text:
    last = ago(datetime.fromisoformat(row["last_at"]).timestamp(), now)
    title = harmless(" ".join(row["title"].split())) or "(no title)"
    return Text.assemble(title, "\n", (f"{short_id} · {last}", "dim"))


def _table(first: list[Text], columns: list[list[str]], room: int, sessions: int) -> Table:
    """The first column has ``room``, the others what they need."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("session", no_wrap=True, overflow="ellipsis", max_width=room)
    for column in columns:
        width = max(map(cell_len, _lines(column)))
        table.add_column(column[0], justify="right", no_wrap=True, min_width=width)
    for at, cell in enumerate(first):
        if at == sessions:
            table.add_section()
        table.add_row(cell, *(column[at + 1] for column in columns), style="bold" if at >= sessions else "")
    return table


def short_ids(ids: list[str]) -> dict[str, str]:
    """For each id so much of its beginning as tells it from all others."""
    length = SHORT_ID
    while len({one[:length] for one in ids}) < len(set(ids)):
        length += 1
    return {one: one[:length] for one in ids}


def ago(at: float, now: float) -> str:
    """When that was, for people: 'just now', '5 min ago', '3 h ago', '2 d ago', '2026-11-29'."""
    minutes = int(max(0.0, now - at) // 60)
    if minutes < 60:
        return f"{minutes} min ago" if minutes else "just now"
    if minutes < 24 * 60:
        return f"{minutes // 60} h ago"
    if minutes < 7 * 24 * 60:
        return f"{minutes // (24 * 60)} d ago"
    return datetime.fromtimestamp(at).date().isoformat()


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
