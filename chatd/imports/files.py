"""A file of conversations, whatever tool wrote it. What of it can be stored is found, and the rest named."""

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
NAMED_LEN = 80
"""Characters of a title in a message that says what is wrong with its conversation."""
IN_ZIP = "conversations.json"
ZIP = b"PK\x03\x04"
BEGIN, BETWEEN, END = re.compile(r"\s*\[\s*"), re.compile(r"\s*,\s*"), re.compile(r"\s*\]\s*\Z")
TOOLS = ("ChatGPT's", "Open WebUI's", "llama.cpp's")

Reader = Callable[[Mapping[str, Any], str, int], Source]
KINDS: Sequence[tuple[Callable[[object], bool], Reader]] = (
    (is_chatgpt, read_chatgpt),
    (is_open_webui, read_open_webui),
    (is_llama_cpp, read_llama_cpp),
)


@dataclass(frozen=True, slots=True)
class Found:
    """The conversations of a file that can be stored, and of what cannot where it is and what is wrong."""

    conversations: list[Archived]
    left_out: list[str]


def read_file(path: Path, namespace: Namespace, now: int) -> Found:
    """All conversations of a file, checked. ``namespace`` is for those of other tools.

    `WrongFile`, with the name of the file, if none can be stored for something that is wrong.
    """
    try:
        found = read_bytes(_bytes(path), namespace, now)
    except WrongFile as error:
        raise WrongFile(f"{path} cannot be imported: {error.message}. Nothing of it was stored.") from None
    return replace(found, left_out=[f"{path}: {said}" for said in found.left_out])


def read_bytes(raw: bytes, namespace: Namespace, now: int) -> Found:
    """As `read_file`, of what is in a file."""
    if raw.startswith(ZIP):
        raw = _unzipped(io.BytesIO(raw))
    wrong: list[str] = []
    if is_jsonl(raw[:200]):
        read = read_jsonl(raw.splitlines(), wrong)
    elif is_whole(raw[:200]):
        read = read_whole(raw, wrong)
    else:
        read = _foreign(raw, namespace, now, wrong)
    found = [one for one in read if _is_right(one, wrong)]
    if wrong and not found:
        raise WrongFile(wrong[0])
    return Found(found, wrong)


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


def _foreign(raw: bytes, namespace: Namespace, now: int, wrong: list[str]) -> Iterator[Archived]:
    for number, value in enumerate(_values(raw, wrong), 1):
        where = f"conversation {number}"
        read = next((reader for is_kind, reader in KINDS if is_kind(value)), None)
        if read is None or not isinstance(value, Mapping):
            wrong.append(f"{where} is of no kind that chatd knows (its own, {', '.join(TOOLS)})")
            continue
        if title := value.get("title") or value.get("id"):
            where += f" ({str(title)[:40]})"
        try:
            source = read(value, where, now)
            one = source.archived(namespace)
        except WrongFile as error:
            wrong.append(error.message if error.message.startswith(where) else f"{where}: {error.message}")
            continue
        wrong.extend(source.wrong)
        yield one


def _values(raw: bytes, wrong: list[str]) -> Iterator[object]:
    """What a file lists, or the one thing it is. Of a list that breaks off, what comes before."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        yield from _before_the_break(raw.decode("utf-8", "replace"), wrong)
        return
    yield from value if isinstance(value, list) else [value]


def _before_the_break(text: str, wrong: list[str]) -> Iterator[object]:
    decoder = json.JSONDecoder(parse_constant=_no_number)
    start = BEGIN.match(text)
    at, count = start.end() if start is not None else 0, 0
    try:
        while start is not None:
            value, at = decoder.raw_decode(text, at)
            yield value
            count += 1
            between = BETWEEN.match(text, at)
            if between is None:
                break
            at = between.end()
        said = "breaks off, or is not JSON,"
    except (ValueError, RecursionError) as error:
        said = f"is not JSON ({error})"
    if not END.match(text, at):
        wrong.append(f"it {said} from character {at + 1:,} on, after {count:,} conversations")


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _is_right(one: Archived, wrong: list[str]) -> bool:
    try:
        one.check()
    except WrongArchive as error:
        wrong.append(f"conversation {(one.title or one.id)[:NAMED_LEN]} is wrong: {error}")
        return False
    return True
