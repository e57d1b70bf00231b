"""The conversations of a namespace, as functions of a connection.

A conversation is a tree of messages. Messages are only ever added (the one that is being answered grows,
and `chatd.store.system_prompts` keeps to it), so the order of ``seq`` puts every parent before its children.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, exists, func, or_, select, update

from chatd.errors import Conflict, InvalidParameter, NotFound
from chatd.ids import ConversationId, MessageId, Namespace
from chatd.store.kv import note_purges
from chatd.store.notes import has_visible, is_withdrawn
from chatd.store.records import (
    ROOT_KEY,
    Conversation,
    ConversationPage,
    ConversationView,
    MessageStatus,
    MessageView,
    ResponseRecord,
    StoredMessage,
    chain_key,
)
from chatd.store.rows import message_query, response_query, to_conversation, to_message, to_response
from chatd.store.schema import conversations, messages, pack_ids, pieces, responses

MAX_PAGE = 200
MAX_TITLE_LEN = 200


def find_conversation(
    conn: Connection, namespace: Namespace, conversation_id: ConversationId
) -> Conversation:
    """NotFound for an unknown id and for somebody else's."""
    query = select(conversations).where(
        conversations.c.id == conversation_id, conversations.c.namespace == namespace
    )
    row = conn.execute(query).one_or_none()
    if row is None:
        raise NotFound("there is no such conversation")
    return to_conversation(row)


def create_conversation(
    conn: Connection,
    namespace: Namespace,
    title: str,
    system: str,
    *,
    new_id: Callable[[], str],
    now: int,
) -> Conversation:
    """With a ``system`` prompt, that is the root message and the tip."""
    conversation_id = insert_conversation(conn, namespace, new_id(), title=_title(title), now=now)
    if system:
        message_id = MessageId(new_id())
        row = message_row(
            message_id,
            conversation_id,
            parent_id=None,
            role="system",
            text=system,
            token_ids=(),
            key=chain_key(namespace, ROOT_KEY, "system", system),
            now=now,
        )
        conn.execute(messages.insert(), [row])
        touch(conn, conversation_id, now=now, tip_id=message_id)
    return find_conversation(conn, namespace, conversation_id)


def insert_conversation(
    conn: Connection,
    namespace: Namespace,
    new_id: str,
    *,
    title: str,
    now: int,
    expires_at: int | None = None,
) -> ConversationId:
    """A row without messages; hidden if it expires."""
    row = {
        "id": new_id,
        "namespace": namespace,
        "title": title,
        "hidden": int(expires_at is not None),
        "created_at": now,
        "updated_at": now,
        "expires_at": expires_at,
    }
    conn.execute(conversations.insert(), [row])
    return ConversationId(new_id)


def message_row(
    message_id: MessageId,
    conversation_id: ConversationId,
    *,
    parent_id: MessageId | None,
    role: str,
    text: str,
    token_ids: Sequence[int] | None,
    key: bytes | None,
    now: int,
) -> dict[str, object]:
    """A row to insert. Without a ``key`` it is an assistant message that is being written."""
    return {
        "id": message_id,
        "conversation_id": conversation_id,
        "parent_id": parent_id,
        "role": role,
        "text": text,
        "token_ids": None if token_ids is None else pack_ids(token_ids),
        "status": MessageStatus.STREAMING if key is None else MessageStatus.COMPLETED,
        "chain_key": key,
        "created_at": now,
    }


def touch(conn: Connection, conversation_id: ConversationId, *, now: int, **values: object) -> None:
    """Moves a conversation to the top of the list, and sets ``values``."""
    statement = update(conversations).where(conversations.c.id == conversation_id)
    conn.execute(statement.values(updated_at=now, **values))


