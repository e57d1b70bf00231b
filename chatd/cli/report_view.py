"""A report as a table, and a verdict. Pure but for writing to a console."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chatd.cli.chat_screen import harmless
from chatd.cli.money import fixed, short
from chatd.store.days import day_of
from chatd.store.prices import PriceBook
from chatd.store.usage import ALL, By, Scope

HEADINGS = {
    "turns": "turns",
    "prompt_tokens": "prompt",
    "gpu_hit": "from\nGPU",
    "disk_hit": "from\ndisk",
    "computed": "computed",
    "output_tokens": "output",
    "hit_rate": "reused",
    "ttft_hit_p50_ms": "TTFT\nhit",
    "ttft_miss_p50_ms": "TTFT\nmiss",
    "saved_s": "time\nsaved",
    "cost_nano": "cost",
    "without_cache_nano": "without\ncache",
}
LEFT_OUT = ("computed", "saved_s", "ttft_miss_p50_ms", "ttft_hit_p50_ms", "gpu_hit", "prompt_tokens")
"""Columns that a narrow terminal does without, in this order."""
NAMES = {
    By.SESSION: "session",
    By.BRANCH: "branch",
    By.DAY: "day (UTC)",
    By.MODEL: "model",
    By.KEY: "key",
    By.NAMESPACE: "namespace",
}
GAP = 2
"""Columns between two cells of a table."""
LEAST_ROOM, MOST_ROOM = 23, 48
"""Columns for what a line is about: a session's title, and below it its id and when it was used last."""
SHORT_ID = 8
"""Characters of an id that are shown, or more where these are not enough to tell sessions apart."""
NOTHING = "No session yet. Start one with `chatd chat`, or on the page."

WHERE = {"disk": "on disk", "pinned": "pinned in memory"}
GIB_HOUR = 2**30 * 3600

Row = dict[str, Any]
Report = dict[str, Any]
"""As `chatd.server.usage_views.usage_of` makes it."""


@dataclass(frozen=True, slots=True)
class Heading:
    """What the figures are, where they are not simply what was billed."""

    book: PriceBook | None = None
    is_changed: bool = False
    scope: Scope = ALL

    def lines(self) -> list[str]:
        said = []
        if self.book is not None:
            dated = f"{self.book.currency}, as of {self.book.valid_from}"
            said.append(f"At the prices of {self.book.version} ({dated}).")
            if self.book.note:
                said.append(f"{self.book.note} Prices change: look them up before you decide by them.")
        if self.is_changed:
            said.append("With prices changed by --what-if. Nothing of this was billed.")
        elif self.book is not None:
            said.append("Nothing of this was billed.")
        if self.scope.first_day is not None or self.scope.last_day is not None:
            first, last = self.scope.first_day, self.scope.last_day
            from_day = "" if first is None else f" from {day_of(first)}"
            to_day = "" if last is None else f" to {day_of(last)}"
            said.append(f"Turns asked{from_day}{to_day} (UTC).")
        return said

    def nothing(self) -> str:
        """What a report without a turn says."""
        wanted = self.scope.model and f"of the model {self.scope.model}"
        days = "of those days" if (self.scope.first_day, self.scope.last_day) != (None, None) else None
        said = " and ".join(filter(None, [wanted, days]))
        return f"No turn is {said}." if said else NOTHING


def write_json(value: object, out: TextIO) -> None:
    json.dump(value, out, ensure_ascii=False, indent=2)
    out.write("\n")


def print_table(report: Report, console: Console, now: float, heading: Heading | None = None) -> None:
    """Counts are tokens. Disk hits have a column once there are any. Figures are never cut, titles are.

    ``now`` is Unix seconds.
    """
    totals, rows, by = report["totals"], report["rows"], By(report["by"])
    heading = heading or Heading()
    if not totals:
        console.print(heading.nothing(), markup=False)
        return
    for line in heading.lines():
        console.print(line, markup=False, soft_wrap=True, style="dim")
    for names in _choices(totals):
        columns = _columns(names, rows, totals)
        taken = sum(max(map(cell_len, _lines(column))) + GAP for column in columns)
        if console.width - taken >= LEAST_ROOM:
            break
    room = max(LEAST_ROOM, min(MOST_ROOM, console.width - taken))
    sums = [Text(f"total ({_count(total['sessions'], 'sessions')})") for total in totals]
    table = _table(NAMES[by], [*names_of(by, rows, now), *sums], columns, room, len(rows))
    whole = max(room + taken, console.width)
    console.print(table, width=whole, crop=False, no_wrap=True, overflow="ignore")
    for note in _notes(report, by):
        console.print(note, markup=False, soft_wrap=True, style="dim")


