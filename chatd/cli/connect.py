"""Where the running server is, and small questions to it over HTTP."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from chatd.config import Settings, is_loopback
from chatd.data_dir import live_server
from chatd.errors import ChatdError, SetupError

TIMEOUT_S = 30.0
POLL_S = 0.3
"""Between two looks at a server that is loading its model."""


class ServerRefused(ChatdError):
    """The server answered with an error; the message is the server's."""

    code = "server_refused"


def server_url(settings: Settings, url: str | None) -> str:
    """``url`` without a slash at its end, or the address of the server that has the data folder."""
    if url is not None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise SetupError(f"--url is {url}, but an address such as http://127.0.0.1:8000 is wanted.")
        return url.rstrip("/")
    server = live_server(settings.data_dir)
    if server is None:
        raise SetupError(
            f"No server has the data folder {settings.data_dir} open. "
            "Start one with `chatd serve` in another terminal, or name one with --url."
        )
    return server.url


def is_local(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")


def get_json(url: str, path: str) -> Any:
    """The JSON at ``url + path``. `ServerRefused` for the server's own errors, `SetupError` for no answer."""
    status, body = _get(url, path)
    if status >= 400:
        error = body.get("error") if isinstance(body, dict) else None
        raise ServerRefused(
            error["message"] if error else f"The server answered {path} with status {status}."
        )
    return body


def wait_ready(url: str, progress: Callable[[str], None]) -> None:
    """Return once the server takes requests; ``progress`` hears what it is doing until then."""
    while True:
        status, body = _get(url, "/readyz")
        if status == 200:
            return
        state = body.get("status") if isinstance(body, dict) else None
        if state not in ("loading", "stalled"):
            raise SetupError(
                f"The server at {url} is {state or 'not a chatd server'}; it takes no requests now."
            )
        progress(f"{body.get('what') or state} {round(100 * body.get('progress', 0))} %")
        time.sleep(POLL_S)


def _get(url: str, path: str) -> tuple[int, Any]:
    handlers = [urllib.request.ProxyHandler({})] if is_local(url) else []
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(url + path, timeout=TIMEOUT_S) as answer:
            return answer.status, _body(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, _body(error.read())
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise SetupError(f"The server at {url} cannot be reached: {reason}.") from None


def _body(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None
