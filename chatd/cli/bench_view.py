"""A benchmark's figures for people. Pure but for writing to a console; ``--json`` has them raw."""

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chatd.bench.answers import Run
from chatd.bench.charts import bar, sparkline
from chatd.bench.engine_parts import DecodeFigures, PrefillFigures
from chatd.bench.figures import Figures, Spread, TurnFigures
from chatd.bench.load import Load
from chatd.bench.pairs import Compared
from chatd.config_kinds import show_size

MOST_TURNS_SHOWN = 12
NAME_WIDTH = 11
BAR_WIDTH = 30
HIT, MISS = "green", "yellow"

Facts = dict[str, Any]


def show_time(seconds: float) -> str:
    """Three or so digits: 8.31 ms, 46.2 ms, 512 ms, 1.35 s."""
    ms = seconds * 1e3
    if ms >= 999.5:
        return f"{seconds:.2f} s" if seconds < 99.995 else f"{seconds:,.0f} s"
    return f"{ms:.2f} ms" if ms < 9.995 else f"{ms:.1f} ms" if ms < 99.95 else f"{ms:.0f} ms"


def show_rate(value: float) -> str:
    return f"{value:,.2f}" if value < 9.995 else f"{value:,.1f}" if value < 99.95 else f"{value:,.0f}"


def percent(share: float | None) -> str:
    if share is None:
        return "n/a"
    shown = f"{100 * share:.1f}"
    return f"{shown.removesuffix('.0')} %"


def say(console: Console, name: str, text: str) -> None:
    """A line with a name; what does not fit goes on below the text, not below the name."""
    lines = textwrap.wrap(text, max(20, console.width - NAME_WIDTH - 3)) or [""]
    for number, line in enumerate(lines):
        console.print(
            Text(f"  {'' if number else name:{NAME_WIDTH}}", style="dim").append(line, style="not dim")
        )


def describe_load(load: Load) -> str:
    rate = (
        "all at once" if math.isinf(load.request_rate) else f"{load.request_rate:g} sessions arrive a second"
    )
    think = f"; {load.think_time} s to think" if load.think_time.high else ""
    own = f" + {load.unique_prefix_len} of its own" if load.unique_prefix_len.high else ""
    turns = (
        f"{load.sessions:,} session{'s' * (load.sessions > 1)} x {load.turns} turn{'s' * (load.turns > 1)}"
    )
    return (
        f"{turns}, {rate}{think}; prefix {load.shared_prefix_len:,} shared{own}, input {load.input_len}, "
        f"output {load.output_len} tokens; seed {load.seed}"
    )


def describe_model(model: Facts) -> str:
    parts = [model["name"]]
    if model.get("weights"):
        parts.append(f"{model['weights']} weights, {model['kv_dtype']} KV")
        parts.append(f"{model['kernels']} kernels on {model['device']}")
    if model.get("cache_on") is False:
        parts.append("no prefix cache")
    return ", ".join(parts)


def describe_machine(machine: Facts) -> str:
    cpu = machine["cpu"]
    extras = [
        words
        for key, words in (("avx512", "AVX-512"), ("byte_products", "VNNI"), ("bf16_products", "bf16"))
        if cpu[key]
    ] + ["AMX"] * cpu["matrix_unit"]
    gpus = [gpu["name"] for gpu in machine["gpus"]]
    parts = [
        cpu["name"],
        f"{cpu['cores']} cores, {cpu['threads']} compute",
        *([" ".join(extras)] if extras else []),
    ]
    return ", ".join([*parts, f"{machine['memory'] / 2**30:.1f} GiB", *gpus])


def latencies(figures: Figures) -> Table:
    table = _table("", "mean", "p50", "p90", "p99", "max")
    rows: tuple[tuple[str, Spread | None], ...] = (
        ("TTFT, first turn", figures.ttft_first),
        ("TTFT, later turns", figures.ttft_later),
        ("TPOT (per token)", figures.tpot),
        ("ITL (between arrivals)", figures.itl),
        ("E2E (whole turn)", figures.e2e),
        ("in the server's queue", figures.queue),
    )
    for name, spread in rows:
        if spread is not None:
            values = (spread.mean, spread.p50, spread.p90, spread.p99, spread.most)
            table.add_row(name, *map(show_time, values))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


def print_figures(figures: Figures, run: Run, memory: Facts, console: Console) -> None:
    if run.interrupted:
        console.print("Interrupted: this is what was measured so far.\n", style="yellow")
    if figures.answered:
        console.print(latencies(figures))
        console.print()
    say(console, "throughput", _throughput(figures))
    if figures.origins.prompt:
        say(console, "prompts", _prompts(figures))
    if line := _memory(memory):
        say(console, "memory", line)
    for name, line in _failures(figures, run):
        say(console, name, line)
    if any(turn.ttft_s is not None for turn in figures.by_turn):
        print_turns(figures.by_turn, console)
    if any(figures.timeline):
        print_timeline(figures, console)


def _throughput(figures: Figures) -> str:
    return (
        f"{show_rate(figures.output_tokens_per_s)} output tokens/s, "
        f"{show_rate(figures.total_tokens_per_s)} with prompts, "
        f"{show_rate(figures.requests_per_s)} requests/s; "
        f"{figures.output_tokens:,} tokens of {figures.answered:,} answers in {figures.wall_s:.1f} s"
    )


def _prompts(figures: Figures) -> str:
    origins = figures.origins
    if origins.reused is None:
        return f"{origins.prompt:,} tokens; the server does not say how many were reused"
    computed = f"{percent(origins.share(origins.computed))} computed"
    if origins.gpu_hit is None:
        return f"{origins.prompt:,} tokens: {percent(origins.share(origins.reused))} reused, {computed}"
    memory, disk = origins.share(origins.gpu_hit), origins.share(origins.disk_hit)
    return f"{origins.prompt:,} tokens: {percent(memory)} from memory, {percent(disk)} from disk, {computed}"