def list_conversations(
    conn: Connection, namespace: Namespace, limit: int, before: str | None, *, pinned: bool = False
) -> ConversationPage:
    """By keyset, so a page costs the same however far down it is. Hidden ones are left out.

    ``pinned``: only those that are.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidParameter(f"limit must be between 1 and {MAX_PAGE}", param="limit")
    table = conversations.c
    query = select(conversations).where(table.namespace == namespace, table.hidden == 0)
    if pinned:
        query = query.where(table.pinned_at.is_not(None))
    if before is not None:
        query = query.where(_older_than(before))
    query = query.order_by(table.updated_at.desc(), table.seq.desc()).limit(limit + 1)
    rows = conn.execute(query).all()
    last = rows[limit - 1] if len(rows) > limit else None
    return ConversationPage(
        conversations=tuple(to_conversation(row) for row in rows[:limit]),
        next=None if last is None else f"{last.updated_at}.{last.seq}",
    )


def newest_of(
    conn: Connection, namespace: Namespace | None, at_most: int
) -> list[tuple[Namespace, Conversation]]:
    """Those used last, hidden ones too, of one namespace or of all."""
    table = conversations.c
    query = select(conversations).order_by(table.updated_at.desc(), table.seq.desc()).limit(at_most)
    if namespace is not None:
        query = query.where(table.namespace == namespace)
    return [(Namespace(row.namespace), to_conversation(row)) for row in conn.execute(query)]


def _older_than(cursor: str) -> ColumnElement[bool]:
    at, _, seq = cursor.partition(".")
    if not (at.isdecimal() and seq.isdecimal() and len(cursor) < 40):
        raise InvalidParameter("before must be the `next` of an earlier page", param="before")
    table = conversations.c
    return or_(table.updated_at < int(at), and_(table.updated_at == int(at), table.seq < int(seq)))


def view_conversation(
    conn: Connection, namespace: Namespace, conversation_id: ConversationId
) -> ConversationView:
    conversation = find_conversation(conn, namespace, conversation_id)
    if is_withdrawn(conn, conversation_id):
        raise NotFound("there is no such conversation")
    wrote: dict[MessageId, list[ResponseRecord]] = {}
    query = response_query().where(responses.c.conversation_id == conversation_id)
    for row in conn.execute(query.order_by(responses.c.seq)):
        wrote.setdefault(MessageId(row.message_id), []).append(to_response(row))
    stored = message_query().where(messages.c.conversation_id == conversation_id)
    found = [to_message(row) for row in conn.execute(stored.order_by(messages.c.seq))]
    views = tuple(MessageView(message, tuple(wrote.get(message.id, ()))) for message in found)
    return ConversationView(conversation, views)


def rename(
    conn: Connection, namespace: Namespace, conversation_id: ConversationId, title: str, *, now: int
) -> Conversation:
    find_conversation(conn, namespace, conversation_id)
    touch(conn, conversation_id, now=now, title=_title(title))
    return find_conversation(conn, namespace, conversation_id)


def pin(
    conn: Connection, namespace: Namespace, conversation_id: ConversationId, *, pinned: bool, now: int
) -> Conversation:
    """Its place among the others stays what it is. NotFound for unknown or foreign."""
    find_conversation(conn, namespace, conversation_id)
    mine = update(conversations).where(conversations.c.id == conversation_id)
    conn.execute(mine.values(pinned_at=now if pinned else None))
    return find_conversation(conn, namespace, conversation_id)


def _title(title: str) -> str:
    if len(title) > MAX_TITLE_LEN:
        raise InvalidParameter(f"a title has at most {MAX_TITLE_LEN} characters", param="title")
    return title


def delete_conversation(conn: Connection, namespace: Namespace, conversation_id: ConversationId) -> None:
    """Its messages and pieces go with it; what they cost stays in the ledger."""
    find_conversation(conn, namespace, conversation_id)
    if conn.execute(select(is_answering(conversation_id))).scalar_one():
        raise Conflict("an answer is still being written here: stop it first")
    drop_conversations(conn, [conversation_id])


def is_answering(conversation_id: object) -> ColumnElement[bool]:
    """Whether a response is being written there."""
    is_open = and_(responses.c.conversation_id == conversation_id, responses.c.status == "open")
    return exists().where(is_open)


def drop_conversations(conn: Connection, ids: Sequence[str]) -> None:
    """And note which KV has to go, in the same transaction."""
    note_purges(conn, ids)
    theirs = select(responses.c.seq).where(responses.c.conversation_id.in_(ids))
    conn.execute(delete(pieces).where(pieces.c.response_seq.in_(theirs)))
    conn.execute(delete(conversations).where(conversations.c.id.in_(ids)))


def prune_expired(conn: Connection, *, now: int, at_most: int) -> int:
    """Drops hidden conversations that have expired and have no open response; how many."""
    table = conversations.c
    query = select(table.id).where(table.hidden == 1, table.expires_at <= now, ~is_answering(table.id))
    ids = conn.execute(query.order_by(table.expires_at).limit(at_most)).scalars().all()
    drop_conversations(conn, ids)
    return len(ids)


def prune_withdrawn(conn: Connection, *, before: int, at_most: int) -> int:
    """Drops hidden conversations of which all was withdrawn, last used before then; how many."""
    table = conversations.c
    some = exists().where(responses.c.conversation_id == table.id)
    query = select(table.id).where(table.hidden == 1, table.updated_at <= before, some)
    query = query.where(~is_answering(table.id), ~has_visible(table.id))
    ids = conn.execute(query.order_by(table.updated_at).limit(at_most)).scalars().all()
    drop_conversations(conn, ids)
    return len(ids)


def prune_unused(conn: Connection, *, before: int, at_most: int) -> int:
    """Drops conversations last used before then, the longest unused first; how many."""
    table = conversations.c
    query = select(table.id).where(table.updated_at < before, ~is_answering(table.id))
    ids = conn.execute(query.order_by(table.updated_at).limit(at_most)).scalars().all()
    drop_conversations(conn, ids)
    return len(ids)


def prune_surplus(conn: Connection, namespace: Namespace, *, keep: int, at_most: int) -> int:
    """Drops the hidden conversations longest unused beyond the newest ``keep``; how many."""
    table = conversations.c
    mine = and_(table.namespace == namespace, table.hidden == 1)
    surplus = conn.execute(select(func.count()).where(mine)).scalar_one() - keep
    if surplus <= 0:
        return 0
    query = select(table.id).where(mine, ~is_answering(table.id))
    query = query.order_by(table.updated_at, table.seq).limit(min(surplus, at_most))
    ids = conn.execute(query).scalars().all()
    drop_conversations(conn, ids)
    return len(ids)


def find_message(conn: Connection, namespace: Namespace, message_id: MessageId) -> StoredMessage:
    """NotFound for an unknown id and for somebody else's."""
    return to_message(_message_row(conn, namespace, message_id))


