"""What the database knows of KV: what each response left, what has to go, what is pinned, why it missed."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, func, or_, select

from chatd.errors import Conflict, NotFound
from chatd.ids import ConversationId, MessageId, Namespace
from chatd.store.kv_paths import longest_paths
from chatd.store.records import CauseSum, KeptKV, Pin, Purge, RunId, StoredMessage, XrayRow
from chatd.store.rows import message_query, to_message
from chatd.store.schema import conversations, messages, pack_ids, pins, purges, responses, unpack_ids


def kept_on(conn: Connection, path: Sequence[StoredMessage]) -> list[KeptKV]:
    """The responses that wrote the answers of ``path`` or, if it ends in a question, answered that."""
    if not path:
        return []
    on_path = responses.c.message_id.in_([m.id for m in path if m.role == "assistant"])
    last = path[-1]
    under = on_path if last.role == "assistant" else or_(on_path, messages.c.parent_id == last.id)
    here = messages.c.conversation_id == last.conversation_id
    return [_to_kept(row) for row in conn.execute(_kept_query().where(here, under))]


def _kept_query() -> Select[Any]:
    r = responses.c
    query = select(
        r.message_id, messages.c.parent_id, r.prompt_len, r.kv_len, r.run_id, r.model, r.backend, r.formats
    )
    return query.join(messages, messages.c.id == r.message_id).order_by(r.seq)


def _to_kept(row: Row[Any]) -> KeptKV:
    return KeptKV(
        message_id=MessageId(row.message_id),
        parent_id=None if row.parent_id is None else MessageId(row.parent_id),
        prompt_len=row.prompt_len,
        kv_len=row.kv_len,
        run_id=RunId(row.run_id),
        model=row.model,
        backend=row.backend,
        formats=row.formats,
    )


def kv_paths(conn: Connection, conversation_id: str) -> list[tuple[int, ...]]:
    """The token ids of every path of a conversation that may have KV."""
    stored = message_query().where(messages.c.conversation_id == conversation_id)
    found = [to_message(row) for row in conn.execute(stored.order_by(messages.c.seq))]
    query = _kept_query().where(responses.c.conversation_id == conversation_id)
    return longest_paths(found, [_to_kept(row) for row in conn.execute(query)])


# --- what has to go ---


def note_purges(conn: Connection, ids: Sequence[str]) -> None:
    """Put the token ids of these conversations, which are about to be dropped, in the outbox."""
    whose = select(conversations.c.id, conversations.c.namespace).where(conversations.c.id.in_(ids))
    rows = [
        {"namespace": namespace, "token_ids": pack_ids(path)}
        for conversation_id, namespace in conn.execute(whose).all()
        for path in kv_paths(conn, conversation_id)
    ]
    if rows:
        conn.execute(purges.insert(), rows)


def find_purges(conn: Connection, at_most: int) -> list[Purge]:
    """The oldest first."""
    rows = conn.execute(select(purges).order_by(purges.c.seq).limit(at_most))
    return [Purge(row.seq, Namespace(row.namespace), unpack_ids(row.token_ids)) for row in rows]


def purged(conn: Connection, seqs: Sequence[int]) -> None:
    """These are gone from every tier."""
    conn.execute(delete(purges).where(purges.c.seq.in_(seqs)))


# --- pins ---


def add_pin(conn: Connection, pin: Pin) -> None:
    """Conflict if the name is taken."""
    if conn.execute(select(pins.c.name).where(pins.c.name == pin.name)).one_or_none() is not None:
        raise Conflict(f"There is a pin {pin.name} already: take another name, or unpin it first.")
    row = {"name": pin.name, "namespace": pin.namespace, "what": pin.what, "created_at": pin.created_at}
    conn.execute(pins.insert(), [row | {"token_ids": pack_ids(pin.token_ids)}])


def remove_pin(conn: Connection, name: str) -> None:
    """NotFound if there is none of that name."""
    if not conn.execute(delete(pins).where(pins.c.name == name)).rowcount:
        raise NotFound(f"There is no pin {name}; `chatd cache pins` lists them.")


def list_pins(conn: Connection) -> list[Pin]:
    """The oldest first."""
    rows = conn.execute(select(pins).order_by(pins.c.created_at, pins.c.name))
    return [
        Pin(row.name, Namespace(row.namespace), row.what, unpack_ids(row.token_ids), row.created_at)
        for row in rows
    ]


# --- reports ---


def cause_sums(conn: Connection) -> list[CauseSum]:
    """Over all admitted responses that have a cause, the commonest first."""
    count = func.count().label("responses")
    query = select(responses.c.cause, count, func.sum(responses.c.computed)).where(responses.c.cause != "")
    rows = conn.execute(query.group_by(responses.c.cause).order_by(count.desc(), responses.c.cause))
    return [CauseSum(*row) for row in rows]


def newest_xrays(conn: Connection, at_most: int) -> list[XrayRow]:
    """Of ended responses, the newest first."""
    r = responses.c
    query = select(r.gpu_hit, r.disk_hit, r.computed, r.ttft_ms, r.xray_json)
    query = query.where(r.xray_json != "", r.status != "open").order_by(r.seq.desc()).limit(at_most)
    return [XrayRow(*row) for row in conn.execute(query)]


def namespace_of(conn: Connection, conversation_id: ConversationId) -> Namespace:
    """Whose conversation that is, for the operator. NotFound if there is none."""
    query = select(conversations.c.namespace).where(conversations.c.id == conversation_id)
    namespace = conn.execute(query).scalar_one_or_none()
    if namespace is None:
        raise NotFound(f"There is no conversation {conversation_id}; `chatd report` lists them.")
    return Namespace(namespace)
