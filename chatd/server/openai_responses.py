"""/v1/responses: OpenAI's stateful API. A chain of responses is a path in a conversation's tree.

``previous_response_id`` hangs the new input under that response's message, whose ids are stored, so that the
next turn hits; two responses to one are two branches. ``instructions`` are one response's system message:
with others, or none, than before, the path begins anew. Without ``conversation`` the history is a hidden one,
which expires. With ``store: false`` a response cannot be asked for again, and a history of nothing else
expires soon after its last answer.
"""

import contextlib
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatd.errors import InvalidParameter, NotFound, Unsupported
from chatd.ids import ConversationId, MessageId, Namespace, ResponseId
from chatd.server import openai_response_types as wire
from chatd.server.commands import ChatTurn, CreateCommand
from chatd.server.http import json_response, read_body
from chatd.server.openai_answer import Answer, EventStream, key_of, nobody
from chatd.server.openai_errors import openai_errors
from chatd.server.openai_response_views import (
    ResponseVoice,
    Shown,
    instructions_of,
    item_of,
    object_of,
)
from chatd.server.openai_types import InputTokens, decode_accepted
from chatd.server.state import AppState
from chatd.server.visitors import visitor_of
from chatd.store.records import ResponseRecord, ResponseStatus

BACKGROUND_S = 24 * 3600.0
"""How long a response in the background may go on with nobody reading."""
MAX_ID_CHARS = 128
MAX_ITEMS = 100
GONE = "There is no such response (any more)."


@openai_errors
async def create(request: Request) -> Response:
    """An answer to new input, whole, as server-sent events, or in the background."""
    state: AppState = request.app.state.chatd
    account = visitor_of(request).namespace
    service = state.ready_service()
    asked = decode_accepted(await read_body(request), wire.ResponseRequest, wire.ACCEPTED)
    command, note = await _command(state, account, asked, key_of(request))
    answer = await Answer.ask(service, visitor_of(request), command)
    record = await state.store.response(account, answer.id)
    shown = Shown(record, note, asked.instructions or None)
    if asked.stream:
        return EventStream(answer, ResponseVoice(shown))
    if asked.background:
        return json_response(object_of(shown))
    found = await answer.whole(request.receive)
    if found is None:
        return nobody()
    text, record = found
    return json_response(object_of(shown.at(record, text)))


