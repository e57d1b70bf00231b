"""Where the running server is, small questions to it over HTTP, and what a lost connection is in words."""

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request

from chatd.config import Settings, is_loopback
from chatd.data_dir import ServerAddress, live_server
from chatd.errors import ChatdError, NotFound, SetupError

TIMEOUT_S = 30.0
OPERATOR_HEADER = "x-chatd-admin"
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


def in_words(error: BaseException) -> str:
    """What a failed connection means, without the system's numbers. Completes "cannot be reached: "."""
    match error:
        case ConnectionRefusedError():
            return "nothing listens at that address"
        case TimeoutError():
            return "it does not answer"
        case socket.gaierror():
            return "no machine has that name"
        case ConnectionError():
            return "the connection was cut"
        case OSError(strerror=None):  # several addresses were tried, each with its own reason
            return "nothing answers at that address"
        case OSError():
            return str(error.strerror).lower()
        case _:
            return str(error).rstrip(".")


def get_json(url: str, path: str) -> Any:
    """The JSON at ``url + path``.

    `NotFound` if there is none, `ServerRefused` for the server's other errors, `SetupError` for no answer.
    """
    return _checked(path, *_ask(url, Request(url + path)))


def ask_operator(server: ServerAddress, method: str, path: str, body: object = None) -> Any:
    """What the server answers its operator; ``body`` is sent as JSON. Raises as `get_json` does."""
    return _checked(path, *_ask(server.url, _as_operator(server, method, path, body)))


def operator_lines(server: ServerAddress, method: str, path: str) -> Iterator[Any]:
    """The same for an answer in lines of JSON, each as soon as it is there."""
    try:
        with _opener(server.url).open(_as_operator(server, method, path), timeout=TIMEOUT_S) as answer:
            yield from map(json.loads, answer)
    except urllib.error.HTTPError as error:
        _checked(path, error.code, _body(error.read()))
    except (OSError, ValueError) as error:
        raise _unreachable(server.url, error) from None


def _as_operator(server: ServerAddress, method: str, path: str, body: object = None) -> Request:
    data = None if body is None else json.dumps(body).encode()
    return Request(server.url + path, data, {OPERATOR_HEADER: server.token}, method=method)


def _checked(path: str, status: int, body: Any) -> Any:
    if status >= 400:
        error = body.get("error") if isinstance(body, dict) else None
        message = error["message"] if error else f"The server answered {path} with status {status}."
        raise NotFound(message) if status == 404 else ServerRefused(message)
    return body


def wait_ready(url: str, progress: Callable[[str], None]) -> None:
    """Return once the server takes requests; ``progress`` hears what it is doing until then."""
    while True:
        status, body = _ask(url, Request(url + "/readyz"))
        if status == 200:
            return
        state = body.get("status") if isinstance(body, dict) else None
        if state not in ("loading", "stalled"):
            raise SetupError(
                f"The server at {url} is {state or 'not a chatd server'}; it takes no requests now."
            )
        progress(f"{body.get('what') or state} {round(100 * body.get('progress', 0))} %")
        time.sleep(POLL_S)


def _ask(url: str, request: Request) -> tuple[int, Any]:
    try:
        with _opener(url).open(request, timeout=TIMEOUT_S) as answer:
            return answer.status, _body(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, _body(error.read())
    except (OSError, ValueError) as error:
        raise _unreachable(url, error) from None


def _opener(url: str) -> urllib.request.OpenerDirector:
    """Loopback never goes through a proxy."""
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if is_local(url) else []))


def _unreachable(url: str, error: Exception) -> SetupError:
    reason = getattr(error, "reason", error)
    words = in_words(reason) if isinstance(reason, BaseException) else str(reason)
    return SetupError(f"The server at {url} cannot be reached: {words}.")


def _body(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None
