"""Completing the message of an answer when its response ends.

Until then the message holds what it held before and the new text is in the response's pieces; so
the text is written once, however long the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, func, select, update

from chatd.ids import ConversationId, MessageId, Namespace
from chatd.store.records import ROOT_KEY, MessageStatus, chain_key
from chatd.store.schema import conversations, messages, pack_ids, pieces


@dataclass(frozen=True, slots=True)
class Answer:
    """What a response that ends adds to its message; ``token_ids`` None if they are not known."""

    response_seq: int
    namespace: Namespace
    conversation_id: ConversationId
    message_id: MessageId
    status: MessageStatus
    token_ids: tuple[int, ...] | None
    at: int


_parents = messages.alias("parents")

_GROW = update(messages).where(messages.c.id == bindparam("of_id"))
"""Sets the columns that its parameters name."""

_TOUCH = (
    update(conversations)
    .where(conversations.c.id == bindparam("of_id"))
    .values(
        updated_at=func.max(conversations.c.updated_at, bindparam("at")),
        # NULL, for one that is not hidden, stays NULL.
        expires_at=func.max(conversations.c.expires_at, bindparam("until")),
    )
)


def complete_answers(conn: Connection, answers: Sequence[Answer], *, hidden_ttl: int) -> None:
    """Gives each message its text, ids, status and chain key, and moves its conversation up."""
    conn.execute(_GROW, [_grown(conn, answer) for answer in answers])
    touched = [
        {"of_id": answer.conversation_id, "at": answer.at, "until": answer.at + hidden_ttl}
        for answer in answers
    ]
    conn.execute(_TOUCH, touched)


def stored_text(conn: Connection, response_seq: int) -> str:
    """All text that a response has stored so far."""
    query = select(pieces.c.text).where(pieces.c.response_seq == response_seq)
    return "".join(conn.execute(query.order_by(pieces.c.from_seq)).scalars())


def _grown(conn: Connection, answer: Answer) -> dict[str, object]:
    above = _parents.c.id == messages.c.parent_id
    query = select(messages.c.text, messages.c.token_ids, _parents.c.chain_key.label("parent_key"))
    query = query.outerjoin_from(messages, _parents, above)
    base = conn.execute(query.where(messages.c.id == answer.message_id)).one()
    text = base.text + stored_text(conn, answer.response_seq)
    known = base.token_ids is not None and answer.token_ids is not None
    return {
        "of_id": answer.message_id,
        "text": text,
        "token_ids": base.token_ids + pack_ids(answer.token_ids or ()) if known else None,
        "status": answer.status,
        "chain_key": chain_key(answer.namespace, base.parent_key or ROOT_KEY, "assistant", text),
    }
