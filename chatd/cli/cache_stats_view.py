"""The cache's figures for people. Pure but for writing to a console; ``--json`` has them raw."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from chatd.config_kinds import show_size
from chatd.server.xray import MEANINGS, Cause

Figures = dict[str, Any]

NO_QUOTA = 1 << 60
"""Bytes: a folder that is only looked at has more."""


def print_stats(found: Figures, console: Console) -> None:
    counters, state = found["counters"], found["state"]
    if not found["live"]:
        console.print("No server has this folder open: this is what its files say.", style="dim")
    elif counters["steps"]:
        console.print(_tiers(counters))
        _say(console, "memory", _memory(state, counters))
        _say(console, "written", _written(counters, state))
        _say(console, "came back", _came_back(counters))
    else:
        console.print("No answer was computed since the server started.", style="dim")
    if found["disk"] is not None:
        for name, line in _disk(found["disk"]):
            _say(console, name, line)
    _say(console, "pins", f"{found['pins']:,}")
    if found["causes"]:
        console.print("\nWhy the first computed token of a prompt was a miss, over all answers:")
        console.print(_causes(found["causes"]))
    _choices(found["choices"], console)
    _predictions(found["predictions"], console)


def _say(console: Console, name: str, line: str) -> None:
    console.print(f"  [dim]{name:10}[/dim] {escape(line)}", soft_wrap=True)


def table_of(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    return table


def _tiers(counters: Figures) -> Table:
    """Tokens each tier was asked for and had."""
    table = table_of("prompt tokens", "asked", "hit", "share")
    asked, hit = counters["prompt_tokens"], counters["gpu_hit"]
    table.add_row("from memory", f"{asked:,}", f"{hit:,}", percent(hit, asked))
    asked, hit = counters["disk_asked"], counters["disk_hit"]
    table.add_row("from disk", f"{asked:,}", f"{hit:,}", percent(hit, asked))
    table.add_row(
        "computed", "", f"{counters['computed']:,}", percent(counters["computed"], counters["prompt_tokens"])
    )
    return table


def _memory(state: Figures, counters: Figures) -> str:
    total, free, cached = state["total_pages"], state["free_pages"], state["evictable_pages"]
    held = total - free - cached
    return (
        f"{total - free:,} of {total:,} pages taken ({percent(total - free, total)}): {cached:,} cached, "
        f"{held:,} held; {counters['evicted_pages']:,} made room for others"
    )


def _written(counters: Figures, state: Figures) -> str:
    lost, failed = counters["dropped_blocks"], counters["spill_failures"]
    return (
        f"{count_of(counters['spilled_blocks'], 'block')} ({show_size(counters['spilled_bytes'])}); "
        f"{state['spill_queue']:,} waiting, {lost:,} evicted before they were written, {failed:,} failed"
    )


def _came_back(counters: Figures) -> str:
    damaged, failed = counters["damaged_blocks"], counters["restore_failures"]
    return (
        f"{count_of(counters['restored_blocks'], 'block')} ({show_size(counters['restored_bytes'])}); "
        f"{damaged:,} damaged, {failed:,} could not be read"
    )


def count_of(number: int, thing: str) -> str:
    """1 block, 2 blocks."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _disk(disk: Figures) -> list[tuple[str, str]]:
    lines = [("disk", _room(disk))]
    if rates := [_speed(name, disk[name]) for name in ("read", "write") if disk[name]["jobs"]]:
        lines.append(("speed", "; ".join(rates)))
    if events := [f"{count:,} {name}" for name, count in sorted(disk["events"].items()) if count]:
        lines.append(("records", ", ".join(events)))
    troubles = [f"{count:,} x {name}" for name, count in sorted(disk["failures"].items())]
    troubles += [f"writing is suspended: {disk['suspended']}"] if disk["suspended"] else []
    troubles += [f"the tier stopped: {disk['fault']}"] if disk["fault"] else []
    return lines + ([("trouble", "; ".join(troubles))] if troubles else [])


def _room(disk: Figures) -> str:
    taken, quota = disk["nbytes"], disk["quota_bytes"]
    whole = f" of {show_size(quota)} ({percent(taken, quota)})" if quota < NO_QUOTA else ""
    foreign = f", {disk['foreign_blocks']:,} of other models or formats" if disk["foreign_blocks"] else ""
    blocks, pinned = count_of(disk["blocks"], "block"), disk["pinned_blocks"]
    return f"{show_size(taken)}{whole}, {blocks}{foreign}, {pinned:,} pinned"


def _speed(name: str, rate: Figures) -> str:
    return f"{name} {show_size(int(rate['bytes_per_s']))}/s, {1000 * rate['job_s']:.1f} ms a block"


def _causes(causes: Sequence[Figures]) -> Table:
    table = table_of("cause", "answers", "computed", "the token")
    table.columns[-1].justify = "left"
    for one in causes:
        words = MEANINGS.get(Cause(one["cause"]), "") if one["cause"] in set(Cause) else ""
        table.add_row(one["cause"], f"{one['responses']:,}", f"{one['computed']:,}", words.replace("`", ""))
    return table


def _choices(choices: Figures, console: Console) -> None:
    loaded, computed = choices["loaded"], choices["computed"]
    if not loaded + computed:
        return
    console.print(
        f"\nWhere the disk had something, of the newest answers: {loaded:,} loaded, {computed:,} computed."
    )
    _say(
        console,
        "estimates",
        f"loading {_ms(choices['load_ms_p50'])}, computing {_ms(choices['compute_ms_p50'])} (p50)",
    )
    if loaded:
        error = f"off by {_share(choices['load_error_p50'])} (p50), {_share(choices['load_error_p95'])} (p95)"
        _say(console, "real", f"loading {_ms(choices['restore_ms_p50'])} (p50); the estimate was {error}")


def _predictions(predictions: Figures, console: Console) -> None:
    made, exact = predictions["made"], predictions["exact"]
    if not made:
        return
    console.print(f"\nPredicted before they ran, the newest {made:,} answers:")
    _say(console, "tokens", f"{exact:,} exactly as predicted, by origin ({percent(exact, made)})")
    error = f"{_share(predictions['ttft_error_p50'])} (p50), {_share(predictions['ttft_error_p95'])} (p95)"
    _say(console, "TTFT", f"off by {error}")


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
