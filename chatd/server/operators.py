"""Routes for the operator alone: who can read the data folder, or has a key with the scope ``admin``.

That machine's own user is not enough, although it needs no key: others may share the machine.
"""

import functools
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from chatd.errors import NotAllowed
from chatd.server.state import AppState
from chatd.server.visitors import visitor_of

Endpoint = Callable[[Request, AppState], Awaitable[Response]]


def operator_only(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """Everybody else gets the same answer on every path, which says nothing."""

    @functools.wraps(endpoint)
    async def guarded(request: Request) -> Response:
        if not visitor_of(request).is_operator:
            raise NotAllowed("Commands of chatd on this machine may do that: `chatd --help`.")
        return await endpoint(request, request.app.state.chatd)

    return guarded
