"""What a person sees while a benchmark runs. All of it on standard error, and only on a terminal."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from chatd.bench.answers import Run

TICK_S = 0.2


class BenchScreen:
    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[Callable[[str], None]]:
        """``what`` with a spinner; the function given changes it."""
        if not self._console.is_terminal:
            yield lambda text: None
            return
        with self._console.status(f"[dim]{escape(what)}[/dim]") as status:
            yield lambda text: status.update(f"[dim]{escape(text)}[/dim]")

    @contextlib.asynccontextmanager
    async def running(self, what: str, run: Run) -> AsyncIterator[None]:
        """A bar of turns, with tokens a second so far."""
        if not self._console.is_terminal:
            yield
            return
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("turns · {task.fields[rate]:,.0f} tokens/s ·"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            auto_refresh=False,
            expand=True,
        )
        task_id = bar.add_task(escape(what), total=run.planned, rate=0.0)

        def tick() -> None:
            tokens = sum(one.seen_tokens for one in run.answers)
            rate = tokens / max(bar.tasks[0].elapsed or 0.0, TICK_S)
            bar.update(task_id, completed=run.over, rate=rate, refresh=True)

        with bar:
            ticking = asyncio.create_task(_every(TICK_S, tick))
            try:
                yield
            finally:
                ticking.cancel()
                await asyncio.gather(ticking, return_exceptions=True)


async def _every(seconds: float, do: Callable[[], None]) -> None:
    while True:
        do()
        await asyncio.sleep(seconds)
