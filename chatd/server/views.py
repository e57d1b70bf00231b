"""Records of the store as the wire and the HTTP API show them. Pure."""

from typing import assert_never, cast

import msgspec
from msgspec import UNSET, Struct, structs

from chatd import errors
from chatd.server import protocol as wire
from chatd.server.protocol_tables import error_classes
from chatd.server.xray import Xray, for_client, from_json
from chatd.store.records import (
    Conversation,
    ConversationView,
    MessageView,
    ResponseRecord,
    ResponseStatus,
    rfc3339,
)

_RETRYABLE = {error.code: error.retryable for error in error_classes()} | {"server_died": True}


def ending_of(record: ResponseRecord) -> wire.AnyEnding:
    """The ending of a response that has one. Raises ValueError for an open one."""
    match record.status:
        case ResponseStatus.COMPLETED:
            kind: type[wire.AnyEnding] = wire.ResponseCompleted
        case ResponseStatus.INCOMPLETE:
            kind = wire.ResponseIncomplete
        case ResponseStatus.CANCELLED:
            kind = wire.ResponseCancelled
        case ResponseStatus.FAILED:
            kind = wire.ResponseFailed
        case ResponseStatus.OPEN:
            raise ValueError(f"response {record.id} has not ended")
        case _:
            assert_never(record.status)
    return kind(
        response_id=record.id,
        conversation_id=record.conversation_id,
        message_id=record.message_id,
        finish_reason=cast(wire.FinishReason, record.finish_reason),
        last_seq=record.last_seq,
        usage=usage_of(record),
        timings=timings_of(record),
        cost=cost_of(record),
        xray=xray_of(record) or UNSET,
        error=failure_of(record) or UNSET,
    )


def failure_of(record: ResponseRecord) -> wire.Failure | None:
    """Why it failed, for one that did."""
    if record.status is not ResponseStatus.FAILED:
        return None
    return wire.Failure(record.error_code, record.error, _RETRYABLE.get(record.error_code, False))


def usage_of(record: ResponseRecord) -> wire.Usage:
    return wire.Usage(
        prompt_tokens=record.prompt_tokens,
        gpu_hit=record.gpu_hit,
        disk_hit=record.disk_hit,
        computed=record.computed,
        output_tokens=record.output_tokens,
        total_tokens=record.prompt_tokens + record.output_tokens,
    )


def timings_of(record: ResponseRecord) -> wire.Timings:
    t = record.timings
    return wire.Timings(t.queue_ms, t.ttft_ms, t.tpot_ms, t.tokens_per_s, t.total_ms)


def cost_of(record: ResponseRecord) -> wire.Cost:
    cost = record.cost
    return wire.Cost(
        currency=cost.currency,
        total_nano=cost.total_nano,
        without_cache_nano=cost.without_cache_nano,
        saved_nano=cost.saved_nano,
        prompt_nano=cost.prompt_nano,
        output_nano=cost.output_nano,
        price_version=cost.price_version,
    )


def xray_of(record: ResponseRecord) -> wire.Xray | None:
    """As the client may see it. None for a prompt that was never looked at."""
    xray = from_json(record.xray_json)
    if xray is None:
        return None
    return wire_xray(xray, (record.gpu_hit, record.disk_hit, record.computed), record.timings.ttft_ms)


def wire_xray(xray: Xray, buckets: tuple[int, int, int], ttft_ms: float | None) -> wire.Xray:
    """``buckets``: tokens from memory, from disk, computed."""
    gpu_hit, disk_hit, computed = buckets
    first = gpu_hit + disk_hit
    return wire.Xray(
        cause=cast(wire.Cause, for_client(xray.cause).value),
        message=xray.message,
        first_computed=first,
        history_len=xray.history_len,
        sources=_sources(gpu_hit, first, first + computed),
        disk=wire.DiskLook(
            outcome=xray.outcome.value,
            found=xray.found,
            load_ms=xray.load_ms,
            compute_ms=xray.compute_ms,
            restore_ms=xray.restore_ms,
            choice=xray.choice,
        ),
        predicted=_predicted(xray, buckets, ttft_ms),
    )


def _sources(gpu_end: int, disk_end: int, end: int) -> tuple[wire.Source, ...]:
    stretches = (
        wire.Source("gpu", 0, gpu_end),
        wire.Source("disk", gpu_end, disk_end),
        wire.Source("computed", disk_end, end),
    )
    return tuple(one for one in stretches if one.end > one.start)


