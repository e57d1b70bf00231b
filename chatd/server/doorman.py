"""Doorman: finds out who asks, and lets nobody further than its key goes. Pure ASGI, inside the guard.

Credentials, the first that is there counts, and none falls back to another:

- the operator's token (who can read the data folder has it);
- a ticket, on a WebSocket: then its Origin may be foreign, and no cookie is looked at;
- ``Authorization: Bearer``, a key's secret;
- the page's cookie.

Without keys everybody who gets here is this machine's own user, whatever they bring along.
"""

import hmac
import math
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chatd.errors import ChatdError, NotAllowed, Unauthorized
from chatd.server.access import Need, need_of
from chatd.server.guards import TICKET
from chatd.server.keyring import Keyring
from chatd.server.page import page_names
from chatd.server.state import AppState
from chatd.server.visitors import VISITOR, Visitor
from chatd.server.visits import Visit
from chatd.store.key_records import Room

OPERATOR_HEADER = "x-chatd-admin"
SCHEME = "bearer "

Refuse = Callable[[HTTPConnection, ChatdError], Response]


class Doorman:
    """``refuse`` makes the answer to an error as the path's interface has it."""

    def __init__(self, app: ASGIApp, state: AppState, refuse: Refuse) -> None:
        self._app = app
        self._state = state
        self._refuse = refuse
        self._page = page_names(state.settings.web_dir)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        try:
            visitor = self._admitted(connection)
        except ChatdError as error:
            await self._refusal(connection, error)(scope, receive, send)
            return
        if visitor is None:
            await self._app(scope, receive, send)
            return
        scope[VISITOR] = visitor

        async def send_with_room(message: Message) -> None:
            if message["type"] == "http.response.start" and visitor.room is not None:
                MutableHeaders(scope=message).update(rate_headers(visitor.room))
            await send(message)

        if scope["type"] == "http":
            await self._visit(scope, Visit(visitor, receive, send_with_room))
        else:
            await self._app(scope, receive, send)

    async def _visit(self, scope: Scope, visit: Visit) -> None:
        """Answer a request unless its visitor is shown out meanwhile."""
        self._state.visits.add(visit)
        try:
            await self._app(scope, visit.receive, visit.send)
        finally:
            self._state.visits.discard(visit)
        shown_out = Unauthorized("The key was revoked, or the page logged out.")
        await visit.end(scope, self._refusal(HTTPConnection(scope), shown_out))

    def _refusal(self, connection: HTTPConnection, error: ChatdError) -> Response:
        response = self._refuse(connection, error)
        if isinstance(error, Unauthorized):
            response.headers["www-authenticate"] = "Bearer"
        return response

    def _admitted(self, connection: HTTPConnection) -> Visitor | None:
        """Who asks, if the path wants to know. Raises Unauthorized and NotAllowed."""
        path = connection.scope["path"].removeprefix(connection.scope.get("root_path", "")) or "/"
        need = need_of(path, self._page)
        if need is Need.NOTHING:
            return None
        visitor = self._visitor(connection, self._state.keys)
        if need is not Need.ANY_KEY and need.value not in visitor.scopes:
            raise NotAllowed(f"This key's scopes do not include {need.value}.")
        return visitor

    def _visitor(self, connection: HTTPConnection, keys: Keyring) -> Visitor:
        headers = connection.headers
        if (token := headers.get(OPERATOR_HEADER)) is not None and self._is_operator(token):
            return keys.operator()
        if connection.scope["type"] == "websocket" and TICKET in connection.query_params:
            return keys.by_ticket(connection.query_params[TICKET], headers.get("origin"))
        if keys.is_open:
            return keys.local_visitor()
        authorization = headers.get("authorization", "")
        if authorization[: len(SCHEME)].lower() == SCHEME:
            return keys.by_secret(authorization[len(SCHEME) :].strip())
        if (cookie := connection.cookies.get(cookie_name(connection))) is not None:
            return keys.by_cookie(cookie)
        raise Unauthorized("A key is needed: Authorization: Bearer KEY. The page asks for it by itself.")

    def _is_operator(self, token: str) -> bool:
        own = self._state.admin_token
        return bool(own) and hmac.compare_digest(token.encode(), own.encode())


def cookie_name(connection: HTTPConnection) -> str:
    """Cookies do not know ports: those of two servers on one machine must not be mixed up."""
    server = connection.scope.get("server")
    return f"chatd-{server[1]}" if server else "chatd"


def rate_headers(room: Room) -> dict[str, str]:
    """What is left, by the names that OpenAI's clients know."""
    headers = {}
    for what, left in (("requests", room.requests), ("tokens", room.tokens)):
        if left is not None:
            headers[f"x-ratelimit-limit-{what}"] = str(left.limit)
            headers[f"x-ratelimit-remaining-{what}"] = str(left.remaining)
            headers[f"x-ratelimit-reset-{what}"] = f"{math.ceil(left.reset_s)}s"
    return headers
