"""Notes on responses: what an API keeps of a request besides its messages.

A note lives as long as the conversation of its response. A response can be withdrawn: then it cannot be asked
for through that API any more, whatever else still hangs on its messages.
"""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, exists, select

from chatd.errors import NotFound
from chatd.ids import ConversationId, Namespace, ResponseId
from chatd.store.schema import conversations, response_notes, responses


@dataclass(frozen=True, slots=True)
class Note:
    """``text`` is as it was given, "" if none was."""

    text: str
    withdrawn: bool


def add_note(
    conn: Connection,
    response_id: ResponseId,
    conversation_id: ConversationId,
    text: str,
    *,
    withdrawn: bool = False,
) -> None:
    row = {"response_id": response_id, "conversation_id": conversation_id, "note": text}
    conn.execute(response_notes.insert(), [row | {"withdrawn": int(withdrawn)}])


def find_note(conn: Connection, namespace: Namespace, response_id: ResponseId) -> Note:
    """NotFound for an unknown or foreign response, and for one whose conversation was deleted."""
    _conversation_of(conn, namespace, response_id)
    query = select(response_notes).where(response_notes.c.response_id == response_id)
    row = conn.execute(query).one_or_none()
    return Note("", False) if row is None else Note(row.note, bool(row.withdrawn))


def withdraw(conn: Connection, namespace: Namespace, response_id: ResponseId) -> ConversationId | None:
    """Idempotent. The conversation, if it is a hidden one of which nothing can be asked for any more."""
    conversation_id = _conversation_of(conn, namespace, response_id)
    mine = response_notes.c.response_id == response_id
    changed = conn.execute(response_notes.update().where(mine).values(withdrawn=1))
    if not changed.rowcount:
        row = {"response_id": response_id, "conversation_id": conversation_id, "note": "", "withdrawn": 1}
        conn.execute(response_notes.insert(), [row])
    return conversation_id if is_withdrawn(conn, conversation_id) else None


def is_withdrawn(conn: Connection, conversation_id: ConversationId) -> bool:
    """It is hidden, and all of its responses are withdrawn: nobody may see it."""
    hidden = select(conversations.c.hidden).where(conversations.c.id == conversation_id)
    if not conn.execute(hidden).scalar_one_or_none():
        return False
    return not conn.execute(select(has_visible(conversation_id))).scalar_one()


def has_visible(conversation_id: object) -> ColumnElement[bool]:
    """Responses that are not withdrawn."""
    gone = and_(response_notes.c.response_id == responses.c.id, response_notes.c.withdrawn == 1)
    return exists().where(responses.c.conversation_id == conversation_id, ~exists().where(gone))


def _conversation_of(conn: Connection, namespace: Namespace, response_id: ResponseId) -> ConversationId:
    query = (
        select(responses.c.conversation_id)
        .join(conversations, conversations.c.id == responses.c.conversation_id)
        .where(responses.c.id == response_id, responses.c.namespace == namespace)
    )
    found = conn.execute(query).scalar_one_or_none()
    if found is None:
        raise NotFound("there is no such response, or its conversation was deleted")
    return ConversationId(found)
