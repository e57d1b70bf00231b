"""chatd's own files of conversations: JSON lines.

    {"format": "chatd-conversations", "version": 1, "made_at": "2026-11-29T14:20:05.123456Z"}
    {"id": ..., "namespace": ..., "title": ..., "created_at": ..., "updated_at": ..., "tip_id": ...,
     "messages": [{"id", "parent_id", "role", "text", "token_ids", "status", "created_at"}, ...]}

or, for people to look at, one object over several lines: the first of these, with "conversations", a list of
the others.

One conversation a line, each with its whole tree, parents before children. Times are RFC 3339, UTC.
``token_ids`` are those that the model saw, for exactly the model they came from; null where they are not
known. What conversations cost is not in here.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TextIO

import msgspec
from msgspec import Struct

from chatd.ids import ConversationId, MessageId, Namespace
from chatd.imports.errors import WrongFile
from chatd.store.archive import Archived, ArchivedMessage
from chatd.store.records import MessageStatus, micros, rfc3339

FORMAT = "chatd-conversations"
VERSION = 1


class Head(Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    version: int
    made_at: str


class MessageLine(Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    parent_id: str | None
    role: str
    text: str
    token_ids: list[int] | None
    status: MessageStatus
    created_at: datetime


class ConversationLine(Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    namespace: str
    title: str
    created_at: datetime
    updated_at: datetime
    tip_id: str | None
    messages: list[MessageLine]


class Whole(Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    version: int
    made_at: str
    conversations: list[msgspec.Raw]


def head_line(now: float) -> bytes:
    """The first line of a file, with its end."""
    return msgspec.json.encode(_head(now)) + b"\n"


def conversation_line(one: Archived) -> bytes:
    """A line of its own, with its end."""
    return msgspec.json.encode(_line(one)) + b"\n"


def whole_json(found: Iterable[Archived], now: float) -> bytes:
    """One object, indented."""
    whole = {**_head(now), "conversations": [_line(one) for one in found]}
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"


def _head(now: float) -> dict[str, object]:
    return {"format": FORMAT, "version": VERSION, "made_at": rfc3339(micros(now))}


def write_jsonl(found: Iterable[Archived], out: TextIO, *, now: float) -> int:
    """How many conversations were written."""
    out.write(head_line(now).decode())
    count = 0
    for one in found:
        out.write(conversation_line(one).decode())
        count += 1
    return count


def _line(one: Archived) -> dict[str, object]:
    return {
        "id": one.id,
        "namespace": one.namespace,
        "title": one.title,
        "created_at": rfc3339(one.created_at),
        "updated_at": rfc3339(one.updated_at),
        "tip_id": one.tip_id,
        "messages": [
            {
                "id": message.id,
                "parent_id": message.parent_id,
                "role": message.role,
                "text": message.text,
                "token_ids": message.token_ids,
                "status": message.status,
                "created_at": rfc3339(message.created_at),
            }
            for message in one.messages
        ],
    }


def is_jsonl(first_line: bytes) -> bool:
    return first_line.lstrip().startswith(b'{"format"')


def is_whole(beginning: bytes) -> bool:
    return re.match(rb'\s*\{\s+"format"\s*:', beginning) is not None


WRONG = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_whole(raw: bytes, wrong: list[str]) -> Iterator[Archived]:
    """`WrongFile` if it is none; ``wrong`` gets what is wrong with single conversations."""
    try:
        whole = msgspec.json.decode(raw, type=Whole)
    except WRONG as error:
        raise WrongFile(f"it is wrong: {error}") from None
    _check_head(Head(whole.format, whole.version, whole.made_at))
    yield from _each(enumerate(whole.conversations, 1), "conversation", wrong)


def read_jsonl(lines: Iterable[bytes], wrong: list[str]) -> Iterator[Archived]:
    """`WrongFile` if the first line is wrong; ``wrong`` gets what is wrong with others."""
    numbered = enumerate(lines, 1)
    _, first = next(numbered)
    try:
        _check_head(msgspec.json.decode(first, type=Head))
    except WRONG as error:
        raise WrongFile(f"line 1 is wrong: {error}") from None
    yield from _each(((number, line) for number, line in numbered if line.strip()), "line", wrong)


def _each(raws: Iterable[tuple[int, bytes | msgspec.Raw]], what: str, wrong: list[str]) -> Iterator[Archived]:
    for number, raw in raws:
        try:
            line = msgspec.json.decode(raw, type=ConversationLine)
        except WRONG as error:
            wrong.append(f"{what} {number} is wrong: {error}")
        else:
            yield _archived(line)


def _check_head(head: Head) -> None:
    if head.format != FORMAT:
        raise WrongFile(f"its format is {head.format}, not {FORMAT}")
    if head.version != VERSION:
        raise WrongFile(
            f"it is of version {head.version}, and this chatd reads version {VERSION}: upgrade chatd"
        )


def _archived(line: ConversationLine) -> Archived:
    return Archived(
        id=ConversationId(line.id),
        namespace=Namespace(line.namespace),
        title=line.title,
        created_at=_at(line.created_at),
        updated_at=_at(line.updated_at),
        tip_id=None if line.tip_id is None else MessageId(line.tip_id),
        messages=tuple(
            ArchivedMessage(
                id=MessageId(message.id),
                parent_id=None if message.parent_id is None else MessageId(message.parent_id),
                role=message.role,
                text=message.text,
                token_ids=None if message.token_ids is None else tuple(message.token_ids),
                status=message.status,
                created_at=_at(message.created_at),
            )
            for message in line.messages
        ),
    )


def _at(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)