def _message_row(conn: Connection, namespace: Namespace, message_id: MessageId) -> Row[Any]:
    query = message_query().join(
        conversations,
        and_(conversations.c.id == messages.c.conversation_id, conversations.c.namespace == namespace),
    )
    row = conn.execute(query.where(messages.c.id == message_id)).one_or_none()
    if row is None:
        raise NotFound("there is no such message")
    return row


def path_to(conn: Connection, namespace: Namespace, message_id: MessageId) -> list[StoredMessage]:
    """Root first, the message itself last."""
    _message_row(conn, namespace, message_id)
    path = select(messages).where(messages.c.id == message_id).cte("path", recursive=True)
    path = path.union_all(select(messages).join(path, messages.c.id == path.c.parent_id))
    return [to_message(row) for row in conn.execute(select(path).order_by(path.c.seq))]


def find_chain(
    conn: Connection, namespace: Namespace, keys: Sequence[bytes]
) -> tuple[int, StoredMessage] | None:
    """The match deepest in ``keys``, with its index; the newest of equal ones. Hidden only."""
    depth = {key: index for index, key in enumerate(keys)}
    is_mine = and_(
        conversations.c.id == messages.c.conversation_id,
        conversations.c.namespace == namespace,
        conversations.c.hidden == 1,
    )
    for end in range(len(keys), 0, -_CHAIN_STEP):
        some = keys[max(0, end - _CHAIN_STEP) : end]
        query = message_query().join(conversations, is_mine).where(messages.c.chain_key.in_(some))
        rows = conn.execute(query).all()
        if rows:
            best = max(rows, key=lambda row: (depth[row.chain_key], row.seq))
            return depth[best.chain_key], to_message(best)
    return None


_CHAIN_STEP = 64
"""Keys in one look-up, from the deep end: the match is nearly always among the last few."""