def _predicted(xray: Xray, buckets: tuple[int, int, int], ttft_ms: float | None) -> wire.Predicted | None:
    predicted = xray.predicted
    if predicted is None:
        return None
    expected = (predicted.gpu_hit, predicted.disk_hit, predicted.computed)
    error = None if not ttft_ms else (predicted.ttft_ms - ttft_ms) / ttft_ms
    return wire.Predicted(*expected, ttft_ms=predicted.ttft_ms, exact=expected == buckets, ttft_error=error)


class History(Struct, frozen=True):
    """What became of the earlier turns in a response's prompt; fields as in `wire.ResponseCreated`."""

    dropped_turns: int = 0
    miss: str = ""


def history_of(record: ResponseRecord) -> History:
    """As it was noted when the prompt was made."""
    return msgspec.json.decode(record.params_json, type=History)


class ConversationBrief(Struct, frozen=True):
    """One line of the list. Times are RFC 3339, UTC."""

    id: str
    title: str
    created_at: str
    updated_at: str
    tip_id: str | None
    pinned: bool


class MessageResponse(Struct, frozen=True):
    """A response that wrote (a part of) a message."""

    response_id: str
    status: str
    finish_reason: str | None
    usage: wire.Usage
    timings: wire.Timings
    cost: wire.Cost
    xray: wire.Xray | None
    error: wire.Failure | None
    dropped_turns: int
    miss: str


class MessageFull(Struct, frozen=True):
    id: str
    parent_id: str | None
    role: str
    text: str
    status: str
    created_at: str
    responses: list[MessageResponse]


class ConversationFull(ConversationBrief, frozen=True):
    """A conversation with its whole tree, parents before children."""

    messages: list[MessageFull]


class ResponseFull(MessageResponse, frozen=True):
    """One response by itself. ``text`` is not here: it is its message's, and its stream's.

    Of its output tokens ``sent_tokens`` went out to a reader, and ``acknowledged_tokens`` arrived, as far as
    a client has said so over the WebSocket.
    """

    conversation_id: str
    user_message_id: str | None
    message_id: str
    model: str
    last_seq: int
    sent_tokens: int
    acknowledged_tokens: int
    backend: str
    formats: str
    created_at: str
    ended_at: str | None


def brief_of(conversation: Conversation) -> ConversationBrief:
    return ConversationBrief(
        id=conversation.id,
        title=conversation.title,
        created_at=rfc3339(conversation.created_at),
        updated_at=rfc3339(conversation.updated_at),
        tip_id=conversation.tip_id,
        pinned=conversation.pinned,
    )


def update_of(conversation: Conversation, *, system_changed: bool = False) -> wire.ConversationUpdated:
    return wire.ConversationUpdated(
        conversation_id=conversation.id,
        title=conversation.title,
        tip_id=conversation.tip_id,
        updated_at=rfc3339(conversation.updated_at),
        pinned=conversation.pinned,
        system_changed=system_changed,
    )


def conversation_of(view: ConversationView) -> ConversationFull:
    brief = structs.asdict(brief_of(view.conversation))
    return ConversationFull(**brief, messages=[_message_of(one) for one in view.messages])


def _message_of(view: MessageView) -> MessageFull:
    message = view.message
    return MessageFull(
        id=message.id,
        parent_id=message.parent_id,
        role=message.role,
        text=message.text,
        status=message.status,
        created_at=rfc3339(message.created_at),
        responses=[_message_response_of(record) for record in view.responses],
    )


def _message_response_of(record: ResponseRecord) -> MessageResponse:
    history = history_of(record)
    return MessageResponse(
        response_id=record.id,
        status=record.status,
        finish_reason=record.finish_reason,
        usage=usage_of(record),
        timings=timings_of(record),
        cost=cost_of(record),
        xray=xray_of(record),
        error=failure_of(record),
        dropped_turns=history.dropped_turns,
        miss=history.miss,
    )


def response_of(record: ResponseRecord) -> ResponseFull:
    return ResponseFull(
        **structs.asdict(_message_response_of(record)),
        conversation_id=record.conversation_id,
        user_message_id=record.user_message_id,
        message_id=record.message_id,
        model=record.model,
        last_seq=record.last_seq,
        sent_tokens=record.delivered,
        acknowledged_tokens=record.acknowledged,
        backend=record.backend,
        formats=record.formats,
        created_at=rfc3339(record.opened_at),
        ended_at=None if record.ended_at is None else rfc3339(record.ended_at),
    )


def error_of(error: errors.ChatdError) -> dict[str, dict[str, object]]:
    """The body of a native HTTP error."""
    return {
        "error": {
            "code": error.code,
            "message": error.message,
            "retryable": error.retryable,
            "param": error.param,
        }
    }
