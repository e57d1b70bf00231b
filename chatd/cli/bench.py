"""``chatd bench``: how fast a server is, or the engine alone, under a load of many turns."""

import asyncio
import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from chatd.bench.load import Load
from chatd.cli import bench_serve
from chatd.cli.bench_facts import date, machine, server_facts, versions
from chatd.cli.bench_options import PARTS, load_from, load_options, number, numbers
from chatd.cli.bench_screen import BenchScreen
from chatd.cli.bench_start import flags_of, temporary_server
from chatd.cli.bench_view import (
    describe_load,
    describe_machine,
    describe_model,
    print_compared,
    print_decoded,
    print_figures,
    print_prefilled,
    print_sides,
    say,
)
from chatd.cli.connect import server_at, wait_ready
from chatd.cli.groups import CommandGroup
from chatd.cli.options import common_options, setting_options, settings_from
from chatd.cli.report_view import write_json
from chatd.data_dir import ServerAddress
from chatd.errors import SetupError
from chatd.logs import configure_logs

EXIT_FAILED, EXIT_INTERRUPTED = 1, 130
MOST_PAIRS = 100
MOST_BATCH, MOST_PREFILL, MOST_REPEATS = 4096, 1_000_000, 100
COMPUTING = [
    *("model", "device", "weights", "kernels", "no_graphs", "kv_dtype", "kv_bytes", "kv_share", "page_size"),
    *("context_length", "step_tokens", "max_running", "no_prefix_cache"),
]
STARTING = [*COMPUTING, "disk", "disk_bytes"]
"""Settings of a server that is started for the benchmark."""


@click.group(cls=CommandGroup)
def bench() -> None:
    """Measure a server, or the engine alone, under a load of conversations with many turns."""


def _in_a_folder(context: click.Context, parameter: click.Parameter, out: Path | None) -> Path | None:
    """Said before the load runs, not after it."""
    if out is not None and not out.parent.is_dir():
        raise click.BadParameter(f"there is no folder {out.parent}.", context, parameter)
    return out


def out_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--out",
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        metavar="FILE",
        callback=_in_a_folder,
        help="Also write everything there, as --json does.",
    )(command)


@bench.command()
@load_options
@click.option("--url", metavar="URL", help="The server.  [default: the one that has the data folder]")
@click.option("--start", is_flag=True, help="Start a server of its own for it, in a temporary folder.")
@click.option("--against", metavar="URL", help="An OpenAI-compatible server to compare with, run after run.")
@click.option("--against-model", metavar="NAME", help="Its model.  [default: the first that it names]")
@number("--pairs", 1, MOST_PAIRS, 5, "Runs of each, alternating; with --against.")
@click.option("--websocket", is_flag=True, help="With --against: chatd over its WebSocket all the same.")
@click.option("--allow-remote", is_flag=True, help="Also load servers on other machines.")
@out_option
@setting_options(STARTING)
@common_options
def serve(
    url: str | None,
    start: bool,
    against: str | None,
    against_model: str | None,
    pairs: int,
    websocket: bool,
    allow_remote: bool,
    out: Path | None,
    config_file: Path | None,
    as_json: bool,
    data_dir: str | None,
    **options: Any,
) -> int:
    """Measure a running server: conversations over its WebSocket, as the page holds them.

    Its conversations are deleted in the end, with their KV. With --against another server gets the very same
    load in turn; then chatd is driven over the OpenAI endpoint too, unless --websocket is given, and keeps
    such histories as ever: hidden, for a week. Keys are taken from CHATD_KEY, and for the peer from
    CHATD_PEER_KEY. Settings such as --weights are for --start.
    """
    load = load_from(options)
    _refuse_mixed(start=start, url=url, against=against, against_model=against_model, options=options)
    bench_serve.check_local(*filter(None, (url, against)), allow_remote=allow_remote)
    screen = BenchScreen()
    peer = None if against is None else asyncio.run(bench_serve.peer_side(against, against_model))
    with _server(start, url, {"data_dir": data_dir}, config_file, options, screen) as server:
        with screen.waiting("looking at the machine"):
            facts = {"command": "bench serve", "date": date(), "versions": versions(), "machine": machine()}
            facts["server"] = about = server_facts(server)
        _check_ready(about)
        own = bench_serve.own_side(server, about["model"]["name"], websocket=peer is None or websocket)
        outcome = asyncio.run(
            bench_serve.bench(
                load, own, peer, pairs=pairs, server=server, model=about["model"], screen=screen
            )
        )
    document = facts | bench_serve.as_json(load, own, peer, outcome)
    written = deliver(
        document, out, as_json, lambda console: show_serve(console, document, load, own, peer, outcome)
    )
    return exit_code(outcome.interrupted, not written or any(run.errors for run in outcome.runs))


def exit_code(interrupted: bool, failed: bool) -> int:
    return EXIT_INTERRUPTED if interrupted else EXIT_FAILED if failed else 0


def _refuse_mixed(
    *, start: bool, url: str | None, against: str | None, against_model: str | None, options: dict[str, Any]
) -> None:
    if start and url is not None:
        raise click.UsageError("--start and --url exclude each other.")
    if against_model is not None and against is None:
        raise click.UsageError("--against-model goes with --against.")
    if not start and (flags := flags_of(options)):
        raise click.UsageError(f"{flags[0]} is for a server that is started here: it goes with --start.")


