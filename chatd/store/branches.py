"""Branches: the stretches of a conversation's tree that reports tell apart.

The first message under another goes on with its branch; each later one (an edit, another answer) begins a
branch of its own. So every message is on exactly one branch, and the turns of all branches are those
of the session. A branch is named by the message that began it, the first one by the conversation. As
messages are only ever added, a message's branch never changes.
"""

from collections.abc import Iterable, Mapping

from sqlalchemy import Connection, exists, func, select

from chatd.ids import ConversationId, MessageId
from chatd.store.schema import messages, responses


def branches_of(session: str, tree: Iterable[tuple[str, str | None]]) -> Mapping[str, str]:
    """The branch of each message of a ``tree`` of (id, parent's id), in the order of their storing."""
    found: dict[str, str] = {}
    seen: set[str | None] = set()
    for message_id, parent_id in tree:
        above = session if parent_id is None else found.get(parent_id, session)
        found[message_id] = message_id if parent_id in seen else above
        seen.add(parent_id)
    return found


def branch_under(
    conn: Connection, conversation_id: ConversationId, parent_id: MessageId | None, new_id: MessageId
) -> str:
    """The branch of message ``new_id``, which is about to be stored under ``parent_id``."""
    same = messages.c.parent_id.is_(None) if parent_id is None else messages.c.parent_id == parent_id
    siblings = exists().where(messages.c.conversation_id == conversation_id, same)
    if conn.execute(select(siblings)).scalar_one():
        return new_id
    return conversation_id if parent_id is None else branch_of(conn, conversation_id, parent_id)


def branch_of(conn: Connection, conversation_id: ConversationId, message_id: MessageId) -> str:
    """The branch of a stored message: what its response says, or else (it was imported) the tree."""
    wrote = select(responses.c.branch_id).where(responses.c.message_id == message_id)
    known = conn.execute(wrote.order_by(responses.c.seq).limit(1)).scalar_one_or_none()
    if known is not None:
        return str(known)
    return _walked(conn, conversation_id, message_id)


def _walked(conn: Connection, conversation_id: ConversationId, message_id: MessageId) -> str:
    """The nearest message, upwards, that is not the first below its parent."""
    older = messages.alias("older")
    is_later = exists().where(
        older.c.conversation_id == messages.c.conversation_id,
        older.c.parent_id.is_not_distinct_from(messages.c.parent_id),
        older.c.seq < messages.c.seq,
    )
    path = select(messages).where(messages.c.id == message_id).cte("path", recursive=True)
    path = path.union_all(select(messages).join(path, messages.c.id == path.c.parent_id))
    query = select(func.max(messages.c.seq)).join(path, path.c.seq == messages.c.seq).where(is_later)
    began = select(messages.c.id).where(messages.c.seq == query.scalar_subquery())
    return conn.execute(began).scalar_one_or_none() or conversation_id