def _notes(report: Report, by: By) -> list[str]:
    said = []
    if report["next"] is not None:
        shown = "sessions" if by in (By.SESSION, By.BRANCH) else f"{by}s"
        said.append(f"There are more {shown}: --limit shows them, and the totals count them.")
    if unpriced := sum(total["unpriced"] for total in report["totals"]):
        said.append(f"{_count(unpriced, 'turns')} of models without a price: in no sum of money.")
    return [*said, *storage_lines(report.get("storage", []))]


def storage_lines(sums: list[Row]) -> list[str]:
    """What kept KV comes to: not a turn's cost, so in none of a table's sums."""
    return [f"KV kept {WHERE[one['tier']]}: {_kept(one)}. It is in no sum above." for one in sums]


def _kept(one: Row) -> str:
    cost = "n/a" if one["cost_nano"] is None else f"{short(one['cost_nano'])} {one['currency']}"
    return f"{one['byte_seconds'] / GIB_HOUR:,.3f} GiB-hours, {cost}"


def _choices(totals: list[Row]) -> Iterator[list[str]]:
    """The columns to show, from all that there are to the fewest."""
    names = [name for name in HEADINGS if name != "disk_hit" or any(total["disk_hit"] for total in totals)]
    yield names
    for left_out in LEFT_OUT:
        names = [name for name in names if name != left_out]
        yield names


def _columns(names: list[str], rows: list[Row], totals: list[Row]) -> list[list[str]]:
    """Each with its heading first."""
    headings = [HEADINGS[name] for name in names]
    if len(totals) == 1:
        headings[names.index("cost_nano")] += f"\n{totals[0]['currency']}"
    lines = [[figure(name, row) for name in names] for row in (*rows, *totals)]
    if len(totals) > 1:
        for line, row in zip(lines, (*rows, *totals), strict=True):
            line[names.index("cost_nano")] += f" {row['currency']}"
    return [list(column) for column in zip(headings, *lines, strict=True)]


def _lines(column: list[str]) -> list[str]:
    return [line for cell in column for line in cell.split("\n")]


def names_of(by: By, rows: list[Row], now: float) -> list[Text]:
    """What each line is about."""
    if by not in (By.SESSION, By.BRANCH):
        return [Text(harmless(_plain_name(by, row))) for row in rows]
    ids = short_ids([row["session_id"] for row in rows])
    names = []
    for row in rows:
        last = ago(datetime.fromisoformat(row["last_at"]).timestamp(), now)
        title = harmless(" ".join(row["title"].split())) or "(no title)"
        name = ids[row["session_id"]]
        if by is By.BRANCH and row["branch_id"] != row["session_id"]:
            name += f" · branch {row['branch_id'][:SHORT_ID]}"
        names.append(Text.assemble(title, "\n", (f"{name} · {last}", "dim")))
    return names


def _plain_name(by: By, row: Row) -> str:
    if by is By.KEY:
        return str(row["key_id"] or f"no key ({row['namespace']})")
    return str(row[by])


def _table(about: str, first: list[Text], columns: list[list[str]], room: int, lines: int) -> Table:
    """The first column has ``room``, the others what they need."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column(about, no_wrap=True, overflow="ellipsis", max_width=room)
    for column in columns:
        width = max(map(cell_len, _lines(column)))
        table.add_column(column[0], justify="right", no_wrap=True, min_width=width)
    for at, cell in enumerate(first):
        if at == lines:
            table.add_section()
        table.add_row(cell, *(column[at + 1] for column in columns), style="bold" if at >= lines else "")
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


def figure(name: str, row: Row) -> str:
    value = row[name]
    if value is None:
        return "n/a"
    if name == "hit_rate":
        return f"{100 * value:.0f} %"
    if name.endswith("_ms"):
        return span(value / 1000)
    if name == "saved_s":
        return span(value)
    return fixed(value) if name.endswith("_nano") else f"{value:,}"


def span(seconds: float) -> str:
    """A stretch of time, for people: '0', '47 ms', '1.5 s', '38 s', '12 min', '5.2 h', '3.1 d'."""
    if seconds < 0.0005:
        return "0"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, size, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < most * size:
            return f"{seconds / size:.{1 if unit == 'h' else 0}f} {unit}"
    return f"{seconds / 86400:,.1f} d"


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
