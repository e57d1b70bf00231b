"""What a conversation's model is told first, changed while the conversation goes on.

The prompt is the root of the tree; a change rewrites it in place, so every branch goes on with it. Messages
below keep their ids: the prompt's planner sees that they no longer stand where they stood, and the next turn
computes the whole history. ``created_at`` of a system message is when it got its text.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, select, update

from chatd.errors import Conflict
from chatd.ids import ConversationId, MessageId, Namespace
from chatd.store.conversations import find_conversation, is_answering, message_row, touch
from chatd.store.records import ROOT_KEY, Conversation, chain_key
from chatd.store.schema import conversations, messages

_PLACEHOLDER = bytes(32)
"""A key until the chain is made anew, in the same transaction."""


def set_system(
    conn: Connection,
    namespace: Namespace,
    conversation_id: ConversationId,
    system: str,
    *,
    new_id: Callable[[], str],
    now: int,
) -> Conversation:
    """From the next turn on; "" takes the prompt away. The conversation as it is then.

    NotFound for unknown or foreign, Conflict while an answer is being written.
    """
    find_conversation(conn, namespace, conversation_id)
    roots = _roots(conn, conversation_id)
    prompts = [row for row in roots if row.role == "system"]
    if [row.text for row in prompts] == ([system] if system else []):
        return find_conversation(conn, namespace, conversation_id)
    if conn.execute(select(is_answering(conversation_id))).scalar_one():
        raise Conflict("an answer is still being written here: wait for its end, or stop it first")
    if not system:
        _take_away(conn, conversation_id, [row.id for row in prompts])
    elif prompts:
        mine = update(messages).where(messages.c.id.in_([row.id for row in prompts]))
        conn.execute(mine.values(text=system, created_at=now))
    else:
        _put_below(conn, conversation_id, MessageId(new_id()), system, has_messages=bool(roots), now=now)
    _chain(conn, namespace, conversation_id)
    touch(conn, conversation_id, now=now)
    return find_conversation(conn, namespace, conversation_id)


def _roots(conn: Connection, conversation_id: ConversationId) -> Sequence[Row[Any, Any, Any]]:
    query = select(messages.c.id, messages.c.role, messages.c.text)
    roots = query.where(messages.c.conversation_id == conversation_id, messages.c.parent_id.is_(None))
    return conn.execute(roots.order_by(messages.c.seq)).all()


def _take_away(conn: Connection, conversation_id: ConversationId, prompts: Sequence[str]) -> None:
    mine = messages.c.conversation_id == conversation_id
    conn.execute(update(messages).where(mine, messages.c.parent_id.in_(prompts)).values(parent_id=None))
    conn.execute(delete(messages).where(messages.c.id.in_(prompts)))
    left = select(messages.c.id).where(mine).order_by(messages.c.seq.desc()).limit(1)
    current = conn.execute(
        select(conversations.c.tip_id).where(conversations.c.id == conversation_id)
    ).scalar_one()
    if current in prompts:
        tip_id = conn.execute(left).scalar_one_or_none()
        conn.execute(update(conversations).where(conversations.c.id == conversation_id).values(tip_id=tip_id))


def _put_below(
    conn: Connection,
    conversation_id: ConversationId,
    message_id: MessageId,
    system: str,
    *,
    has_messages: bool,
    now: int,
) -> None:
    """Under the messages that were roots. A parent comes before its children: it gets the lowest ``seq``."""
    row = message_row(
        message_id,
        conversation_id,
        parent_id=None,
        role="system",
        text=system,
        token_ids=(),
        key=_PLACEHOLDER,
        now=now,
    )
    if has_messages:
        row["seq"] = conn.execute(select(func.min(messages.c.seq))).scalar_one() - 1
    conn.execute(messages.insert(), [row])
    above = messages.c.parent_id.is_(None) & (messages.c.id != message_id)
    mine = update(messages).where(messages.c.conversation_id == conversation_id, above)
    conn.execute(mine.values(parent_id=message_id))
    if not has_messages:
        conn.execute(
            update(conversations).where(conversations.c.id == conversation_id).values(tip_id=message_id)
        )


def _chain(conn: Connection, namespace: Namespace, conversation_id: ConversationId) -> None:
    """All look-up keys anew: each hangs on the one above."""
    query = select(messages.c.id, messages.c.parent_id, messages.c.role, messages.c.text)
    query = query.where(messages.c.conversation_id == conversation_id).order_by(messages.c.seq)
    keys: dict[str | None, bytes] = {None: ROOT_KEY}
    for row in conn.execute(query).all():
        keys[row.id] = chain_key(namespace, keys[row.parent_id], row.role, row.text)
    del keys[None]
    if keys:
        statement = update(messages).where(messages.c.id == bindparam("of_id"))
        conn.execute(statement, [{"of_id": of, "chain_key": key} for of, key in keys.items()])
