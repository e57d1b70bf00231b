"""RequestLog: every request has an id, an access line and a count.

The id is the client's ``X-Request-ID``, cleaned, or a new one; it goes back with the answer and stands in
every line that is logged on the request's behalf. A WebSocket has one from its upgrade on.

Access lines name the route, never the path: a path may hold what a person wrote. Those of the page, of health
checks and of scrapes are for debugging only.
"""

import logging
import re
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chatd.server.figures import HttpFigures
from chatd.store.records import ResponseRecord

log = logging.getLogger("chatd.access")

HEADER = "x-request-id"
MAX_ID_CHARS = 128
_STRANGE = re.compile(r"[^A-Za-z0-9._:/+=@-]")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
UNKNOWN = "other"
"""A path that is no route, or a method that nobody has."""
CLIENT_LEFT = 499
"""Counted and logged for a request whose client did not wait."""
API = ("/api/", "/v1/", "/ws")


def request_id_of(given: str | None, new_id: Callable[[], str]) -> str:
    """``given`` without what has no place in a header or a log, or a new one if nothing is left."""
    return _STRANGE.sub("", given or "")[:MAX_ID_CHARS] or new_id()


def route_names(routes: Iterable[BaseRoute], prefix: str = "") -> dict[Any, str]:
    """Each endpoint's path as it was declared: ``/api/v1/responses/{id}``."""
    names: dict[Any, str] = {}
    for route in routes:
        if isinstance(route, Mount) and route.routes:
            names |= route_names(route.routes, prefix + route.path)
        elif isinstance(route, Route | WebSocketRoute):
            names[route.endpoint] = prefix + re.sub(r":[a-z]+}", "}", route.path)
        elif isinstance(route, Mount):
            names[route.app] = f"{prefix}{route.path}/*"
    return names


class RequestLog:
    """The outermost layer of the application."""

    def __init__(
        self,
        app: ASGIApp,
        routes: Iterable[BaseRoute],
        figures: HttpFigures,
        new_id: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._names = route_names(routes)
        self._figures = figures
        self._new_id = new_id
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(Headers(scope=scope).get(HEADER), self._new_id)
        began, status = self._clock(), CLIENT_LEFT

        async def send_named(message: Message) -> None:
            nonlocal status
            match message["type"]:
                case "http.response.start" | "websocket.http.response.start":
                    status = message["status"]
                    _name(message, request_id)
                case "websocket.accept":
                    status = 101
                    self._figures.sockets += 1
                    _name(message, request_id)
                case "websocket.close" if status == CLIENT_LEFT:
                    status = 403
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_named)
            finally:
                self._write(scope, status, self._clock() - began)

    def _write(self, scope: Scope, status: int, seconds: float) -> None:
        endpoint = scope.get("endpoint")
        # Below a mount that has no such path it is the mount's router, and that has no hash.
        route = self._names.get(endpoint, UNKNOWN) if isinstance(endpoint, Hashable) else UNKNOWN
        is_socket = scope["type"] == "websocket"
        method = "WEBSOCKET" if is_socket else scope["method"]
        method = method if is_socket or method in METHODS else UNKNOWN
        if not is_socket:
            self._figures.requests[method, route, status] += 1
        level = logging.INFO if route.startswith(API) else logging.DEBUG
        shown = {"method": method, "route": route, "status": status, "ms": round(1000 * seconds, 1)}
        log.log(level, "request", extra=shown)


def ended_line(request_id: str, record: ResponseRecord) -> dict[str, object]:
    """What the log says of a response that ended. Nobody who asked for it need be around then."""
    line: dict[str, object] = {
        "response_id": record.id,
        "request_id": request_id,
        "finish_reason": record.finish_reason,
        "prompt_tokens": record.prompt_tokens,
        "reused": record.gpu_hit + record.disk_hit,
        "output_tokens": record.output_tokens,
        "ms": round(record.timings.total_ms or 0.0, 1),
    }
    return line | ({"error_code": record.error_code} if record.error_code else {})


def _name(message: Message, request_id: str) -> None:
    message.setdefault("headers", [])
    MutableHeaders(scope=message)[HEADER] = request_id