def _memory(memory: Facts) -> str:
    parts = []
    if memory.get("resident_bytes"):
        most = show_size(memory["most_resident_bytes"])
        parts.append(f"{show_size(memory['resident_bytes'])} resident (at most {most})")
    if memory.get("kv_bytes"):
        parts.append(f"KV pool {show_size(memory['kv_bytes'])}")
    return ", ".join(parts)


def _failures(figures: Figures, run: Run) -> list[tuple[str, str]]:
    lines = [
        ("error", f"{count} x {code}: {run.messages.get(code, '')}") for code, count in figures.errors.items()
    ]
    if figures.skipped:
        lines.append(("skipped", f"{figures.skipped} turns after failed ones"))
    if figures.unfinished:
        lines.append(("unfinished", f"{figures.unfinished} answers: only their tokens count"))
    if figures.short:
        lines.append(("short", f"{figures.short} of the answers ended before the length that was asked for"))
    return lines or [("errors", "none")]


def print_turns(turns: Sequence[TurnFigures], console: Console) -> None:
    """TTFT by the number of a turn: hits (half of the prompt reused, or more) against misses."""
    console.print("\nTTFT by turn, p50 (a hit: at least half of the prompt was reused)")
    shown = _evenly(turns, MOST_TURNS_SHOWN)
    longest = max(max(t.ttft_s or 0, t.ttft_hit_s or 0, t.ttft_miss_s or 0) for t in shown)
    for turn in shown:
        kinds = (("miss", MISS, turn.ttft_miss_s), ("hit", HIT, turn.ttft_hit_s))
        rows = [kind for kind in kinds if kind[2] is not None] or [("", "", turn.ttft_s)]
        for number, (name, style, ttft) in enumerate(rows):
            if ttft is None:
                continue
            line = Text(f"  {turn.turn if not number else '':>4}  {name:4}  {show_time(ttft):>8}  ")
            line.append(f"{bar(ttft, longest, BAR_WIDTH):{BAR_WIDTH}}", style=style)
            if not number and turn.reused_share is not None:
                line.append(f"  {percent(turn.reused_share)} reused", style="dim")
            console.print(line)


def _evenly(turns: Sequence[TurnFigures], most: int) -> Sequence[TurnFigures]:
    """All, or ``most`` of them, the first and the last among these."""
    if len(turns) <= most:
        return turns
    return [turns[round(at * (len(turns) - 1) / (most - 1))] for at in range(most)]


def print_timeline(figures: Figures, console: Console) -> None:
    width = min(len(figures.timeline), console.width - 4)
    console.print(
        f"\nOutput tokens/s over {figures.wall_s:.1f} s, at most {show_rate(max(figures.timeline))}"
    )
    console.print(Text("  " + sparkline(figures.timeline, width), style="cyan"))


def print_compared(compared: Sequence[Compared], own: str, peer: str, console: Console) -> None:
    table = _table("medians", peer, own, "ratio", "of the pairs", "better")
    for one in compared:
        show = show_time if one.is_time else show_rate
        better = {"own": own, "peer": peer, "same": "same"}[one.better]
        style = {"own": HIT, "peer": MISS, "same": ""}[one.better]
        won = one.won if one.better == "own" else one.pairs - one.won
        table.add_row(
            one.title,
            show(one.peer),
            show(one.own),
            Text(f"{one.ratio:.2f}", style=f"bold {style}"),
            f"{one.least:.2f}-{one.most:.2f}",
            Text(f"{better} {won}/{one.pairs}", style=style),
        )
    console.print(table)


def print_sides(sides: Sequence[tuple[str, Sequence[tuple[Run, Figures]]]], console: Console) -> None:
    """What a comparison should not hide: how much each side reused, and what went wrong with it."""
    shares = [(name, [found.origins for _, found in runs]) for name, runs in sides if runs]
    reused = [f"{name} {percent(_middle([one.share(one.reused) for one in all_]))}" for name, all_ in shares]
    say(console, "reused", f"{', '.join(reused)} of the prompts' tokens")
    for name, runs in sides:
        errors = sum((run.errors for run, _ in runs), Counter[str]())
        messages = {code: message for run, _ in runs for code, message in run.messages.items()}
        for code, count in errors.most_common():
            say(console, "error", f"{name}: {count} x {code}: {messages[code]}")
        if short := sum(found.short for _, found in runs):
            say(
                console, "short", f"{name}: {short} of the answers ended before the length that was asked for"
            )


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def print_decoded(decoded: Sequence[DecodeFigures], console: Console) -> None:
    if not decoded:
        return
    context = f"{decoded[0].context_len:,} tokens of context each"
    console.print(f"\nDecode, {context}")
    table = _table("sequences", "step p50", "p90", "p99", "tokens/s", "of each")
    for one in decoded:
        times = map(show_time, (one.step.p50, one.step.p90, one.step.p99))
        each = show_rate(one.tokens_per_s / one.batch)
        table.add_row(f"{one.batch:,}", *times, show_rate(one.tokens_per_s), each)
    console.print(table)


def print_prefilled(prefilled: Sequence[PrefillFigures], console: Console) -> None:
    if not prefilled:
        return
    console.print("\nPrefill, to the first token")
    table = _table("new tokens", "p50", "least", "tokens/s")
    for one in prefilled:
        table.add_row(
            f"{one.tokens:,}", show_time(one.seconds), show_time(one.least_s), show_rate(one.tokens_per_s)
        )
    console.print(table)
