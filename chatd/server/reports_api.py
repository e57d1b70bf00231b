"""/api/v1/reports: what sessions, branches, days, models, keys and namespaces used and cost.

    GET /api/v1/reports/{sessions|branches|days|models|keys|namespaces|storage}
        ?since=2026-11-01&until=2026-11-30    days in UTC, the last one inside
        &model=NAME &session=ID               only of these
        &limit=50&after=CURSOR                a page; `next` of one is `after` of the following
        &reprice=NAME                         at the prices of a book that comes with chatd
        &what_if=disk_hit=0.05                as if this price were other than it is; may be repeated

The figures are those of ``chatd report``, of one's own namespace alone.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from chatd.errors import InvalidParameter, NotFound, SetupError
from chatd.ids import ConversationId
from chatd.price_file import changed, find_book, parse_changes, shipped_books
from chatd.server.http import json_response
from chatd.server.state import AppState
from chatd.server.usage_views import storage_of, usage_of
from chatd.store.days import day_number
from chatd.store.pricing import View
from chatd.store.reports import MAX_PAGE
from chatd.store.usage import Asked, By, Scope

KINDS: Mapping[str, By] = {
    "sessions": By.SESSION,
    "branches": By.BRANCH,
    "days": By.DAY,
    "models": By.MODEL,
    "keys": By.KEY,
    "namespaces": By.NAMESPACE,
}
PARAMS = frozenset({"since", "until", "model", "session", "limit", "after", "reprice", "what_if"})
MAX_TEXT = 500

T = TypeVar("T")


async def report(request: Request) -> Response:
    state: AppState = request.app.state.chatd
    kind = KINDS.get(request.path_params["kind"])
    if kind is None:
        raise NotFound(f"there is no such report; there are: {', '.join(KINDS)}, storage")
    _check_params(request)
    asked = Asked(
        by=kind,
        scope=_scope(request, state),
        view=_view(request),
        limit=_limit(request),
        after=request.query_params.get("after"),
    )
    return json_response(usage_of(await state.store.usage_report(asked)))


async def storage(request: Request) -> Response:
    state: AppState = request.app.state.chatd
    _check_params(request)
    return json_response({"rows": storage_of(await state.store.storage_report(_scope(request, state)))})


def _check_params(request: Request) -> None:
    for name, value in request.query_params.multi_items():
        if name not in PARAMS:
            raise InvalidParameter(f"{name[:50]} is not known here", param=name[:50])
        if len(value) > MAX_TEXT:
            raise InvalidParameter(f"{name} is too long", param=name)


def _scope(request: Request, state: AppState) -> Scope:
    query = request.query_params
    session = query.get("session")
    return Scope(
        namespace=state.namespace,
        session=None if session is None else ConversationId(session),
        model=query.get("model"),
        first_day=_read(request, "since", day_number, "a day, such as 2026-11-29"),
        last_day=_read(request, "until", day_number, "a day, such as 2026-11-29"),
    )


def _limit(request: Request) -> int:
    words = f"a whole number from 1 to {MAX_PAGE}"
    found = _read(request, "limit", lambda text: int(text) if text.isascii() and text.isdigit() else 0, words)
    if found is not None and not 1 <= found <= MAX_PAGE:
        raise InvalidParameter(f"limit must be {words}", param="limit")
    return 50 if found is None else found


def _view(request: Request) -> View:
    name, changes = request.query_params.get("reprice"), request.query_params.getlist("what_if")
    if name is not None and name not in shipped_books():
        raise InvalidParameter(f"reprice must be one of: {', '.join(shipped_books())}", param="reprice")
    if not changes:
        return View(book=None if name is None else find_book(name))
    try:
        wanted = parse_changes(changes)
        changed(find_book(name) if name else find_book(next(iter(shipped_books()))), wanted)
    except (ValueError, SetupError) as error:
        raise InvalidParameter(f"what_if {error}", param="what_if") from None
    return View(None if name is None else find_book(name), lambda book: changed(book, wanted))


def _read(request: Request, name: str, read: Callable[[str], T], words: str) -> T | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return read(text)
    except ValueError:
        raise InvalidParameter(f"{name} must be {words}", param=name) from None


ROUTES = Mount(
    "/api/v1/reports",
    routes=[
        Route("/storage", storage, methods=["GET"]),
        Route("/{kind}", report, methods=["GET"]),
    ],
)
