"""Rows to records, and the queries whose rows these are."""

from typing import Any

from sqlalchemy import Connection, Row, Select, select

from chatd.ids import ConversationId, MessageId, Namespace, ResponseId
from chatd.store.books import to_book
from chatd.store.prices import PriceBook
from chatd.store.records import (
    Conversation,
    Cost,
    MessageStatus,
    ResponseRecord,
    ResponseStatus,
    StoredMessage,
    Timings,
)
from chatd.store.schema import messages, price_books, responses, unpack_ids

TIMING_COLUMNS = ("queue_ms", "ttft_ms", "tpot_ms", "tokens_per_s", "total_ms")

COST_COLUMNS = ("gpu_hit_nano", "disk_hit_nano", "computed_nano", "output_nano", "without_cache_nano")


def response_query() -> Select[Any]:
    """Ledger rows, each with the prices it was opened under (`price_` before the bucket's name)."""
    prices = price_books.c
    return select(
        responses,
        prices.currency,
        prices.valid_from,
        prices.computed.label("price_computed"),
        prices.gpu_hit.label("price_gpu_hit"),
        prices.disk_hit.label("price_disk_hit"),
        prices.generated.label("price_generated"),
        prices.details.label("price_details"),
    ).join(price_books, prices.version == responses.c.price_version)


def message_query() -> Select[Any]:
    return select(messages)


def load_books(conn: Connection) -> dict[str, PriceBook]:
    """Every price book by its version."""
    books = [to_book(row._asdict()) for row in conn.execute(select(price_books))]
    return {book.version: book for book in books}


def to_conversation(row: Row[Any]) -> Conversation:
    return Conversation(
        id=ConversationId(row.id),
        title=row.title,
        hidden=bool(row.hidden),
        created_at=row.created_at,
        updated_at=row.updated_at,
        tip_id=None if row.tip_id is None else MessageId(row.tip_id),
        pinned=row.pinned_at is not None,
    )


def to_message(row: Row[Any]) -> StoredMessage:
    return StoredMessage(
        id=MessageId(row.id),
        conversation_id=ConversationId(row.conversation_id),
        parent_id=None if row.parent_id is None else MessageId(row.parent_id),
        role=row.role,
        text=row.text,
        token_ids=None if row.token_ids is None else unpack_ids(row.token_ids),
        status=MessageStatus(row.status),
        chain_key=row.chain_key,
        created_at=row.created_at,
    )


def to_price_book(row: Row[Any]) -> PriceBook:
    """The prices in a row of `response_query`."""
    return to_book(
        {
            "version": row.price_version,
            "currency": row.currency,
            "valid_from": row.valid_from,
            "computed": row.price_computed,
            "gpu_hit": row.price_gpu_hit,
            "disk_hit": row.price_disk_hit,
            "generated": row.price_generated,
            "details": row.price_details,
        }
    )


def to_cost(row: Row[Any]) -> Cost:
    """The stored bill of an ended row; of an open one, what it would be now."""
    if row.status == ResponseStatus.OPEN:
        return to_price_book(row).cost(
            gpu_hit=row.gpu_hit,
            disk_hit=row.disk_hit,
            computed=row.computed,
            output=row.output_tokens,
            model=row.model,
        )
    return Cost(
        currency=row.currency,
        price_version=row.price_version,
        **{name: getattr(row, name) for name in COST_COLUMNS},
    )


def to_response(row: Row[Any]) -> ResponseRecord:
    return ResponseRecord(
        id=ResponseId(row.id),
        namespace=Namespace(row.namespace),
        idempotency_key=row.idempotency_key,
        conversation_id=ConversationId(row.conversation_id),
        user_message_id=None if row.user_message_id is None else MessageId(row.user_message_id),
        message_id=MessageId(row.message_id),
        model=row.model,
        params_json=row.params_json,
        status=ResponseStatus(row.status),
        finish_reason=row.finish_reason,
        error_code=row.error_code,
        error=row.error,
        prompt_len=row.prompt_len,
        prompt_tokens=row.prompt_tokens,
        gpu_hit=row.gpu_hit,
        disk_hit=row.disk_hit,
        computed=row.computed,
        output_tokens=row.output_tokens,
        delivered=row.delivered,
        last_seq=row.last_seq,
        preemptions=row.preemptions,
        recomputed=row.recomputed,
        timings=Timings(**{name: getattr(row, name) for name in TIMING_COLUMNS}),
        cost=to_cost(row),
        opened_at=row.opened_at,
        admitted_at=row.admitted_at,
        ended_at=row.ended_at,
        history_len=row.history_len,
        kv_len=row.kv_len,
        cause=row.cause,
        backend=row.backend,
        formats=row.formats,
        xray_json=row.xray_json,
        branch_id=row.branch_id,
        key_id=row.key_id,
        acknowledged=row.acknowledged,
    )
