"""/api/v1/search: titles and texts of one's own conversations.

    GET /api/v1/search?q=WORDS&limit=20&before=CURSOR

Hits, titles first, in each the newest first; `next` of a page is `before` of the following, and a page may be
empty and yet have one. A snippet is a list of stretches; those with ``hit`` are what was looked for.
"""

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatd.errors import InvalidParameter
from chatd.server.http import json_response
from chatd.server.state import AppState
from chatd.server.visitors import visitor_of
from chatd.store.records import rfc3339
from chatd.store.search import MAX_PAGE, Hit


class Stretch(Struct, frozen=True):
    text: str
    hit: bool


class HitView(Struct, frozen=True):
    """``message_id`` and ``role`` are null where the title was found. ``at`` is RFC 3339, UTC."""

    conversation_id: str
    title: str
    message_id: str | None
    role: str | None
    at: str
    snippet: list[Stretch]


async def search(request: Request) -> Response:
    """Titles and texts that have all words of ``q``."""
    state: AppState = request.app.state.chatd
    query = request.query_params
    account = visitor_of(request).namespace
    page = await state.store.search(
        account, query.get("q", ""), _limit(query.get("limit")), query.get("before")
    )
    return json_response({"hits": [_view_of(hit) for hit in page.hits], "next": page.next})


def _limit(text: str | None) -> int:
    if text is None:
        return 20
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= MAX_PAGE):
        raise InvalidParameter(f"limit must be a whole number from 1 to {MAX_PAGE}", param="limit")
    return int(text)


def _view_of(hit: Hit) -> HitView:
    return HitView(
        conversation_id=hit.conversation_id,
        title=hit.title,
        message_id=hit.message_id,
        role=hit.role,
        at=rfc3339(hit.at),
        snippet=[Stretch(part.text, part.hit) for part in hit.snippet],
    )


ROUTES = [Route("/api/v1/search", search, methods=["GET"])]