@openai_errors
async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of a response with this body would have."""
    state: AppState = request.app.state.chatd
    account = visitor_of(request).namespace
    service = state.ready_service()
    asked = decode_accepted(await read_body(request), wire.ResponseRequest, wire.ACCEPTED)
    state.looks.take(visitor_of(request), state.clock())
    command, _ = await _command(state, account, asked, None)
    return json_response(InputTokens(await service.count_tokens(account, command)))


@openai_errors
async def retrieve(request: Request) -> Response:
    """A response as it is now; with ``stream=true`` its events, after ``starting_after`` if that is given."""
    state: AppState = request.app.state.chatd
    account = visitor_of(request).namespace
    record, note = await _find(state, account, _id_of(request))
    shown = await _shown(state, account, record, note)
    if request.query_params.get("stream") != "true":
        return json_response(object_of(shown))
    after = _starting_after(request)
    seq = min(max(0, after - wire.FIRST_DELTA + 1), record.last_seq)
    answer = Answer(state.ready_service(), account, record.id, seq)
    earlier = shown.at(record, await _text_of(state, record.id, seq))
    return EventStream(answer, ResponseVoice(earlier, after))


@openai_errors
async def cancel(request: Request) -> Response:
    """Ends a response that runs; one that has ended stays as it is. Answers with what it came to."""
    state: AppState = request.app.state.chatd
    account = visitor_of(request).namespace
    service = state.ready_service()
    record, note = await _find(state, account, _id_of(request))
    if record.status is ResponseStatus.OPEN:
        await service.cancel(account, record.id)
        answer = Answer(service, account, record.id, record.last_seq)
        if (found := await answer.whole(request.receive)) is None:
            return nobody()
        record = found[1]
    return json_response(object_of(await _shown(state, account, record, note)))


@openai_errors
async def delete(request: Request) -> Response:
    """Nobody can ask for it or go on from it any more. When nothing of a hidden history can be asked for, its
    text and its KV go too; a conversation is deleted as a whole, under /api/v1/conversations."""
    state: AppState = request.app.state.chatd
    account = visitor_of(request).namespace
    service = state.ready_service()
    record, _ = await _find(state, account, _id_of(request))
    await service.cancel(account, record.id)
    left = await state.store.withdraw(account, record.id)
    if left is not None:
        with contextlib.suppress(NotFound):
            await service.delete(account, left)
    return json_response(wire.Deleted(record.id))


@openai_errors
async def input_items(request: Request) -> Response:
    """The messages that a response answers, the newest first unless ``order=asc``."""
    state: AppState = request.app.state.chatd
    account = visitor_of(request).namespace
    record, note = await _find(state, account, _id_of(request))
    path = await state.store.path_to(account, record.message_id)
    items = [item_of(message) for message in path[:-1]]
    if note.instructions:
        items = items[1:]
    return json_response(_page(request, items))


ROUTES = [
    Route("/responses", create, methods=["POST"]),
    Route("/responses/input_tokens", count_tokens, methods=["POST"]),
    Route("/responses/{id}", retrieve, methods=["GET"]),
    Route("/responses/{id}", delete, methods=["DELETE"]),
    Route("/responses/{id}/cancel", cancel, methods=["POST"]),
    Route("/responses/{id}/input_items", input_items, methods=["GET"]),
]
"""Under ``/v1``."""


# -- where an answer goes


async def _command(
    state: AppState, account: Namespace, asked: wire.ResponseRequest, key: str | None
) -> tuple[CreateCommand, wire.Note]:
    turns, instructions = asked.turns(), asked.instructions or None
    note = wire.Note(
        instructions=instructions is not None,
        previous_response_id=asked.previous_response_id,
        conversation=asked.conversation is not None,
        metadata=asked.metadata or {},
        max_output_tokens=asked.max_output_tokens if isinstance(asked.max_output_tokens, int) else None,
        background=bool(asked.background),
        store=asked.store is not False,
    )
    parent_id: MessageId | None = None
    conversation_id: ConversationId | None = None
    if asked.previous_response_id is not None:
        parent_id, turns = await _after(state, account, asked.previous_response_id, instructions, turns)
    elif asked.conversation_id is not None:
        conversation_id = ConversationId(asked.conversation_id)
        turns = await _in_conversation(state, account, conversation_id, instructions, turns)
    else:
        turns = (*_system(instructions), *turns)
    command = CreateCommand(
        kind="input",
        parent_id=parent_id,
        conversation_id=conversation_id,
        messages=turns,
        params=asked.params(),
        idempotency_key=key,
        note=msgspec.json.encode(note).decode(),
        store=note.store,
        hidden=True,
        grace_s=BACKGROUND_S if asked.background else 0.0 if key is None else None,
    )
    return command, note


def _system(instructions: str | None) -> tuple[ChatTurn, ...]:
    return () if instructions is None else (ChatTurn("system", instructions),)


async def _after(
    state: AppState,
    account: Namespace,
    response_id: str,
    instructions: str | None,
    turns: tuple[ChatTurn, ...],
) -> tuple[MessageId | None, tuple[ChatTurn, ...]]:
    """The message that ``turns`` go under; or none, and all turns of a path that begins anew."""
    try:
        record, note = await _find(state, account, response_id)
    except NotFound as error:
        raise NotFound(error.message, param="previous_response_id") from None
    path = await state.store.path_to(account, record.message_id)
    replaceable = note.instructions or instructions is not None
    head = path[0].text if replaceable and path[0].role == "system" else None
    if head == instructions:
        return record.message_id, turns
    kept = path if head is None else path[1:]
    before = tuple(ChatTurn(message.role, message.text) for message in kept)
    return None, (*_system(instructions), *before, *turns)


async def _in_conversation(
    state: AppState,
    account: Namespace,
    conversation_id: ConversationId,
    instructions: str | None,
    turns: tuple[ChatTurn, ...],
) -> tuple[ChatTurn, ...]:
    head = await state.store.head(account, conversation_id)
    if instructions is None:
        return turns
    if head.tip_id is None:
        return (*_system(instructions), *turns)
    path = await state.store.path_to(account, head.tip_id)
    if path[0].role == "system" and path[0].text == instructions:
        return turns
    raise Unsupported("A conversation keeps the system prompt it began with.", param="instructions")


# -- what is there


def _id_of(request: Request) -> str:
    value: str = request.path_params["id"]
    return value


async def _find(state: AppState, account: Namespace, response_id: str) -> tuple[ResponseRecord, wire.Note]:
    """NotFound also for what was deleted, or was not to be stored."""
    if len(response_id) > MAX_ID_CHARS:
        raise NotFound(GONE)
    kept = await state.store.note(account, ResponseId(response_id))
    note = msgspec.json.decode(kept.text, type=wire.Note) if kept.text else wire.Note()
    if kept.withdrawn or not note.store:
        raise NotFound(GONE)
    return await state.store.response(account, ResponseId(response_id)), note


async def _shown(state: AppState, account: Namespace, record: ResponseRecord, note: wire.Note) -> Shown:
    path = await state.store.path_to(account, record.message_id) if note.instructions else []
    return Shown(record, note, instructions_of(path, note), await _text_of(state, record.id, None))


async def _text_of(state: AppState, response_id: ResponseId, until_seq: int | None) -> str:
    """The stored text, up to and with piece ``until_seq``."""
    if until_seq == 0:
        return ""
    return "".join([text async for text in _texts(state, response_id, until_seq)])


async def _texts(state: AppState, response_id: ResponseId, until_seq: int | None) -> AsyncIterator[str]:
    for row in await state.store.pieces_after(response_id, 0):
        if until_seq is None or row.seq <= until_seq:
            yield row.text
        elif row.from_seq <= until_seq:
            yield row.text[: row.piece_ends[until_seq - row.from_seq]]


def _starting_after(request: Request) -> int:
    return _number(request, "starting_after", -1, low=0, high=2**53)


def _number(request: Request, name: str, default: int, *, low: int, high: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and low <= int(text) <= high):
        raise InvalidParameter(f"{name} must be a whole number from {low} to {high}.", param=name)
    return int(text)


def _page(request: Request, items: list[wire.Item]) -> wire.ItemList:
    """Of ``items``, the oldest first."""
    order, after = request.query_params.get("order", "desc"), request.query_params.get("after")
    if order not in ("asc", "desc"):
        raise InvalidParameter("order must be asc or desc.", param="order")
    limit = _number(request, "limit", 20, low=1, high=MAX_ITEMS)
    if order == "desc":
        items = items[::-1]
    if after is not None:
        at = next((index for index, item in enumerate(items) if item.id == after), None)
        if at is None:
            raise InvalidParameter("after must be the id of an item.", param="after")
        items = items[at + 1 :]
    shown = tuple(items[:limit])
    return wire.ItemList(
        data=shown,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(items) > limit,
    )
