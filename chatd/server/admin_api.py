"""/api/v1/admin/cache: the operator's side of the cache, for commands on this machine.

Every route wants the token from the data folder's ``server.json`` in a header: who can read that could read
the files as well. Without it the answer is the same for every path, and says nothing.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import anyio.to_thread
import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route

from chatd.cache.disk.verify import Checked
from chatd.engine.messages import CachedPath
from chatd.errors import InvalidParameter, NotReady
from chatd.ids import ConversationId, Namespace
from chatd.server.cache_service import CacheService
from chatd.server.cache_stats import LOOKED_AT, choices_of, predictions_of
from chatd.server.http import json_response, read_json
from chatd.server.operators import operator_only
from chatd.server.state import AppState
from chatd.server.visitors import visitor_of
from chatd.store.records import Pin, rfc3339

MOST_LISTED = 10_000
VERIFY_EVERY = 64
"""Records between two lines about how far a verification is."""


class ClearBody(Struct, frozen=True, forbid_unknown_fields=True):
    namespace: str | None = None
    disk: bool = True


class PinBody(Struct, frozen=True, forbid_unknown_fields=True):
    """One of: the text of a system prompt, a conversation with all of it, a conversation's system prompt."""

    name: str
    text: str | None = None
    conversation_id: str | None = None
    system_of: str | None = None


def _cache(state: AppState) -> CacheService:
    return state.ready_service().cache


@operator_only
async def stats(request: Request, state: AppState) -> Response:
    """All figures: the engine's since it started, the ledger's over all time or `LOOKED_AT` responses."""
    service = state.ready_service()
    rows = await state.store.newest_xrays(LOOKED_AT)
    disk = None if state.disk is None else asdict(await anyio.to_thread.run_sync(state.disk.stats))
    body: dict[str, Any] = {
        "live": True,
        "counters": asdict(service.counters),
        "state": asdict(service.engine_state),
        "disk": disk,
        "causes": [asdict(one) for one in await state.store.cause_sums()],
        "choices": choices_of(rows),
        "predictions": predictions_of(rows),
        "pins": len(await state.store.pins()),
    }
    return json_response(body)


@operator_only
async def listing(request: Request, state: AppState) -> Response:
    """Paths in memory with the text they begin with, and what is on disk by namespace."""
    text = request.query_params.get("limit", "100")
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MOST_LISTED):
        raise InvalidParameter(f"limit must be a whole number from 1 to {MOST_LISTED}", param="limit")
    cache = _cache(state)
    paths = [_path_of(path, cache) for path in await cache.listing(int(text))]
    disk = [] if state.disk is None else await anyio.to_thread.run_sync(state.disk.ls)
    return json_response({"paths": paths, "disk": [asdict(one) for one in disk]})


def _path_of(path: CachedPath, cache: CacheService) -> dict[str, Any]:
    shown = asdict(path)
    shown["head"] = cache.text_of(shown.pop("head_ids"))
    return shown


@operator_only
async def clear(request: Request, state: AppState) -> Response:
    asked = await read_json(request, ClearBody)
    namespace = None if asked.namespace is None else Namespace(asked.namespace)
    done = await _cache(state).clear(namespace, disk=asked.disk)
    return json_response({"tokens": done.tokens, "blocks": done.blocks})


@operator_only
async def pins(request: Request, state: AppState) -> Response:
    return json_response({"pins": [_pin_of(pin) for pin in await state.store.pins()]})


@operator_only
async def pin(request: Request, state: AppState) -> Response:
    asked, cache = await read_json(request, PinBody), _cache(state)
    given = (asked.text, asked.conversation_id, asked.system_of)
    if not asked.name or sum(one is not None for one in given) != 1:
        raise InvalidParameter("give a name and one of text, conversation_id and system_of")
    if asked.text is not None:
        made = await cache.pin_text(asked.name, visitor_of(request).namespace, asked.text)
    else:
        whole = ConversationId(asked.conversation_id or asked.system_of or "")
        made = await cache.pin_conversation(asked.name, whole, system_only=asked.system_of is not None)
    return json_response(_pin_of(made), 201)


@operator_only
async def unpin(request: Request, state: AppState) -> Response:
    await _cache(state).unpin(request.path_params["name"])
    return Response(status_code=204)


def _pin_of(pin: Pin) -> dict[str, Any]:
    return {
        "name": pin.name,
        "namespace": pin.namespace,
        "what": pin.what,
        "tokens": len(pin.token_ids),
        "created_at": rfc3339(pin.created_at),
    }


@operator_only
async def verify(request: Request, state: AppState) -> Response:
    """Reads every record. Lines of JSON: how far it is, and each record that is damaged."""
    if state.disk is None:
        raise NotReady("There is no disk tier: the server runs with --disk off, or is still loading.")
    return StreamingResponse(_lines(state.disk.verify()), media_type="application/x-ndjson")


def _lines(checks: Iterator[Checked]) -> Iterator[bytes]:
    """On a worker thread: each step waits for the disk."""
    for checked in checks:
        if checked.damage is not None or checked.done == checked.total or not checked.done % VERIFY_EVERY:
            yield msgspec.json.encode(checked_of(checked)) + b"\n"


def checked_of(checked: Checked) -> dict[str, Any]:
    """One step of a verification as JSON."""
    damage = None if checked.damage is None else asdict(checked.damage)
    if damage is not None:
        damage["key"] = damage["key"].hex()
    return {"done": checked.done, "total": checked.total, "nbytes": checked.nbytes, "damage": damage}


ROUTES = Mount(
    "/api/v1/admin/cache",
    routes=[
        Route("/stats", stats, methods=["GET"]),
        Route("/paths", listing, methods=["GET"]),
        Route("/clear", clear, methods=["POST"]),
        Route("/pins", pins, methods=["GET"]),
        Route("/pins", pin, methods=["POST"]),
        Route("/pins/{name}", unpin, methods=["DELETE"]),
        Route("/verify", verify, methods=["POST"]),
    ],
)
