"""What a starting and a stopping server tells the person who started it."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO, cast

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.table import Table

from chatd import __version__
from chatd.cli.lasting_output import LastingOutput
from chatd.config import default_data_dir
from chatd.config_kinds import show_size

NUMBERS = re.compile(r"[\d.,]+")
"""What differs between two reports on the same work."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server that is ready is made of. ``sessions`` full-length ones fit; ``graphs`` is how many
    sizes of decode steps were captured.
    """

    url: str
    data_dir: Path
    model: str
    context_length: int
    device: str
    threads: int
    weights: str
    kernels: str
    kv_dtype: str
    kv_bytes: int
    bytes_per_token: int
    kv_tokens: int
    sessions: float
    graphs: int
    graph_bytes: int
    disk: str
    disk_bytes: int
    disk_quota_bytes: int
    disk_tokens: int
    started_s: float


class ServeScreen(Protocol):
    def listening(self, url: str) -> None: ...
    def progress(self, share: float, what: str) -> None: ...
    def ready(self, facts: Facts) -> None: ...
    def keys(self, login_url: Callable[[], str]) -> None:
        """There are keys: how the person who started the server gets in. The address is a secret: it is made
        and shown on a terminal only, for what goes elsewhere is kept.
        """
        ...

    def stopping(self, drain_s: float) -> None: ...
    def writing(self, done: int, total: int) -> None:
        """Blocks of what is cached, on their way to disk before the end."""
        ...

    def stopped(self) -> None: ...
    def close(self) -> None:
        """Leave the terminal as it was. Idempotent."""
        ...


class TerminalScreen:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None

    def listening(self, url: str) -> None:
        self._console.print(
            f"[bold]chatd[/bold] {__version__} listens on {escape(url)}; the model is loading."
        )

    def progress(self, share: float, what: str) -> None:
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task(what, total=1.0)
        self._bar.update(self._task, completed=share, description=escape(what))

    def ready(self, facts: Facts) -> None:
        self.close()
        table = Table.grid(padding=(0, 2))
        for name, value in describe(facts):
            table.add_row(f"  [dim]{name}[/dim]", escape(value))
        self._console.print(f"Ready after {facts.started_s:.1f} s.\n")
        self._console.print(table)
        self._console.print("\n[dim]Ctrl-C stops it.[/dim]")

    def keys(self, login_url: Callable[[], str]) -> None:
        said = "\nYour own way in, once within ten minutes (later: `chatd keys login`):"
        self._console.print(said, style="dim")
        self._console.print(f"  {login_url()}", markup=False, soft_wrap=True)

    def stopping(self, drain_s: float) -> None:
        self.close()
        self._console.print(
            f"Stopping; running answers have up to {drain_s:g} s. Ctrl-C again ends them at once.",
            style="dim",
        )

    def writing(self, done: int, total: int) -> None:
        if self._task is None or not self._bar.live.is_started:
            self._bar.start()
            self._task = self._bar.add_task("", total=1.0)
        what = f"writing what is cached to disk: {done:,} of {total:,} blocks"
        self._bar.update(self._task, completed=done, total=total, description=what)

    def stopped(self) -> None:
        self.close()
        self._console.print("Stopped.", style="dim")

    def close(self) -> None:
        self._bar.stop()


class PlainScreen:
    """Lines, for files and pipes. Progress is told every tenth, and whenever other work begins."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._next_percent = 0
        self._work = ""

    def listening(self, url: str) -> None:
        self._say(f"chatd {__version__} listens on {url}; the model is loading")

    def progress(self, share: float, what: str) -> None:
        work = NUMBERS.sub("", what)
        percent = round(100 * share)
        if percent >= self._next_percent or work != self._work:
            self._say(f"{percent:3} %  {what}")
            self._next_percent = percent + 10
        self._work = work

    def ready(self, facts: Facts) -> None:
        self._say(f"ready after {facts.started_s:.1f} s")
        for name, value in describe(facts):
            self._say(f"  {name:8} {value}")

    def keys(self, login_url: Callable[[], str]) -> None:
        self._say("keys are wanted; `chatd keys login` prints a way in for a browser")

    def stopping(self, drain_s: float) -> None:
        self._say(f"stopping; running answers have up to {drain_s:g} s")

    def writing(self, done: int, total: int) -> None:
        if done == total:
            self._say(f"wrote {total:,} blocks of what was cached to disk")

    def stopped(self) -> None:
        self._say("stopped")

    def close(self) -> None:
        """Nothing is ever left open."""

    def _say(self, line: str) -> None:
        print(line, file=self._out, flush=True)


class JsonScreen:
    """One JSON object a line: ``{"status": "listening" | "loading" | "ready" | ..., ...}``."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def listening(self, url: str) -> None:
        self._say("listening", url=url, version=__version__)

    def progress(self, share: float, what: str) -> None:
        self._say("loading", progress=round(share, 3), what=what)

    def ready(self, facts: Facts) -> None:
        fields = {name: getattr(facts, name) for name in Facts.__slots__}
        self._say("ready", **fields | {"data_dir": str(facts.data_dir)})

    def keys(self, login_url: Callable[[], str]) -> None:
        self._say("keys")

    def stopping(self, drain_s: float) -> None:
        self._say("stopping", drain_s=drain_s)

    def writing(self, done: int, total: int) -> None:
        self._say("writing", done=done, total=total)

    def stopped(self) -> None:
        self._say("stopped")

    def close(self) -> None:
        """Nothing is ever left open."""

    def _say(self, status: str, **fields: object) -> None:
        print(json.dumps({"status": status, **fields}), file=self._out, flush=True)


def describe(facts: Facts) -> list[tuple[str, str]]:
    """Names and values, in the order a newcomer needs them."""
    threads = f", {facts.threads} threads" if facts.device == "cpu" else ""
    usual = facts.data_dir == default_data_dir()
    graphs = f", {facts.graphs} graphs in {show_size(facts.graph_bytes)}" if facts.graphs else ""
    return [
        ("page", facts.url),
        ("terminal", "chatd chat" + ("" if usual else f" --data-dir {facts.data_dir}")),
        ("OpenAI", f"{facts.url}/v1"),
        ("model", f"{facts.model}, {facts.context_length:,} tokens of context"),
        ("device", f"{facts.device}{threads}, weights in {facts.weights}, {facts.kernels} kernels{graphs}"),
        (
            "KV pool",
            f"{show_size(facts.kv_bytes)} of {facts.kv_dtype}: {facts.bytes_per_token:,} bytes a token, "
            f"{facts.kv_tokens:,} tokens, {facts.sessions:,.1f} full-length sessions",
        ),
        ("disk", _disk(facts)),
        ("data", str(facts.data_dir)),
    ]


def _disk(facts: Facts) -> str:
    if not facts.disk_quota_bytes:
        return "off: what leaves the KV pool is computed again"
    held, quota = show_size(facts.disk_bytes), show_size(facts.disk_quota_bytes)
    return f"{facts.disk}: {held} of {quota} in use, KV of {facts.disk_tokens:,} tokens"


def screen_for(*, as_json: bool) -> ServeScreen:
    """JSON if asked for, a bar on a terminal, lines elsewhere."""
    out = cast(TextIO, LastingOutput(sys.stdout))
    if as_json:
        return JsonScreen(out)
    console = Console(highlight=False, file=out)
    return TerminalScreen(console) if console.is_terminal else PlainScreen(out)
