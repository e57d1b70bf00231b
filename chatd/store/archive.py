"""Conversations taken out whole and put in whole. The ledger stays where it is: it is this folder's.

What is put in goes in in one transaction, each conversation whole or, by name, not at all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, select

from chatd.errors import NotFound
from chatd.ids import ConversationId, MessageId, Namespace
from chatd.store.answers import stored_text
from chatd.store.conversations import MAX_TITLE_LEN
from chatd.store.records import ROOT_KEY, MessageStatus, chain_key
from chatd.store.schema import conversations, messages, pack_ids, responses, unpack_ids

ROLES = ("system", "user", "assistant")
_STEP = 500


class WrongArchive(ValueError):
    """What cannot be right about a conversation that is to be stored."""


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """``token_ids`` None: not known, the text is encoded when the conversation goes on."""

    id: MessageId
    parent_id: MessageId | None
    role: str
    text: str
    token_ids: tuple[int, ...] | None
    status: MessageStatus
    created_at: int


@dataclass(frozen=True, slots=True)
class Archived:
    """A conversation with its whole tree, parents before children. Times are Unix microseconds."""

    id: ConversationId
    namespace: Namespace
    title: str
    created_at: int
    updated_at: int
    tip_id: MessageId | None
    messages: tuple[ArchivedMessage, ...]

    def check(self) -> None:
        """WrongArchive if the database would not take it, or would be wrong with it."""
        known: set[str] = set()
        for message in self.messages:
            _check(message, known)
            known.add(message.id)
        if len(self.title) > MAX_TITLE_LEN:
            raise WrongArchive(f"its title is longer than {MAX_TITLE_LEN} characters")
        if self.messages and self.tip_id not in known:
            raise WrongArchive("its tip is not one of its messages")
        if not self.messages and self.tip_id is not None:
            raise WrongArchive("it has a tip and no messages")


def _check(message: ArchivedMessage, known: set[str]) -> None:
    if message.id in known:
        raise WrongArchive(f"message {message.id} is there twice")
    if message.parent_id is not None and message.parent_id not in known:
        raise WrongArchive(f"the parent of message {message.id} does not come before it")
    if message.role not in ROLES:
        raise WrongArchive(f"message {message.id} has the role {message.role}; there are: {', '.join(ROLES)}")
    if message.status is MessageStatus.STREAMING:
        raise WrongArchive(f"message {message.id} is still being written")
    if message.role != "assistant" and message.status is not MessageStatus.COMPLETED:
        raise WrongArchive(f"message {message.id} is {message.status}, which only an answer can be")
    try:
        message.text.encode()
        pack_ids(message.token_ids or ())
    except UnicodeEncodeError:
        raise WrongArchive(f"message {message.id} has text with half a character") from None
    except (OverflowError, TypeError):
        raise WrongArchive(f"message {message.id} has token ids that cannot be") from None


def archived(conn: Connection, ids: Sequence[ConversationId] | None = None) -> Iterator[Archived]:
    """The conversations of ``ids``, or all that are listed, the oldest first.

    An answer that is being written is taken with what is stored of it, as incomplete.
    """
    query = select(conversations).order_by(conversations.c.seq)
    query = (
        query.where(conversations.c.hidden == 0) if ids is None else query.where(conversations.c.id.in_(ids))
    )
    for row in conn.execute(query).all():
        stored = select(messages).where(messages.c.conversation_id == row.id).order_by(messages.c.seq)
        found = tuple(
            _running(conn, one) if one.status == MessageStatus.STREAMING else _message(one)
            for one in conn.execute(stored).all()
        )
        yield Archived(
            id=ConversationId(row.id),
            namespace=Namespace(row.namespace),
            title=row.title,
            created_at=row.created_at,
            updated_at=row.updated_at,
            tip_id=row.tip_id,
            messages=found,
        )


def listed_ids(conn: Connection, namespace: Namespace) -> list[ConversationId]:
    """All that the namespace sees in its list, the oldest first."""
    mine = select(conversations.c.id).where(
        conversations.c.namespace == namespace, conversations.c.hidden == 0
    )
    return [ConversationId(one) for one in conn.execute(mine.order_by(conversations.c.seq)).scalars()]


def own_ids(conn: Connection, namespace: Namespace, ids: Sequence[ConversationId]) -> set[ConversationId]:
    """Which of ``ids`` are conversations of the namespace."""
    mine = conversations.c.namespace == namespace
    return {ConversationId(one) for one in _there(conn, conversations.c.id, ids, mine)}


def find_conversation(conn: Connection, beginning: str) -> ConversationId:
    """The conversation whose id is this, or begins so. NotFound unless there is exactly one."""
    ids = conversations.c.id
    # The character after all that can be in an id: the range of ids with this beginning.
    query = select(ids).where(ids >= beginning, ids < beginning + "\U0010ffff").order_by(ids).limit(2)
    found = conn.execute(query).scalars().all()
    if not found:
        raise NotFound(f"There is no conversation {beginning}.")
    if len(found) > 1 and found[0] != beginning:
        raise NotFound(f"More than one conversation begins with {beginning}; give more of the id.")
    return ConversationId(found[0])


def _message(row: Row[Any]) -> ArchivedMessage:
    return ArchivedMessage(
        id=MessageId(row.id),
        parent_id=row.parent_id,
        role=row.role,
        text=row.text,
        token_ids=None if row.token_ids is None else unpack_ids(row.token_ids),
        status=MessageStatus(row.status),
        created_at=row.created_at,
    )


def _running(conn: Connection, row: Row[Any]) -> ArchivedMessage:
    writes = select(responses.c.seq).where(responses.c.message_id == row.id, responses.c.status == "open")
    seq = conn.execute(writes).scalar_one_or_none()
    more = "" if seq is None else stored_text(conn, seq)
    return ArchivedMessage(
        id=MessageId(row.id),
        parent_id=row.parent_id,
        role=row.role,
        text=row.text + more,
        token_ids=None,
        status=MessageStatus.INCOMPLETE,
        created_at=row.created_at,
    )


@dataclass(frozen=True, slots=True)
class Stored:
    """How many conversations were stored, how many were there already, and what of the rest is wrong."""

    added: int = 0
    known: int = 0
    messages: int = 0
    left_out: tuple[str, ...] = ()

    def __add__(self, other: "Stored") -> "Stored":
        sums = (self.added + other.added, self.known + other.known, self.messages + other.messages)
        return Stored(*sums, self.left_out + other.left_out)


def store_archived(conn: Connection, wanted: Sequence[Archived]) -> Stored:
    """Stores those whose id is not known yet and that can be; of the others nothing.

    One that is there twice is known the second time.
    """
    there = _there(conn, conversations.c.id, [one.id for one in wanted])
    fresh: dict[ConversationId, Archived] = {}
    for one in wanted:
        if one.id not in there:
            fresh.setdefault(one.id, one)
    taken = _there(conn, messages.c.id, [message.id for one in fresh.values() for message in one.messages])
    stored: list[Archived] = []
    left_out: list[str] = []
    for one in fresh.values():
        try:
            if elsewhere := taken & {message.id for message in one.messages}:
                raise WrongArchive(f"message {min(elsewhere)} is stored already, in another conversation")
            one.check()
        except WrongArchive as error:
            left_out.append(f"conversation {one.title or one.id} is wrong: {error}")
            continue
        _store(conn, one)
        stored.append(one)
        taken |= {message.id for message in one.messages}
    written = sum(len(one.messages) for one in stored)
    return Stored(len(stored), len(wanted) - len(fresh), written, tuple(left_out))


def _there(
    conn: Connection, column: ColumnElement[str], ids: Sequence[str], holds: ColumnElement[bool] | None = None
) -> set[str]:
    """Which of ``ids`` the column has, in a row for which it ``holds``."""
    found: set[str] = set()
    query = select(column) if holds is None else select(column).where(holds)
    for start in range(0, len(ids), _STEP):
        found.update(conn.execute(query.where(column.in_(ids[start : start + _STEP]))).scalars())
    return found


def _store(conn: Connection, one: Archived) -> None:
    row = {
        "id": one.id,
        "namespace": one.namespace,
        "title": one.title,
        "hidden": 0,
        "tip_id": one.tip_id,
        "created_at": one.created_at,
        "updated_at": one.updated_at,
        "expires_at": None,
    }
    conn.execute(conversations.insert(), [row])
    keys: dict[str | None, bytes] = {None: ROOT_KEY}
    rows = []
    for message in one.messages:
        key = chain_key(one.namespace, keys[message.parent_id], message.role, message.text)
        keys[message.id] = key
        rows.append(_row(one.id, message, key))
    if rows:
        conn.execute(messages.insert(), rows)


def _row(conversation_id: ConversationId, message: ArchivedMessage, key: bytes) -> dict[str, object]:
    return {
        "id": message.id,
        "conversation_id": conversation_id,
        "parent_id": message.parent_id,
        "role": message.role,
        "text": message.text,
        "token_ids": None if message.token_ids is None else pack_ids(message.token_ids),
        "status": message.status,
        "chain_key": key,
        "created_at": message.created_at,
    }