@contextlib.contextmanager
def _server(
    start: bool,
    url: str | None,
    folder: dict[str, str | None],
    config_file: Path | None,
    options: dict[str, Any],
    screen: BenchScreen,
) -> Iterator[ServerAddress]:
    """One that takes requests."""
    if start:
        config = [] if config_file is None else ["--config", str(config_file)]
        with screen.waiting("starting a server") as progress, contextlib.ExitStack() as stack:
            server = stack.enter_context(temporary_server([*flags_of(options), *config], progress))
            kept = stack.pop_all()
        with kept:
            yield server
        return
    server = server_at(settings_from(folder, config_file), url)
    with screen.waiting("the server is loading its model") as progress:
        wait_ready(server, progress)
    yield server


def _check_ready(about: dict[str, Any]) -> None:
    if about["model"] is None:
        raise SetupError(f"The server at {about['url']} has no model now; it may be stopping.")


@bench.command()
@click.option(
    "--only", type=click.Choice(PARTS), multiple=True, help="One part; can be given more than once."
)
@numbers("--batches", MOST_BATCH, "1,4,16", "Decode so many sequences at once.")
@number("--decode-context", 1, MOST_PREFILL, 500, "Tokens that each of them has before.")
@number("--decode-len", 4, 10_000, 48, "Steps of each batch size.")
@numbers("--prefill", MOST_PREFILL, "128,512,2000", "Compute prompts of so many tokens.")
@number("--repeat", 1, MOST_REPEATS, 3, "Prompts of each length.")
@load_options
@out_option
@setting_options(COMPUTING)
@common_options
def engine(
    only: tuple[str, ...],
    batches: tuple[int, ...],
    decode_context: int,
    decode_len: int,
    prefill: tuple[int, ...],
    repeat: int,
    out: Path | None,
    config_file: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Measure the engine without a server: no sockets, no store, prompts as token ids.

    Three parts: decode by batch size, prefill by length, and conversations like those of `chatd bench serve`.
    The difference to that is what the server costs.
    """
    load = load_from(options)
    settings = settings_from(options, config_file)
    configure_logs(as_json=False, level="warning")
    # torch takes a second to import.
    from chatd.cli import bench_engine, loading

    loading.check(settings)
    parts = bench_engine.Parts(only or PARTS, batches, decode_context, decode_len, prefill, repeat)
    screen = BenchScreen()
    with screen.waiting("looking at the machine"):
        facts = {"command": "bench engine", "date": date(), "versions": versions(), "machine": machine()}
    outcome = asyncio.run(bench_engine.bench(settings, load, parts, screen, loading.load))
    document = facts | bench_engine.as_json(load, outcome)

    def show(console: Console) -> None:
        console.print("[bold]chatd bench engine[/bold] · no server")
        say(console, "model", describe_model(outcome.model))
        say(console, "machine", describe_machine(document["machine"]))
        if outcome.interrupted and outcome.run is None:
            console.print("\nInterrupted: this is what was measured so far.", style="yellow")
        print_decoded(outcome.decoded, console)
        print_prefilled(outcome.prefilled, console)
        if outcome.run is not None and (turns := outcome.turns):
            console.print()
            say(console, "turns", describe_load(load))
            console.print()
            print_figures(turns, outcome.run, outcome.memory, console)

    written = deliver(document, out, as_json, show)
    return exit_code(outcome.interrupted, not written or bool(outcome.run and outcome.run.errors))


def deliver(
    document: dict[str, Any], out: Path | None, as_json: bool, show: Callable[[Console], None]
) -> bool:
    """Whether ``out`` could be written; the figures are shown all the same."""
    written = True
    if out is not None:
        text = io.StringIO()
        write_json(document, text)
        try:
            out.write_text(text.getvalue(), "utf-8")
        except OSError as error:
            click.echo(f"chatd: {out} cannot be written: {error.strerror}.", err=True)
            written = False
    if as_json:
        write_json(document, sys.stdout)
    else:
        show(Console(highlight=False))
    return written


def show_serve(
    console: Console,
    document: dict[str, Any],
    load: Load,
    own: bench_serve.Side,
    peer: bench_serve.Side | None,
    outcome: bench_serve.Outcome,
) -> None:
    server = document["server"]
    console.print(f"[bold]chatd bench serve[/bold] · {escape(server['url'])} over {own.wire}")
    say(console, "load", describe_load(load))
    say(console, "model", describe_model(server["model"]))
    say(console, "machine", describe_machine(document["machine"]))
    console.print()
    if peer is None:
        run, found = outcome.own[0]
        print_figures(found, run, outcome.memory, console)
        return
    _show_pairs(console, own, peer, outcome)


def _show_pairs(
    console: Console, own: bench_serve.Side, peer: bench_serve.Side, outcome: bench_serve.Outcome
) -> None:
    say(console, "peer", f"{peer.model} at {peer.url} over {peer.wire}")
    count = len(outcome.pairs)
    say(
        console,
        "pairs",
        f"{count}, the peer first, the same words for both; ratio: chatd / peer, median of the pairs",
    )
    console.print()
    if outcome.interrupted:
        console.print("Interrupted: whole pairs count.\n", style="yellow")
    if count:
        print_compared(outcome.compared, own.name, peer.name, console)
    console.print()
    print_sides([(peer.name, outcome.peers), (own.name, outcome.own)], console)
