"""/api/v1: logging a page in and out, who one is, and tickets for sockets of other origins."""

from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatd.errors import InvalidParameter, Unauthorized
from chatd.server.doorman import cookie_name
from chatd.server.guards import parse_origin
from chatd.server.http import json_response, read_json
from chatd.server.keyring import COOKIE_S, TICKET_S
from chatd.server.state import AppState
from chatd.server.visitors import Visitor, visitor_of


class LoginBody(Struct, frozen=True, forbid_unknown_fields=True):
    """One of: a key's secret, a login token."""

    key: str | None = None
    token: str | None = None


class TicketBody(Struct, frozen=True, forbid_unknown_fields=True):
    """``origin`` of the page that will open the socket; null: a program that is not a browser."""

    origin: str | None = None


async def log_in(request: Request) -> Response:
    """A cookie for the page, for a secret or for the token of a login address."""
    state: AppState = request.app.state.chatd
    asked = await read_json(request, LoginBody)
    if (asked.key is None) == (asked.token is None):
        raise InvalidParameter("give one of key and token")
    cookie, visitor = await state.keys.log_in(secret=asked.key, token=asked.token)
    response = json_response(session_of(visitor, state))
    _set_cookie(response, request, cookie, COOKIE_S)
    return response


async def log_out(request: Request) -> Response:
    """204, whether the page was logged in or not. Its sockets are closed."""
    state: AppState = request.app.state.chatd
    cookie = request.cookies.get(cookie_name(request))
    if cookie is not None:
        try:
            visitor = state.keys.by_cookie(cookie)
        except Unauthorized:
            visitor = None
        if visitor is not None and visitor.login is not None:
            await state.keys.log_out(visitor.login)
            state.show_out()
    response = Response(status_code=204)
    _set_cookie(response, request, "", 0)
    return response


async def session(request: Request) -> Response:
    """Who one is here."""
    state: AppState = request.app.state.chatd
    return json_response(session_of(visitor_of(request), state))


async def ticket(request: Request) -> Response:
    """Good once, for one socket at ``/ws?ticket=...``."""
    state: AppState = request.app.state.chatd
    asked = await read_json(request, TicketBody)
    if asked.origin is not None and parse_origin(asked.origin) is None:
        raise InvalidParameter("origin must be like https://app.example.org", param="origin")
    made = state.keys.new_ticket(visitor_of(request), asked.origin)
    return json_response({"ticket": made, "expires_in": TICKET_S}, 201)


def session_of(visitor: Visitor, state: AppState) -> dict[str, Any]:
    """``logged_in``: by a cookie, which can be logged out. ``open``: nobody needs a key."""
    return {
        "account": visitor.namespace,
        "key": visitor.key_id or None,
        "scopes": sorted(visitor.scopes),
        "logged_in": visitor.login is not None,
        "open": state.keys.is_open,
    }


def _set_cookie(response: Response, request: Request, value: str, max_age: int) -> None:
    """No script reads it, no other site sends it; over TLS, it never goes without."""
    response.set_cookie(
        cookie_name(request),
        value,
        max_age=max_age,
        path=request.scope.get("root_path", "") + "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


ROUTES = [
    Route("/api/v1/login", log_in, methods=["POST"]),
    Route("/api/v1/logout", log_out, methods=["POST"]),
    Route("/api/v1/session", session, methods=["GET"]),
    Route("/api/v1/ticket", ticket, methods=["POST"]),
]
