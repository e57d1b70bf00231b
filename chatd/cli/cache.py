"""``chatd cache``: what is kept, what it was good for, and the operator's say in it.

A running server is asked with its token; without one, what is in the files is read or changed directly, once
their lock could be had.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from chatd.cli import cache_stats_view, cache_view
from chatd.cli.connect import ask_operator
from chatd.cli.find import resolve_id
from chatd.cli.groups import CommandGroup
from chatd.cli.options import common_options, setting_options, settings_from
from chatd.cli.report_view import write_json
from chatd.config import Settings
from chatd.data_dir import ServerAddress, live_server
from chatd.errors import SetupError

ROUTES = "/api/v1/admin/cache"
EXIT_WRONG = 1

Command = TypeVar("Command", bound=Callable[..., Any])


def cache_options(command: Command) -> Command:
    """Where the files are, and ``--json``."""
    return common_options(setting_options(["disk_dir"])(command))


@click.group(cls=CommandGroup)
def cache() -> None:
    """What is kept of the KV, in memory and on disk; what it was good for; and your say in it."""


@cache.command()
@cache_options
def stats(config_file: Path | None, as_json: bool, **flags: object) -> int:
    """Hits by tier, why the others were misses, what moved to and from disk, how good estimates were."""
    settings = settings_from(flags, config_file)
    if server := live_server(settings.data_dir):
        found = ask_operator(server, "GET", ROUTES + "/stats")
    else:
        from chatd.cli import cache_offline

        found = cache_offline.stats(settings)
    _show(found, as_json, cache_stats_view.print_stats)
    return 0


@cache.command()
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Paths.")
@cache_options
def ls(limit: int, config_file: Path | None, as_json: bool, **flags: object) -> int:
    """The tree of what is in memory, with the text it begins with, and what is on disk by account."""
    settings = settings_from(flags, config_file)
    if server := live_server(settings.data_dir):
        found = ask_operator(server, "GET", f"{ROUTES}/paths?limit={limit}")
    else:
        from chatd.cli import cache_offline

        found = cache_offline.listing(settings)
    _show(found, as_json, cache_view.print_paths)
    return 0


@cache.command()
@click.argument("name")
@click.option(
    "--prompt",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Pin what every conversation with this system prompt begins with.",
)
@click.option("--system-of", metavar="ID", help="The same, with the system prompt of a conversation.")
@click.option("--conversation", metavar="ID", help="Pin a whole conversation, as it stands now.")
@cache_options
def pin(
    name: str,
    prompt: Path | None,
    system_of: str | None,
    conversation: str | None,
    config_file: Path | None,
    as_json: bool,
    **flags: object,
) -> int:
    """Keep a prompt's KV in memory and on disk under NAME until `chatd cache unpin NAME`.

    It survives restarts. The beginning of a conversation's id will do.
    """
    if sum(one is not None for one in (prompt, system_of, conversation)) != 1:
        raise click.UsageError("Give one of --prompt, --system-of and --conversation.")
    server = _server(settings_from(flags, config_file))
    body: dict[str, str] = {"name": name}
    if prompt is not None:
        body["text"] = _text_of(prompt)
    elif system_of is not None:
        body["system_of"] = resolve_id(server, system_of)
    else:
        body["conversation_id"] = resolve_id(server, conversation or "")
    made = ask_operator(server, "POST", ROUTES + "/pins", body)
    _show(made, as_json, cache_view.print_pinned)
    return 0


@cache.command()
@click.argument("name")
@cache_options
def unpin(name: str, config_file: Path | None, as_json: bool, **flags: object) -> int:
    """Let what was pinned under NAME go the way of all else."""
    settings = settings_from(flags, config_file)
    if server := live_server(settings.data_dir):
        ask_operator(server, "DELETE", f"{ROUTES}/pins/{name}")
    else:
        from chatd.cli import cache_offline

        cache_offline.unpin(settings, name)
    _show({"name": name}, as_json, cache_view.print_unpinned)
    return 0


@cache.command()
@cache_options
def pins(config_file: Path | None, as_json: bool, **flags: object) -> int:
    """What is pinned."""
    settings = settings_from(flags, config_file)
    if server := live_server(settings.data_dir):
        found = ask_operator(server, "GET", ROUTES + "/pins")
    else:
        from chatd.cli import cache_offline

        found = cache_offline.pins(settings)
    _show(found, as_json, cache_view.print_pins)
    return 0


@cache.command()
@click.option("--namespace", metavar="NAME", help="Of this account only.  [default: all]")
@click.option("--memory-only", is_flag=True, help="Leave what is on disk.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cache_options
def clear(
    namespace: str | None,
    memory_only: bool,
    yes: bool,
    config_file: Path | None,
    as_json: bool,
    **flags: object,
) -> int:
    """Forget KV, but for what running answers use and what is pinned. Conversations stay: their next turns
    are computed again.
    """
    settings = settings_from(flags, config_file)
    server = live_server(settings.data_dir)
    if server is None and memory_only:
        raise click.UsageError("Without a server there is nothing in memory.")
    if not yes:
        whose = "all KV" if namespace is None else f"the KV of {namespace}"
        where = "in memory" if memory_only else "in memory and on disk"
        click.confirm(f"Forget {whose} {where}?", abort=True, err=True)
    if server is not None:
        body = {"namespace": namespace, "disk": not memory_only}
        done = ask_operator(server, "POST", ROUTES + "/clear", body)
    else:
        from chatd.cli import cache_offline

        done = cache_offline.clear(settings, namespace)
    _show(done, as_json, cache_view.print_cleared)
    return 0


@cache.command()
@click.option(
    "--replay",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Also compute the last N answers again, with the cache off, and compare. No server may run.",
)
@setting_options(["model", "device", "weights", "kernels", "kv_dtype", "page_size"])
@cache_options
def verify(replay: int | None, config_file: Path | None, as_json: bool, **flags: object) -> int:
    """Read every record on disk and check it; damaged ones are removed. Exit code 1 if there were any.

    With --replay the stored answers are checked too: exactly in float32, else within what rounding can do.
    The options about the model are for that; they must be those the answers were made with.
    """
    from chatd.cli import cache_verify

    settings, console = settings_from(flags, config_file), Console(highlight=False, stderr=as_json)
    found: dict[str, Any] = {"records": cache_verify.records(settings, console)}
    if replay is not None:
        found["replay"] = cache_verify.replay(settings, replay, console)
    _show(found, as_json, cache_view.print_verified)
    return 0 if cache_verify.is_right(found) else EXIT_WRONG


def _server(settings: Settings) -> ServerAddress:
    server = live_server(settings.data_dir)
    if server is None:
        raise SetupError(
            f"No server has the data folder {settings.data_dir} open, and pinning needs its model. "
            "Start one with `chatd serve`."
        )
    return server


def _text_of(prompt: Path) -> str:
    try:
        return prompt.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"The prompt {prompt} cannot be read: {error}") from None


def _show(found: Any, as_json: bool, pretty: Callable[[Any, Console], None]) -> None:
    if as_json:
        write_json(found, sys.stdout)
    else:
        pretty(found, Console(highlight=False))
