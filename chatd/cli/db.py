"""``chatd db``: the database upgraded, backed up and checked."""

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from chatd.cli.data_reading import database_of
from chatd.cli.groups import CommandGroup
from chatd.cli.options import common_options, settings_from
from chatd.cli.report_view import print_verdict, write_json
from chatd.config import Settings
from chatd.data_dir import hold_data_dir, live_server
from chatd.errors import SetupError

EXIT_WRONG = 1


@click.group(cls=CommandGroup)
def db() -> None:
    """Care of the database: upgrade it, back it up, check it, mend the sums of reports."""


@db.command()
@common_options
def upgrade(config_file: Path | None, as_json: bool, data_dir: str | None) -> None:
    """Bring the database to the schema of this chatd, after a backup beside it.

    A server does the same when it starts; this is for doing it at a time of your choice. Not while a
    server runs.
    """
    from chatd.resources import migrations_dir
    from chatd.store.upgrade import upgrade as bring_up

    settings = settings_from({"data_dir": data_dir}, config_file)
    database = database_of(settings)
    with hold_data_dir(settings.data_dir):
        done = bring_up(database, migrations_dir())
    backup = None if done.backup is None else str(done.backup)
    if as_json:
        write_json({"before": done.before or None, "after": done.after, "backup": backup}, sys.stdout)
        return
    if done.before == done.after:
        said = f"The database has the newest schema ({done.after}) already."
    elif not done.before:
        said = f"A new database was made, with schema {done.after}."
    else:
        said = f"Upgraded from schema {done.before} to {done.after}. As it was before: {backup}"
    Console(highlight=False).print(said, markup=False, soft_wrap=True)


@db.command()
@common_options
def rebuild(config_file: Path | None, as_json: bool, data_dir: str | None) -> None:
    """Work out the reports' sums again from the ledger, should `chatd db check` find them wrong.

    Not while a server runs.
    """
    from chatd.resources import migrations_dir
    from chatd.store import rollups
    from chatd.store.upgrade import upgrade as bring_up
    from chatd.store.upgrade import writing

    settings = settings_from({"data_dir": data_dir}, config_file)
    database = database_of(settings)
    with hold_data_dir(settings.data_dir):
        bring_up(database, migrations_dir())
        with writing(database) as connection:
            turns = rollups.rebuild(connection)
    if as_json:
        write_json({"turns": turns}, sys.stdout)
    else:
        said = f"The reports' sums were worked out again from {turns:,} turns."
        Console(highlight=False).print(said, markup=False, soft_wrap=True)


@db.command()
@click.argument("file", type=click.Path(path_type=Path))
@common_options
def backup(file: Path, config_file: Path | None, as_json: bool, data_dir: str | None) -> None:
    """Copy the database to FILE, which must not exist yet. A running server goes on meanwhile.

    To go back to it: stop the server, and put the file in the place of chatd.db (without chatd.db-wal and
    chatd.db-shm).
    """
    from chatd.store.care import back_up

    settings = settings_from({"data_dir": data_dir}, config_file)
    database = database_of(settings)
    if not database.exists():
        raise SetupError(f"There is no database in {settings.data_dir} yet.")
    size = back_up(database, file)
    if as_json:
        write_json({"file": str(file), "bytes": size}, sys.stdout)
    else:
        Console(highlight=False).print(f"Wrote {file}, {size:,} bytes.", markup=False, soft_wrap=True)


@db.command()
@common_options
def check(config_file: Path | None, as_json: bool, data_dir: str | None) -> int:
    """Check the file, its references, and everything that `chatd report --verify` checks; exit 1 if wrong."""
    settings = settings_from({"data_dir": data_dir}, config_file)
    verdict = _check(settings)
    if as_json:
        write_json(verdict, sys.stdout)
    else:
        console = Console(highlight=False)
        if not any(one["check"] in ("integrity", "reference") for one in verdict["findings"]):
            console.print("The file is whole, and every reference leads somewhere.", style="green")
        print_verdict(verdict, console)
    return 0 if verdict["ok"] else EXIT_WRONG


def _check(settings: Settings) -> dict[str, Any]:
    """As ``GET /api/v1/report/verify`` answers, with the file's own findings first."""
    from dataclasses import asdict

    from chatd.cli import report_offline
    from chatd.cli.connect import ask_operator
    from chatd.store.care import check_file
    from chatd.store.upgrade import reading

    database = database_of(settings)
    if not database.exists():
        raise SetupError(f"There is no database in {settings.data_dir} yet.")
    with reading(database) as connection:
        found = [asdict(one) for one in check_file(connection)]
    if found:  # A damaged file says nothing that could be relied on.
        counts = dict.fromkeys(("runs", "responses", "messages", "pieces"), 0)
        return {"ok": False, "findings": found, "unsettled": None, "settled": 0, **counts}
    server = live_server(settings.data_dir)
    verdict: dict[str, Any] = (
        report_offline.verdict(settings)
        if server is None
        else ask_operator(server, "GET", "/api/v1/report/verify")
    )
    return verdict
