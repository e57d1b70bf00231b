"""``chatd report``: what each session used and cost, and whether the ledger is right."""

import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from chatd.cli.connect import get_json
from chatd.cli.options import common_options, settings_from
from chatd.cli.report_view import print_table, print_verdict, write_csv, write_json
from chatd.config import Settings
from chatd.data_dir import live_server

EXIT_WRONG = 1


@click.command()
@click.option("--csv", "as_csv", is_flag=True, help="Write CSV, one line a session.")
@click.option(
    "--verify", is_flag=True, help="Check the ledger against what was stored and counted; exit 1 if wrong."
)
@common_options
def report(as_csv: bool, verify: bool, config_file: Path | None, as_json: bool, data_dir: str | None) -> int:
    """What each session used, what of it was reused, and what it cost.

    Asks the running server; without one it reads the data folder itself.
    """
    if as_csv and (as_json or verify):
        raise click.UsageError("--csv goes with neither --json nor --verify.")
    settings = settings_from({"data_dir": data_dir}, config_file)
    console = Console(highlight=False)
    if verify:
        verdict = _verdict(settings)
        write_json(verdict, sys.stdout) if as_json else print_verdict(verdict, console)
        return 0 if verdict["ok"] else EXIT_WRONG
    sessions = _sessions(settings)
    if as_json:
        write_json(sessions, sys.stdout)
    elif as_csv:
        write_csv(sessions, sys.stdout)
    else:
        print_table(sessions, console, time.time())
    return 0


def _sessions(settings: Settings) -> dict[str, Any]:
    if server := live_server(settings.data_dir):
        found: dict[str, Any] = get_json(server.url, "/api/v1/report")
        return found
    from chatd.cli import report_offline

    return report_offline.sessions(settings)


def _verdict(settings: Settings) -> dict[str, Any]:
    if server := live_server(settings.data_dir):
        found: dict[str, Any] = get_json(server.url, "/api/v1/report/verify")
        return found
    from chatd.cli import report_offline

    return report_offline.verdict(settings)
