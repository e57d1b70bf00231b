"""A file of conversations, whatever tool wrote it."""

import io
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from chatd.ids import Namespace
from chatd.imports.chatgpt import is_chatgpt, read_chatgpt
from chatd.imports.errors import WrongFile
from chatd.imports.jsonl import is_jsonl, is_whole, read_jsonl, read_whole
from chatd.imports.llama_cpp import is_llama_cpp, read_llama_cpp
from chatd.imports.open_webui import is_open_webui, read_open_webui
from chatd.imports.trees import Source
from chatd.store.archive import Archived, WrongArchive

MOST_BYTES = 2**30
IN_ZIP = "conversations.json"
ZIP = b"PK\x03\x04"

Reader = Callable[[Mapping[str, Any], str, int], Source]
KINDS: Sequence[tuple[Callable[[object], bool], Reader]] = (
    (is_chatgpt, read_chatgpt),
    (is_open_webui, read_open_webui),
    (is_llama_cpp, read_llama_cpp),
)


def read_file(path: Path, namespace: Namespace, now: int) -> list[Archived]:
    """All conversations of a file, checked. ``namespace`` is for those of other tools.

    `WrongFile` names the file, the place in it, and what is wrong there.
    """
    try:
        return read_bytes(_bytes(path), namespace, now)
    except WrongFile as error:
        raise WrongFile(f"{path} cannot be imported: {error.message}. Nothing of it was stored.") from None


def read_bytes(raw: bytes, namespace: Namespace, now: int) -> list[Archived]:
    """As `read_file`, of what is in a file; `WrongFile` names the place in it, and what is wrong there."""
    if raw.startswith(ZIP):
        raw = _unzipped(io.BytesIO(raw))
    if is_jsonl(raw[:200]):
        found = list(read_jsonl(raw.splitlines()))
    elif is_whole(raw[:200]):
        found = read_whole(raw)
    else:
        found = list(_foreign(raw, namespace, now))
    for number, one in enumerate(found, 1):
        _check(one, number)
    return found


def without_ids(found: Sequence[Archived]) -> list[Archived]:
    """For a model with other tokens: the texts are encoded when a conversation goes on."""
    return [replace(one, messages=tuple(replace(m, token_ids=None) for m in one.messages)) for one in found]


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise WrongFile(f"it is larger than {MOST_BYTES >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise WrongFile(f"it cannot be read ({error.strerror})") from None


def _unzipped(file: BinaryIO) -> bytes:
    try:
        with zipfile.ZipFile(file) as archive, archive.open(IN_ZIP) as inner:
            raw = inner.read(MOST_BYTES + 1)
    except KeyError:
        raise WrongFile(f"it is an archive without a {IN_ZIP}") from None
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise WrongFile(f"it is a broken archive ({error})") from None
    if len(raw) > MOST_BYTES:
        raise WrongFile(f"its {IN_ZIP} is larger than {MOST_BYTES >> 20} MiB")
    return raw


def _foreign(raw: bytes, namespace: Namespace, now: int) -> Iterator[Archived]:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WrongFile(f"it is not JSON ({error})") from None
    for number, one in enumerate(value if isinstance(value, list) else [value], 1):
        read = next((reader for is_kind, reader in KINDS if is_kind(one)), None)
        if read is None:
            raise WrongFile(
                f"conversation {number} is of no kind that chatd knows (its own, ChatGPT's, Open WebUI's, "
                "llama.cpp's)"
            )
        title = one.get("title") or one.get("id") or ""
        where = f"conversation {number}" + (f" ({str(title)[:40]})" if title else "")
        try:
            yield read(one, where, now).archived(namespace)
        except WrongFile as error:
            said = error.message if error.message.startswith(where) else f"{where}: {error.message}"
            raise WrongFile(said) from None


def _check(one: Archived, number: int) -> None:
    try:
        one.check()
    except WrongArchive as error:
        raise WrongFile(f"conversation {number} ({one.title or one.id}) is wrong: {error}") from None
