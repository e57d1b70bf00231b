"""/api/v1: conversations, responses and reports over HTTP. Bodies are as strict as frames are."""

from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, to_builtins
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from chatd.errors import InvalidParameter, NotFound
from chatd.ids import ConversationId, Namespace, ResponseId
from chatd.server.commands import command_of
from chatd.server.estimates import estimated_of
from chatd.server.flush import run_counters
from chatd.server.http import json_response, read_json
from chatd.server.protocol import Asking, Key
from chatd.server.report_views import report_of, verdict_of
from chatd.server.state import AppState
from chatd.server.views import brief_of, conversation_of, response_of
from chatd.server.visitors import visitor_of

MAX_ID_CHARS = 128
MOST_LISTED = 200
HIDDEN = ("type", "idempotency_key")

LimitT = TypeVar("LimitT", int, None)
Title = Annotated[str, Meta(max_length=200)]


class NewConversation(Struct, frozen=True, forbid_unknown_fields=True):
    """``system`` is the system prompt, if it shall have one."""

    title: Title = ""
    system: str = ""


class EstimateBody(Asking, frozen=True, kw_only=True, tag=False):
    """As `cache.estimate`; the key may be left out."""

    idempotency_key: Key = "estimate"


class ConversationPatch(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to change: the title, whether it is pinned, or what the model is told first from its next
    turn on ("" for nothing), which computes the whole history again."""

    title: Title | None = None
    pinned: bool | None = None
    system: str | None = None


async def list_conversations(request: Request) -> Response:
    state = _state(request)
    limit, before = _limit(request, default=50), request.query_params.get("before")
    pinned = request.query_params.get("pinned", "false")
    if pinned not in ("true", "false"):
        raise InvalidParameter("pinned must be true or false", param="pinned")
    page = await state.store.list_conversations(_account(request), limit, before, pinned=pinned == "true")
    briefs = [brief_of(conversation) for conversation in page.conversations]
    return json_response({"conversations": briefs, "next": page.next})


async def create_conversation(request: Request) -> Response:
    state = _state(request)
    new = await read_json(request, NewConversation)
    conversation = await state.store.create_conversation(_account(request), new.title.strip(), new.system)
    state.conversation_changed(_account(request), conversation)
    return json_response(brief_of(conversation), 201)


async def read_conversation(request: Request) -> Response:
    state = _state(request)
    view = await state.store.conversation(_account(request), _conversation_id(request))
    return json_response(conversation_of(view))


async def change_conversation(request: Request) -> Response:
    """Give it another title or system prompt, or pin it. The conversation as it is then."""
    state, account, conversation_id = _state(request), _account(request), _conversation_id(request)
    patch = await read_json(request, ConversationPatch)
    title = None if patch.title is None else patch.title.strip()
    if title == "":
        raise InvalidParameter("title is empty", param="title")
    if title is None and patch.pinned is None and patch.system is None:
        raise InvalidParameter("give a title, a system prompt, or whether it is pinned", param="title")
    if patch.system is not None:
        conversation = await state.store.set_system(account, conversation_id, patch.system)
    if patch.pinned is not None:
        conversation = await state.store.pin_conversation(account, conversation_id, pinned=patch.pinned)
    if title is not None:
        conversation = await state.store.rename(account, conversation_id, title)
    state.conversation_changed(account, conversation, system_changed=patch.system is not None)
    return json_response(brief_of(conversation))


async def delete_conversation(request: Request) -> Response:
    """What is being written there is cancelled; text and KV go (while the model loads: once it is here)."""
    state = _state(request)
    owner = state.store if state.service is None else state.service
    await owner.delete(_account(request), _conversation_id(request))
    return Response(status_code=204)


async def warm_conversation(request: Request) -> Response:
    """A hint: 202, and whether it was taken."""
    state = _state(request)
    visitor = visitor_of(request)
    state.looks.take(visitor, state.clock())
    taken = state.looks.may_warm(visitor, state.clock())
    if taken:
        await state.ready_service().cache.warm(_account(request), _conversation_id(request))
    return json_response({"accepted": taken}, 202)


async def estimate(request: Request) -> Response:
    """What `response.create` with this body would find; the answer is `cache.estimated` without its key."""
    state = _state(request)
    asked = await read_json(request, EstimateBody)
    asked.check()
    state.looks.take(visitor_of(request), state.clock())
    found = await state.ready_service().estimate(_account(request), command_of(asked))
    body = to_builtins(estimated_of(found, asked.idempotency_key))
    return json_response({name: value for name, value in body.items() if name not in HIDDEN})


async def read_response(request: Request) -> Response:
    state = _state(request)
    record = await state.store.response(_account(request), ResponseId(_path_id(request)))
    return json_response(response_of(record))


async def report(request: Request) -> Response:
    """Sessions, the last used first, and totals by currency over all of them."""
    state = _state(request)
    limit = _limit(request, default=None)
    return json_response(report_of(await state.store.sessions_report(_account(request), limit=limit)))


async def verify(request: Request) -> Response:
    """Checks the ledger against pieces, messages and the live engine. 200 whether it holds or not."""
    state = _state(request)
    service = state.service
    live = None if service is None else lambda: run_counters(service.counters)
    return json_response(verdict_of(await state.store.verify(live)))


async def status(request: Request) -> Response:
    """What the server is doing now. The model's part is null while it loads."""
    state = _state(request)
    body: dict[str, Any] = {
        "status": state.phase.value,
        "version": state.version,
        "connections": len(state.connections),
        "model": None,
        "engine": None,
    }
    if (service := state.service) is not None:
        backend = service.backend
        body["model"] = {
            "name": backend.model_name,
            "context_length": backend.context_length,
            "device": state.device,
            "weights": backend.formats.weights,
            "kernels": backend.formats.kernels,
            "kv_dtype": backend.formats.kv,
            "kv_bytes": backend.kv_bytes,
            "page_size": backend.formats.page_size,
            "cache_on": backend.cache_on,
        }
        body["engine"] = {**asdict(service.engine_state), "counters": asdict(service.counters)}
    return json_response(body)


def _state(request: Request) -> AppState:
    state: AppState = request.app.state.chatd
    return state


def _account(request: Request) -> Namespace:
    return visitor_of(request).namespace


def _path_id(request: Request) -> str:
    value: str = request.path_params["id"]
    if len(value) > MAX_ID_CHARS:
        raise NotFound("there is nothing with that id")
    return value


def _conversation_id(request: Request) -> ConversationId:
    return ConversationId(_path_id(request))


def _limit(request: Request, *, default: LimitT) -> int | LimitT:
    text = request.query_params.get("limit")
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= MOST_LISTED):
        raise InvalidParameter(f"limit must be a whole number from 1 to {MOST_LISTED}", param="limit")
    return int(text)


ROUTES = Mount(
    "/api/v1",
    routes=[
        Route("/conversations", list_conversations, methods=["GET"]),
        Route("/conversations", create_conversation, methods=["POST"]),
        Route("/conversations/{id}", read_conversation, methods=["GET"]),
        Route("/conversations/{id}", change_conversation, methods=["PATCH"]),
        Route("/conversations/{id}", delete_conversation, methods=["DELETE"]),
        Route("/conversations/{id}/warm", warm_conversation, methods=["POST"]),
        Route("/cache/estimate", estimate, methods=["POST"]),
        Route("/responses/{id}", read_response, methods=["GET"]),
        Route("/report", report, methods=["GET"]),
        Route("/report/verify", verify, methods=["GET"]),
        Route("/status", status, methods=["GET"]),
    ],
)
