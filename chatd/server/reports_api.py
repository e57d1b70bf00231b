"""/api/v1/reports: what sessions, branches, days, models, keys and namespaces used and cost.

    GET /api/v1/reports/{sessions|branches|days|models|keys|namespaces|storage}
        ?since=2026-11-01&until=2026-11-30    days in UTC, the last one inside
        &model=NAME &session=ID               only of these
        &limit=50&after=CURSOR                a page; `next` of one is `after` of the following
        &reprice=NAME                         at the prices of a book that comes with chatd
        &what_if=disk_hit=0.05                as if this price were other than it is; may be repeated
        &format=csv                           all lines as a file
    GET /api/v1/reports/turns                 reuse by the number of a turn in its session
    GET /api/v1/reports/prices                what new turns are billed at, and the books for `reprice`

The figures are those of ``chatd report``, of one's own namespace alone.
"""

import io
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, replace
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route

from chatd.errors import InvalidParameter, NotFound, SetupError
from chatd.ids import ConversationId
from chatd.price_file import changed, find_book, parse_changes, shipped_books
from chatd.server.http import json_response
from chatd.server.state import AppState
from chatd.server.usage_csv import write_csv_head, write_csv_page, write_csv_storage
from chatd.server.usage_views import storage_of, storage_sums_of, usage_of
from chatd.server.visitors import visitor_of
from chatd.store.days import day_number
from chatd.store.pricing import View
from chatd.store.reports import MAX_PAGE
from chatd.store.storage_days import storage_sums
from chatd.store.usage import Asked, By, Scope

KINDS: Mapping[str, By] = {
    "sessions": By.SESSION,
    "branches": By.BRANCH,
    "days": By.DAY,
    "models": By.MODEL,
    "keys": By.KEY,
    "namespaces": By.NAMESPACE,
}
PARAMS = frozenset({"since", "until", "model", "session", "limit", "after", "reprice", "what_if", "format"})
MAX_TEXT = 500
UTF_8 = "\ufeff"
"""The mark by which spreadsheets know it."""

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
    if not _wants_csv(request):
        return json_response(usage_of(await state.store.usage_report(asked)))
    headers = _file(request.path_params["kind"])
    return StreamingResponse(_csv(state, asked), headers=headers, media_type="text/csv")


def _wants_csv(request: Request) -> bool:
    if (form := request.query_params.get("format", "json")) not in ("json", "csv"):
        raise InvalidParameter("format must be json or csv", param="format")
    return form == "csv"


def _file(kind: str) -> dict[str, str]:
    return {
        "cache-control": "no-store",
        "content-disposition": f'attachment; filename="chatd-{kind}.csv"',
    }


async def _csv(state: AppState, asked: Asked) -> AsyncIterator[str]:
    """All lines, page by page."""
    write_csv_head(asked.by, out := io.StringIO())
    yield UTF_8 + out.getvalue()
    page: Asked | None = replace(asked, limit=MAX_PAGE, with_totals=False)
    while page is not None:
        found = await state.store.usage_report(page)
        write_csv_page(asked.by, usage_of(found), out := io.StringIO())
        yield out.getvalue()
        page = None if found.next is None else replace(page, after=found.next)


async def by_turn(request: Request) -> Response:
    """Reuse by the number of a turn in its session."""
    state: AppState = request.app.state.chatd
    _check_params(request)
    sums = await state.store.turn_sums(_scope(request, state))
    return json_response({"rows": [{**asdict(one), "hit_rate": round(one.hit_rate, 6)} for one in sums]})


async def prices(request: Request) -> Response:
    """Prices in nano-units for a million tokens (``storage``: a GiB-hour); null where there is none."""
    state: AppState = request.app.state.chatd
    book = state.store.prices
    return json_response(
        {
            "version": book.version,
            "currency": book.currency,
            "valid_from": book.valid_from,
            "computed": book.computed,
            "gpu_hit": book.gpu_hit,
            "disk_hit": book.disk_hit,
            "output": book.generated,
            "storage": book.storage,
            "books": [
                {"name": name, "currency": other.currency, "valid_from": other.valid_from, "note": other.note}
                for name, other in ((name, find_book(name)) for name in shipped_books())
            ],
        }
    )


async def storage(request: Request) -> Response:
    """KV that was kept on disk or pinned: by day, namespace and tier, and what it comes to by tier."""
    state: AppState = request.app.state.chatd
    _check_params(request)
    rows = await state.store.storage_report(_scope(request, state), _view(request))
    if not _wants_csv(request):
        return json_response({"rows": storage_of(rows), "totals": storage_sums_of(storage_sums(rows))})
    write_csv_storage(storage_of(rows), out := io.StringIO())
    return Response(UTF_8 + out.getvalue(), headers=_file("storage"), media_type="text/csv")


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
        namespace=visitor_of(request).namespace,
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
        Route("/turns", by_turn, methods=["GET"]),
        Route("/prices", prices, methods=["GET"]),
        Route("/{kind}", report, methods=["GET"]),
    ],
)
