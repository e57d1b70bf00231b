"""``chatd export`` and ``chatd import``: conversations as files."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import click
from rich.console import Console
from sqlalchemy import Connection

from chatd.cli.data_reading import database_of, read_data
from chatd.cli.options import common_options, settings_from
from chatd.cli.report_view import write_json
from chatd.data_dir import hold_data_dir
from chatd.errors import SetupError
from chatd.ids import ConversationId, Namespace
from chatd.imports.files import read_file, without_ids
from chatd.imports.jsonl import write_jsonl
from chatd.resources import migrations_dir
from chatd.store.archive import Archived, Stored, WrongArchive, archived, check_known, store_archived
from chatd.store.records import micros
from chatd.store.upgrade import upgrade, writing


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--conversation", "chosen", multiple=True, metavar="ID", help="Only this one; may be repeated.")
@common_options
def export(
    file: Path, chosen: tuple[str, ...], config_file: Path | None, as_json: bool, data_dir: str | None
) -> None:
    """Write conversations to FILE (- for standard output), one a line, with all branches and token ids.

    The bills stay in the data folder. A running server goes on meanwhile.
    """
    settings = settings_from({"data_dir": data_dir}, config_file)
    ids = [ConversationId(one) for one in chosen]
    with read_data(settings) as connection:
        check_known(connection, ids)
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

    All of them or, if one cannot be, none. What is stored already is left as it is. Not while a server
    runs.
    """
    settings = settings_from({"data_dir": data_dir}, config_file)
    now = micros(time.time())
    found = [one for path in files for one in read_file(path, Namespace(namespace), now)]
    with hold_data_dir(settings.data_dir):
        database = database_of(settings)
        upgrade(database, migrations_dir())
        with writing(database) as connection:
            stored = _store(connection, without_ids(found) if no_token_ids else found)
    if as_json:
        write_json({"added": stored.added, "known": stored.known, "messages": stored.messages}, sys.stdout)
        return
    said = f"Stored {stored.added:,} conversations with {stored.messages:,} messages."
    if stored.known:
        said += f" {stored.known:,} were there already and are as they were."
    Console(highlight=False).print(said, markup=False, soft_wrap=True)


def _store(connection: Connection, found: Sequence[Archived]) -> Stored:
    try:
        return store_archived(connection, found)
    except WrongArchive as error:
        raise SetupError(f"The conversations cannot be stored: {error}. None was.") from None
