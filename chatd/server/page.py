"""The built web page: index.html and what it loads, or a word about why it is missing."""

import os
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import PathLike, StaticFiles
from starlette.types import Scope

HASHED = "assets"
"""Vite puts files here whose names carry a hash of their content."""
FOREVER = "public, max-age=31536000, immutable"
ALWAYS_ASK = "no-cache"

NOT_BUILT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>chatd</title>
<h1>chatd is running, but its page was not built</h1>
<p>Run <code>pip install -e .</code> in the checkout (it builds the page), then start the server again.</p>
<p>The WebSocket at <code>ws</code> and the HTTP endpoints work all the same, and so does
<code>chatd chat</code>.</p>
</html>
"""


class PageFiles(StaticFiles):
    """Static files that may be kept for ever if their name has a hash, and never unasked otherwise."""

    def file_response(
        self, full_path: PathLike, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        hashed = Path(full_path).parent.name == HASHED
        response.headers["cache-control"] = FOREVER if hashed else ALWAYS_ASK
        return response


async def _not_built(request: Request) -> Response:
    return HTMLResponse(NOT_BUILT, 503, {"cache-control": "no-store"})


def page_names(web_dir: Path | None) -> frozenset[str]:
    """What lies at the top of the page's folder: open to everybody, for it has to show where to log in."""
    return frozenset() if web_dir is None else frozenset(path.name for path in web_dir.iterdir())


def page_routes(web_dir: Path | None) -> list[BaseRoute]:
    """Goes last: it takes every path that nothing before it took."""
    if web_dir is None:
        return [Route("/", _not_built)]
    return [Mount("/", PageFiles(directory=web_dir, html=True))]
