"""Where the running server is, small questions to it over HTTP, and what a lost connection is in words."""

import json
import os
import socket
import ssl
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
KEY_VARIABLE = "CHATD_KEY"
"""In the environment, not a flag: everybody on a machine sees the flags of its processes."""
POLL_S = 0.3
"""Between two looks at a server that is loading its model."""


class ServerRefused(ChatdError):
    """The server answered with an error; the message is the server's."""

    code = "server_refused"


def at(url: str) -> ServerAddress:
    """A server of which nothing but its address is known."""
    return ServerAddress(0, url, "")


def server_at(settings: Settings, url: str | None) -> ServerAddress:
    """The server at ``url``, or the one that has the data folder."""
    if url is not None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise SetupError(f"--url is {url}, but an address such as http://127.0.0.1:8000 is wanted.")
        return at(url.rstrip("/"))
    server = live_server(settings.data_dir)
    if server is None:
        raise SetupError(
            f"No server has the data folder {settings.data_dir} open. "
            "Start one with `chatd serve` in another terminal, or name one with --url."
        )
    return server


def credentials(server: ServerAddress) -> dict[str, str]:
    """The key in the environment, if there is one; else the operator's token, if the data folder is here."""
    if key := os.environ.get(KEY_VARIABLE):
        return {"Authorization": f"Bearer {key}"}
    return {OPERATOR_HEADER: server.token} if server.token else {}


def tls_of(server: ServerAddress) -> ssl.SSLContext | None:
    """For the server of the data folder: its own certificate is expected, whatever name that is for."""
    if not server.cert:
        return None
    context = ssl.create_default_context(cafile=server.cert)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


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


def get_json(server: ServerAddress, path: str) -> Any:
    """The JSON at ``path``.

    `NotFound` if there is none, `ServerRefused` for the server's other errors, `SetupError` for no answer.
    """
    return _checked(path, *_ask(server, Request(server.url + path, headers=credentials(server))))


def ask_operator(server: ServerAddress, method: str, path: str, body: object = None) -> Any:
    """What the server answers its operator; ``body`` is sent as JSON. Raises as `get_json` does."""
    return _checked(path, *_ask(server, _as_operator(server, method, path, body)))


def operator_lines(server: ServerAddress, method: str, path: str) -> Iterator[Any]:
    """The same for an answer in lines of JSON, each as soon as it is there."""
    try:
        with _opener(server).open(_as_operator(server, method, path), timeout=TIMEOUT_S) as answer:
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


def wait_ready(server: ServerAddress, progress: Callable[[str], None]) -> None:
    """Return once the server takes requests; ``progress`` hears what it is doing until then."""
    while True:
        status, body = _ask(server, Request(server.url + "/readyz"))
        if status == 200:
            return
        state = body.get("status") if isinstance(body, dict) else None
        if state not in ("loading", "stalled"):
            raise SetupError(
                f"The server at {server.url} is {state or 'not a chatd server'}; it takes no requests now."
            )
        progress(f"{body.get('what') or state} {round(100 * body.get('progress', 0))} %")
        time.sleep(POLL_S)


def _ask(server: ServerAddress, request: Request) -> tuple[int, Any]:
    try:
        with _opener(server).open(request, timeout=TIMEOUT_S) as answer:
            return answer.status, _body(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, _body(error.read())
    except (OSError, ValueError) as error:
        raise _unreachable(server.url, error) from None


def _opener(server: ServerAddress) -> urllib.request.OpenerDirector:
    """Loopback never goes through a proxy."""
    handlers: list[urllib.request.BaseHandler] = []
    if is_local(server.url):
        handlers.append(urllib.request.ProxyHandler({}))
    if (context := tls_of(server)) is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers)


def _unreachable(url: str, error: Exception) -> SetupError:
    reason = getattr(error, "reason", error)
    words = in_words(reason) if isinstance(reason, BaseException) else str(reason)
    return SetupError(f"The server at {url} cannot be reached: {words}.")


def _body(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None
