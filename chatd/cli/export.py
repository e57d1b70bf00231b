"""``chatd export`` and ``chatd import``: conversations as files."""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TextIO

import click
from rich.console import Console

from chatd.cli.data_reading import database_of, read_data
from chatd.cli.options import common_options, settings_from
from chatd.cli.report_view import write_json
from chatd.data_dir import hold_data_dir
from chatd.errors import SetupError
from chatd.ids import Namespace
from chatd.imports.errors import WrongFile
from chatd.imports.files import Found, read_file, without_ids
from chatd.imports.jsonl import write_jsonl
from chatd.resources import migrations_dir
from chatd.store.archive import Archived, Stored, archived, find_conversation, store_archived
from chatd.store.records import micros
from chatd.store.upgrade import upgrade, writing


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--conversation",
    "chosen",
    multiple=True,
    metavar="ID",
    help="Only this one; the beginning of its id will do. May be repeated.",
)
@common_options
def export(
    file: Path, chosen: tuple[str, ...], config_file: Path | None, as_json: bool, data_dir: str | None
) -> None:
    """Write conversations to FILE (- for standard output), one a line, with all branches and token ids.

    The bills stay in the data folder. A running server goes on meanwhile.
    """
    settings = settings_from({"data_dir": data_dir}, config_file)
    with read_data(settings) as connection:
        ids = [find_conversation(connection, one) for one in chosen]
        if str(file) == "-":
            write_jsonl(archived(connection, ids or None), sys.stdout, now=time.time())
            return
        with _new_file(file) as out:
            count = write_jsonl(archived(connection, ids or None), out, now=time.time())
    if as_json:
        write_json({"file": str(file), "conversations": count}, sys.stdout)
    else:
        Console(highlight=False).print(
            f"Wrote {count:,} conversations to {file}.", markup=False, soft_wrap=True
        )


def _new_file(path: Path) -> TextIO:
    """Readable by nobody else: conversations are private."""
    try:
        return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")
    except FileExistsError:
        raise SetupError(f"{path} is there already; an export replaces nothing.") from None
    except OSError as error:
        raise SetupError(f"{path} cannot be written: {error.strerror}.") from None


@click.command(name="import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--no-token-ids", is_flag=True, help="Leave token ids out: for another model than they came from."
)
@click.option(
    "--namespace", default="local", show_default=True, help="Whose other tools' conversations become."
)
@common_options
def import_(
    files: tuple[Path, ...],
    no_token_ids: bool,
    namespace: str,
    config_file: Path | None,
    as_json: bool,
    data_dir: str | None,
) -> None:
    """Store the conversations of FILES: of `chatd export`, ChatGPT, Open WebUI or llama.cpp's page.

    What cannot be is left out and named, and the exit code is 1 then. What is stored already is left as it
    is. Not while a server runs.
    """
    settings = settings_from({"data_dir": data_dir}, config_file)
    now = micros(time.time())
    found = _read(files, Namespace(namespace), now)
    with hold_data_dir(settings.data_dir):
        database = database_of(settings)
        upgrade(database, migrations_dir())
        with writing(database) as connection:
            wanted = found.conversations
            stored = store_archived(connection, without_ids(wanted) if no_token_ids else wanted)
    _say(replace(stored, left_out=(*found.left_out, *stored.left_out)), as_json=as_json)


def _read(files: Sequence[Path], namespace: Namespace, now: int) -> Found:
    """`WrongFile` if none of them can be read."""
    conversations: list[Archived] = []
    left_out: list[str] = []
    wrong: list[WrongFile] = []
    for path in files:
        try:
            found = read_file(path, namespace, now)
        except WrongFile as error:
            wrong.append(error)
            left_out.append(error.message)
        else:
            conversations += found.conversations
            left_out += found.left_out
    if len(wrong) == len(files):
        raise wrong[0]
    return Found(conversations, left_out)


def _say(stored: Stored, *, as_json: bool) -> None:
    """Exits with 1 if something was left out."""
    if as_json:
        write_json(asdict(stored), sys.stdout)
    else:
        said = f"Stored {stored.added:,} conversations with {stored.messages:,} messages."
        if stored.known:
            said += f" {stored.known:,} were there already and are as they were."
        Console(highlight=False).print(said, markup=False, soft_wrap=True)
        for left_out in stored.left_out:
            click.echo(f"Left out: {left_out.removesuffix('.')}.", err=True)
    if stored.left_out:
        sys.exit(1)
