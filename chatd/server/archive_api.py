"""Conversations as files, for the page: those of one's own account out, anybody's in.

    GET  /api/v1/conversations/{id}/export?format=json|markdown&last=MESSAGE
    GET  /api/v1/export            all that are listed, as `chatd export` writes them
    POST /api/v1/import            a file of chatd, ChatGPT, Open WebUI or llama.cpp's page as the body

A file is read whole before anything of it is stored. It is stored some conversations at a time, so that
running answers do not wait for it; what is there already is left as it is, so the same file again goes on
where it was broken off. What of it is malformed is left out and named.
"""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from urllib.parse import quote

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from chatd.errors import InvalidParameter, NotFound
from chatd.ids import ConversationId, MessageId, Namespace
from chatd.imports.adopt import adopted, missing
from chatd.imports.errors import WrongFile
from chatd.imports.files import read_bytes
from chatd.imports.jsonl import conversation_line, head_line, whole_json
from chatd.imports.markdown import markdown_of
from chatd.server.http import json_response, read_body
from chatd.server.state import AppState
from chatd.server.visitors import visitor_of
from chatd.store.archive import Archived, Stored
from chatd.store.records import micros

MOST_BYTES = 64 << 20
STEP = 25
"""Conversations read, or stored, in one transaction."""
MOST_NAMED = 100
"""Of what was left out."""


async def export_one(request: Request) -> Response:
    """One conversation: as JSON with all branches, or as Markdown the branch that ends in ``last``."""
    state: AppState = request.app.state.chatd
    query = request.query_params
    wanted = query.get("format", "json")
    if wanted not in FORMATS:
        raise InvalidParameter("format must be json or markdown", param="format")
    ids = [ConversationId(request.path_params["id"])]
    found = await state.store.archived(visitor_of(request).namespace, ids)
    if not found:
        raise NotFound("there is no such conversation")
    media_type, ending, write = FORMATS[wanted]
    last = query.get("last")
    try:
        content = write(found[0], None if last is None else MessageId(last))
    except KeyError:
        raise NotFound("there is no such message in this conversation") from None
    return Response(content, headers=_attached(f"{found[0].title or 'chat'}.{ending}"), media_type=media_type)


FORMATS: dict[str, tuple[str, str, Callable[[Archived, MessageId | None], str | bytes]]] = {
    "json": ("application/json", "json", lambda one, last: whole_json([one], time.time())),
    "markdown": ("text/markdown", "md", markdown_of),
}
"""By name: the type of the content, the ending of the file's name, and how it is written."""


async def export_all(request: Request) -> Response:
    """JSON lines, written as they are read."""
    state: AppState = request.app.state.chatd
    account = visitor_of(request).namespace
    name = f"chatd-{time.strftime('%Y-%m-%d', time.gmtime())}.jsonl"
    lines = _lines(state, account, await state.store.listed_ids(account))
    return StreamingResponse(lines, headers=_attached(name), media_type="application/x-ndjson")


async def _lines(state: AppState, account: Namespace, ids: list[ConversationId]) -> AsyncIterator[bytes]:
    yield head_line(time.time())
    for start in range(0, len(ids), STEP):
        for one in await state.store.archived(account, ids[start : start + STEP]):
            yield conversation_line(one)


def _attached(name: str) -> dict[str, str]:
    """For a file that is to be saved: RFC 6266 and 5987."""
    plain = "".join(char if char.isprintable() and char not in '\\/:*?"<>|' else " " for char in name)
    safe = " ".join(plain.split())
    return {
        "cache-control": "no-store",
        "content-disposition": f"attachment; filename*=UTF-8''{quote(safe, safe='')}",
    }


async def import_file(request: Request) -> Response:
    """How many conversations and messages were stored, how many were there already, and what was left out."""
    state: AppState = request.app.state.chatd
    account = visitor_of(request).namespace
    raw = await read_body(request, MOST_BYTES)
    try:
        found = await to_thread.run_sync(read_bytes, raw, account, micros(time.time()))
    except WrongFile as error:
        raise InvalidParameter(f"This file cannot be imported: {error.message}.", param="file") from None
    read = found.conversations
    fresh = missing(read, await state.store.own_ids(account, [one.id for one in read]))
    stored = Stored(known=len(read) - len(fresh), left_out=tuple(found.left_out))
    for start in range(0, len(fresh), STEP):
        step = [adopted(one, account) for one in fresh[start : start + STEP]]
        stored += await state.store.store_archived(step)
    return json_response({**asdict(stored), "left_out": stored.left_out[:MOST_NAMED]})


ROUTES = [
    Route("/api/v1/conversations/{id}/export", export_one, methods=["GET"]),
    Route("/api/v1/export", export_all, methods=["GET"]),
    Route("/api/v1/import", import_file, methods=["POST"]),
]
