"""Opening a response: its messages and its ledger row come into being in one transaction.

A row is opened at most once for an idempotency key of a namespace. An answer goes under a message that
is itself complete; a continued one is the last of its branch. So no message's text changes once
another hangs under it, but for the system prompt's.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlalchemy import Connection, exists, select, update

from chatd.errors import Conflict, NotFound
from chatd.ids import ConversationId, MessageId, Namespace
from chatd.store.branches import branch_of, branch_under
from chatd.store.conversations import (
    find_conversation,
    insert_conversation,
    message_row,
    prune_expired,
    prune_surplus,
    touch,
)
from chatd.store.errors import TipMoved
from chatd.store.key_limits import Charge, charge
from chatd.store.notes import add_note
from chatd.store.records import (
    ROOT_KEY,
    BegunResponse,
    Conversation,
    MessageStatus,
    NewResponse,
    ResponseStatus,
    RunId,
    StoredMessage,
    chain_key,
    title_of,
)
from chatd.store.rollups import see_session
from chatd.store.rows import message_query, response_query, to_message, to_response
from chatd.store.schema import messages, pack_ids, responses

PRUNE_STEP = 16
"""Most expired, and most surplus, hidden conversations dropped with a new one: keeps up, takes no time."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a row takes from the server: its run, its prices, the time, ids, the hidden histories' bounds."""

    run_id: RunId
    price_version: str
    now: int
    new_id: Callable[[], str]
    hidden_ttl: int
    hidden_keep: int
    charge: Charge | None = None
    """What the row may come to, if it is asked with a key."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an answer is written. ``base_len`` characters of its message were there before."""

    conversation_id: ConversationId
    user_message_id: MessageId | None
    message_id: MessageId
    base_len: int
    branch_id: str


def begin_response(conn: Connection, new: NewResponse, opening: Opening) -> BegunResponse:
    """Opens ``new``, or finds what its idempotency key opened before.

    Conflict: the key was used for another request, or the target is being written or has children.
    TipMoved: see `NewResponse`. NotFound: conversation, parent or target unknown or foreign. Without room
    under its key: what `charge` raises.
    """
    earlier = find_replay(conn, new.namespace, new.idempotency_key, new.request_hash)
    if earlier is not None:
        return earlier
    room = None if opening.charge is None else charge(conn, new.key_id, opening.charge, now=opening.now)
    conversation = _conversation(conn, new, opening)
    if new.continues is None:
        where = _append(conn, new, conversation, opening)
    else:
        where = _reopen(conn, new, conversation)
    _touch(conn, new, conversation, where.message_id, opening)
    _insert_row(conn, new, opening, where)
    if new.note or not new.stored:
        add_note(conn, new.response_id, conversation.id, new.note, withdrawn=not new.stored)
    see_session(conn, conversation.id, new.namespace, first_at=opening.now, at=opening.now)
    return replace(_begun(conn, new.response_id, replay=False), room=room)


def find_replay(
    conn: Connection, namespace: Namespace, idempotency_key: str | None, request_hash: bytes
) -> BegunResponse | None:
    """What the key opened before, if anything. Conflict: it was used for another request."""
    if idempotency_key is None:
        return None
    query = select(responses.c.id, responses.c.request_hash).where(
        responses.c.namespace == namespace, responses.c.idempotency_key == idempotency_key
    )
    row = conn.execute(query).one_or_none()
    if row is None:
        return None
    if row.request_hash != request_hash:
        raise Conflict(
            "this idempotency key was used for another request: make a new key",
            param="idempotency_key",
        )
    return _begun(conn, row.id, replay=True)


def _begun(conn: Connection, response_id: str, *, replay: bool) -> BegunResponse:
    record = to_response(conn.execute(response_query().where(responses.c.id == response_id)).one())
    return BegunResponse(
        response=record,
        conversation_id=record.conversation_id,
        user_message_id=record.user_message_id,
        message_id=record.message_id,
        replay=replay,
    )


def _conversation(conn: Connection, new: NewResponse, opening: Opening) -> Conversation:
    if new.conversation_id is None:
        if new.parent_id is not None or new.continues is not None:
            raise ValueError("a parent or a continued message needs its conversation")
        if new.hidden:
            prune_expired(conn, now=opening.now, at_most=PRUNE_STEP)
            prune_surplus(conn, new.namespace, keep=opening.hidden_keep - 1, at_most=PRUNE_STEP)
        expires_at = opening.now + opening.hidden_ttl if new.hidden else None
        conversation_id = insert_conversation(
            conn, new.namespace, opening.new_id(), title="", now=opening.now, expires_at=expires_at
        )
        return find_conversation(conn, new.namespace, conversation_id)
    conversation = find_conversation(conn, new.namespace, new.conversation_id)
    if new.under_tip and conversation.tip_id != new.parent_id:
        raise TipMoved("the conversation went on elsewhere meanwhile: try again")
    return conversation


