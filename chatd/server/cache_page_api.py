"""/api/v1/operator/cache: the page's view of the cache, and what may be done there.

With keys it is for those with the scope ``admin``, who see all accounts. Without any, this machine's own
user may use it too, if the connection comes from this machine: then it shows and touches that account alone.

    GET    /api/v1/operator/cache              figures; the page asks for them every few seconds
    GET    /api/v1/operator/cache/tree         stretches of KV, and the conversations that go through them
    POST   /api/v1/operator/cache/clear        {"disk": true}
    POST   /api/v1/operator/cache/warm         {"conversation_id": ...}
    POST   /api/v1/operator/cache/pins         {"conversation_id": ..., "system_only": false}
    DELETE /api/v1/operator/cache/pins/{name}
"""

import asyncio
import functools
import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from anyio import to_thread
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatd.engine.messages import CachedPath
from chatd.errors import NotAllowed, NotFound
from chatd.ids import ConversationId, Namespace
from chatd.server.cache_service import CacheService
from chatd.server.cache_tree import Placed, seen_by, stretches_of
from chatd.server.http import json_response, read_json
from chatd.server.state import AppState
from chatd.server.visitors import visitor_of
from chatd.store.records import Conversation, Pin, rfc3339

MOST_STRETCHES = 400
MOST_CONVERSATIONS = 40

_ADMIN = "Only a key with the scope admin may do that."


@dataclass(frozen=True, slots=True)
class Asker:
    """``account`` is the one that everything is about; None: all of them."""

    state: AppState
    account: Namespace | None
    own: Namespace

    @property
    def cache(self) -> CacheService:
        return self.state.ready_service().cache

    def sees(self, namespace: Namespace) -> bool:
        return self.account is None or namespace == self.account


Endpoint = Callable[[Request, Asker], Awaitable[Response]]


class ClearBody(Struct, frozen=True, forbid_unknown_fields=True):
    disk: bool = True


class WarmBody(Struct, frozen=True, forbid_unknown_fields=True):
    conversation_id: str


class PinBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A conversation as it stands, or just its system prompt."""

    conversation_id: str
    system_only: bool = False


def _for_the_page(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    @functools.wraps(endpoint)
    async def guarded(request: Request) -> Response:
        visitor = visitor_of(request)
        if not visitor.is_operator and (visitor.key is not None or not _is_near(request)):
            raise NotAllowed(_ADMIN)
        state: AppState = request.app.state.chatd
        account = None if visitor.is_operator else visitor.namespace
        return await endpoint(request, Asker(state, account, visitor.namespace))

    return guarded


def _is_near(request: Request) -> bool:
    """From this machine, with nothing in between that says it speaks for somebody else."""
    if request.client is None or "forwarded" in request.headers or "x-forwarded-for" in request.headers:
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


@_for_the_page
async def figures(request: Request, asker: Asker) -> Response:
    """What each tier holds now, and totals since the engine started."""
    state = asker.state
    service = state.ready_service()
    disk = None if state.disk is None else asdict(await to_thread.run_sync(state.disk.stats))
    body: dict[str, Any] = {
        "all_accounts": asker.account is None,
        "counters": asdict(service.counters),
        "state": asdict(service.engine_state),
        "disk": disk,
        "pins": [_pin_of(pin) for pin in await asker.cache.pins() if asker.sees(pin.namespace)],
    }
    return json_response(body)


def _pin_of(pin: Pin) -> dict[str, Any]:
    return {
        "name": pin.name,
        "what": pin.what,
        "tokens": len(pin.token_ids),
        "created_at": rfc3339(pin.created_at),
    }


@_for_the_page
async def tree(request: Request, asker: Asker) -> Response:
    """The stretches used last, parents before children, and the conversations used last."""
    cache = asker.cache
    paths = seen_by(await cache.listing(MOST_STRETCHES), asker.account)
    newest = await asker.state.store.newest_of(asker.account, MOST_CONVERSATIONS)
    async with asyncio.TaskGroup() as tasks:
        placing = [tasks.create_task(_placed(cache, paths, *one)) for one in newest]
    placed = [found for one in placing if (found := one.result()) is not None]
    return json_response(
        {
            "stretches": [_stretch_of(path, cache) for path in paths],
            "conversations": [asdict(one) for one in placed if one.tokens],
        }
    )


async def _placed(
    cache: CacheService, paths: list[CachedPath], namespace: Namespace, conversation: Conversation
) -> Placed | None:
    """None for one that was deleted meanwhile."""
    try:
        ids = await cache.ids_of(namespace, conversation.id)
    except NotFound:
        return None
    known = max(0, len(ids) - 1)  # the last one has no KV before something follows it
    found = Placed(conversation.id, conversation.title, namespace, known, 0, 0)
    if not known:
        return found
    probed = await cache.look(namespace, ids)
    through = stretches_of(paths, ids, probed.gpu_hit)
    return replace(found, in_memory=min(known, probed.gpu_hit), on_disk=probed.tier.found, stretches=through)


def _stretch_of(path: CachedPath, cache: CacheService) -> dict[str, Any]:
    shown = asdict(path)
    shown["head"] = cache.text_of(shown.pop("head_ids"))
    return shown


@_for_the_page
async def clear(request: Request, asker: Asker) -> Response:
    asked = await read_json(request, ClearBody)
    done = await asker.cache.clear(asker.account, disk=asked.disk)
    return json_response({"tokens": done.tokens, "blocks": done.blocks})


@_for_the_page
async def warm(request: Request, asker: Asker) -> Response:
    """A hint: 202, and about how many tokens it is about."""
    asked = await read_json(request, WarmBody)
    namespace, conversation_id = await _owner(asker, asked.conversation_id)
    return json_response({"tokens": await asker.cache.warm(namespace, conversation_id)}, 202)


@_for_the_page
async def pin(request: Request, asker: Asker) -> Response:
    """Named after the conversation; Conflict if it is pinned so already."""
    asked = await read_json(request, PinBody)
    _, conversation_id = await _owner(asker, asked.conversation_id)
    name = f"system of {conversation_id}" if asked.system_only else conversation_id
    made = await asker.cache.pin_conversation(name, conversation_id, system_only=asked.system_only)
    return json_response(_pin_of(made), 201)


async def _owner(asker: Asker, named: str) -> tuple[Namespace, ConversationId]:
    """NotFound for what the asker may not see, as for what there is not."""
    conversation_id = ConversationId(named)
    try:
        owner = await asker.state.store.owner_of(conversation_id)
    except NotFound:
        owner = None
    if owner is None or not asker.sees(owner):
        raise NotFound("there is no such conversation")
    return owner, conversation_id


@_for_the_page
async def unpin(request: Request, asker: Asker) -> Response:
    name = request.path_params["name"]
    if not any(pin.name == name and asker.sees(pin.namespace) for pin in await asker.cache.pins()):
        raise NotFound("there is no such pin")
    await asker.cache.unpin(name)
    return Response(status_code=204)


_PATH = "/api/v1/operator/cache"
ROUTES = [
    Route(_PATH, figures, methods=["GET"]),
    Route(f"{_PATH}/tree", tree, methods=["GET"]),
    Route(f"{_PATH}/clear", clear, methods=["POST"]),
    Route(f"{_PATH}/warm", warm, methods=["POST"]),
    Route(f"{_PATH}/pins", pin, methods=["POST"]),
    Route(f"{_PATH}/pins/{{name:path}}", unpin, methods=["DELETE"]),
]
