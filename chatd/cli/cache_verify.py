"""What ``chatd cache verify`` does: every record read, and on request stored answers computed again."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from chatd.cli import cache_offline
from chatd.cli.connect import operator_lines
from chatd.cli.held_folder import ask_store, held
from chatd.config import Settings
from chatd.data_dir import ServerAddress, live_server
from chatd.errors import SetupError
from chatd.server.admin_api import checked_of

Tell = Callable[[int, int], None]
"""Told what is done, and of how many."""


def records(settings: Settings, console: Console) -> dict[str, Any]:
    """``{"records", "nbytes", "damages": [...]}``. Asks the running server; without one reads the files."""
    server = live_server(settings.data_dir)
    with _progress(console, "reading records") as tell:
        if server is not None:
            return _summed(_by_server(server), tell)
        with held(settings), cache_offline.disk(settings) as tier:
            return _summed(() if tier is None else map(checked_of, tier.verify()), tell)


def _by_server(server: ServerAddress) -> Iterator[dict[str, Any]]:
    yield from operator_lines(server, "POST", "/api/v1/admin/cache/verify")


def _summed(checks: Iterable[dict[str, Any]], tell: Tell) -> dict[str, Any]:
    last: dict[str, Any] = {"total": 0, "nbytes": 0}
    damages = []
    for last in checks:
        tell(last["done"], last["total"])
        if last["damage"] is not None:
            damages.append(last["damage"])
    return {"records": last["total"], "nbytes": last["nbytes"], "damages": damages}


def replay(settings: Settings, count: int, console: Console) -> dict[str, Any]:
    """``{"turns", "left_out", "tokens", "exact", "differing": [...], "formats", "backend"}``.

    `SetupError` while a server runs, and for answers that another model or other formats made.
    """
    server = live_server(settings.data_dir)
    if server is not None:
        raise SetupError(
            f"A server has the data folder open ({server.url}), and answers are computed again by this "
            "command itself: stop it first. (Without --replay, verify goes through the server.)"
        )
    with held(settings):
        turns = ask_store(settings, lambda store: store.newest_turns(count))
    if not turns:
        nothing: dict[str, Any] = {"turns": 0, "left_out": 0, "tokens": 0, "exact": True, "differing": []}
        return nothing | {"formats": "", "backend": ""}
    # torch takes a second to import
    from chatd.cli.replay_model import open_replayer, stored_turn

    with _progress(console, "loading the model") as tell:
        replayer = open_replayer(settings, turns, lambda share, what: tell(round(100 * share), 100))
    stored = [stored_turn(turn) for turn in turns]
    chosen = [turn for turn in stored if replayer.exact or not turn.has_filters]
    differing = []
    with _progress(console, "computing answers again") as tell:
        for number, turn in enumerate(chosen, 1):
            differing += replayer.compare(turn)
            tell(number, len(chosen))
    return {
        "turns": len(chosen),
        "left_out": len(stored) - len(chosen),
        "tokens": sum(len(turn.ids) - turn.prompt_len for turn in chosen),
        "exact": replayer.exact,
        "differing": [asdict(one) | {"is_wrong": one.is_wrong} for one in differing],
        "formats": turns[0].response.formats,
        "backend": turns[0].response.backend,
    }


def is_right(found: dict[str, Any]) -> bool:
    """Nothing was damaged, and nothing came out in another way than rounding explains."""
    wrong = [one for one in found.get("replay", {}).get("differing", ()) if one["is_wrong"]]
    return not found["records"]["damages"] and not wrong


@contextlib.contextmanager
def _progress(console: Console, what: str) -> Iterator[Tell]:
    """A bar on a terminal, nothing elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