def _append(conn: Connection, new: NewResponse, conversation: Conversation, opening: Opening) -> _Place:
    """Stores the new messages and the empty answer."""
    parent_id, key = new.parent_id, _parent_key(conn, new, conversation.id)
    rows = []
    for message in new.new_messages:
        key = _checked_key(new.namespace, key, message.role, message.text, message.chain_key)
        message_id = MessageId(opening.new_id())
        row = message_row(
            message_id,
            conversation.id,
            parent_id=parent_id,
            role=message.role,
            text=message.text,
            token_ids=message.token_ids,
            key=key,
            now=opening.now,
        )
        rows.append(row)
        parent_id = message_id
    if parent_id is None:
        raise ValueError("an answer needs a message above it")
    answer_id = MessageId(opening.new_id())
    answer = message_row(
        answer_id,
        conversation.id,
        parent_id=parent_id,
        role="assistant",
        text="",
        token_ids=(),
        key=None,
        now=opening.now,
    )
    first_id = MessageId(str(rows[0]["id"])) if rows else answer_id
    branch_id = branch_under(conn, conversation.id, new.parent_id, first_id)
    conn.execute(messages.insert(), [*rows, answer])
    return _Place(conversation.id, parent_id if rows else None, answer_id, 0, branch_id)


def _parent_key(conn: Connection, new: NewResponse, conversation_id: ConversationId) -> bytes:
    if new.parent_id is None:
        return ROOT_KEY
    parent = _message(conn, conversation_id, new.parent_id)
    if parent.chain_key is None:
        raise Conflict("the message above is still being written: wait for its end, or stop it")
    return parent.chain_key


def _checked_key(namespace: Namespace, parent: bytes, role: str, text: str, claimed: bytes) -> bytes:
    key = chain_key(namespace, parent, role, text)
    if key != claimed:
        raise TipMoved("what stands above the new message was changed meanwhile: try again")
    return key


def _reopen(conn: Connection, new: NewResponse, conversation: Conversation) -> _Place:
    if new.new_messages or new.continues is None:
        raise ValueError("a continued answer brings no new messages")
    target = _message(conn, conversation.id, new.continues)
    if target.role != "assistant":
        raise Conflict("only an answer can be continued", param="continue")
    if target.status is MessageStatus.STREAMING:
        raise Conflict("this answer is still being written: wait for its end, or stop it")
    children = exists().where(
        messages.c.conversation_id == conversation.id, messages.c.parent_id == target.id
    )
    if conn.execute(select(children)).scalar_one():
        raise Conflict("the conversation went on after this answer: it cannot be continued")
    values: dict[str, object] = {"status": MessageStatus.STREAMING, "chain_key": None}
    if new.continued_ids is not None:
        values["token_ids"] = pack_ids(new.continued_ids)
    conn.execute(update(messages).where(messages.c.id == target.id).values(values))
    branch_id = branch_of(conn, conversation.id, target.id)
    return _Place(conversation.id, None, target.id, len(target.text), branch_id)


def _message(conn: Connection, conversation_id: ConversationId, message_id: MessageId) -> StoredMessage:
    query = message_query().where(messages.c.id == message_id, messages.c.conversation_id == conversation_id)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise NotFound("there is no such message in this conversation")
    return to_message(row)


def _touch(
    conn: Connection,
    new: NewResponse,
    conversation: Conversation,
    message_id: MessageId,
    opening: Opening,
) -> None:
    values: dict[str, object] = {"tip_id": message_id}
    if not conversation.title:
        said = (message.text for message in new.new_messages if message.role == "user")
        values["title"] = title_of(next(said, ""))
    if conversation.hidden:
        values["expires_at"] = opening.now + opening.hidden_ttl
    touch(conn, conversation.id, now=opening.now, **values)


def _insert_row(conn: Connection, new: NewResponse, opening: Opening, where: _Place) -> None:
    zeros = dict.fromkeys(_COUNTS, 0)
    row: dict[str, object] = {
        "id": new.response_id,
        "run_id": opening.run_id,
        "namespace": new.namespace,
        "idempotency_key": new.idempotency_key,
        "request_hash": new.request_hash,
        "conversation_id": where.conversation_id,
        "user_message_id": where.user_message_id,
        "message_id": where.message_id,
        "base_len": where.base_len,
        "branch_id": where.branch_id,
        "key_id": new.key_id,
        "model": new.model,
        "params_json": new.params_json,
        "status": ResponseStatus.OPEN,
        "error_code": "",
        "error": "",
        "prompt_len": new.prompt_len,
        "opened_at": opening.now,
        "price_version": opening.price_version,
        "cause": "",
        "backend": new.backend,
        "formats": new.formats,
        "xray_json": "",
        "max_tokens": new.max_tokens,
        "reserved_nano": 0 if opening.charge is None else opening.charge.nano,
    }
    conn.execute(responses.insert(), [row | zeros])


_COUNTS = (
    "prompt_tokens",
    "gpu_hit",
    "disk_hit",
    "computed",
    "output_tokens",
    "delivered",
    "last_seq",
    "preemptions",
    "recomputed",
    "history_len",
    "kv_len",
    "acknowledged",
)
