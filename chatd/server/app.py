"""The application and the server that runs it. Only the command line imports this."""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import ASGIApp

from chatd.errors import ChatdError, InvalidRequest, MethodNotAllowed, NotFound, SetupError, TooLarge
from chatd.server import (
    admin_api,
    archive_api,
    cache_page_api,
    health,
    keys_api,
    login_api,
    metrics,
    native_api,
    openai_api,
    openai_errors,
    openapi,
    reports_api,
    search_api,
)
from chatd.server.doorman import Doorman
from chatd.server.guards import Addresses, Guard
from chatd.server.http import error_response
from chatd.server.page import page_routes
from chatd.server.request_log import RequestLog
from chatd.server.state import AppState, ServerSettings
from chatd.server.transport import SocketProtocol
from chatd.server.ws import serve_socket

log = logging.getLogger(__name__)

WS_MAX_BYTES = 2 << 20
"""Above the limit for frames, so that a frame somewhat too large still gets its `error`."""
DELIVER_S = 0.5
"""For the last endings to reach the sockets, once the last answer has ended."""
GRACEFUL_S = 1
"""For HTTP requests and closing handshakes after that (uvicorn counts in whole seconds)."""
REPEAT_S = 0.5
"""A signal that comes sooner after the first is the same wish: supervisors and shells often send it both
to a process and to its group."""


class Application(Starlette):
    """Starlette with the guard around everything, its own error page included, and the log around that."""

    def __init__(self, state: AppState, routes: list[BaseRoute]) -> None:
        super().__init__(
            routes=routes,
            exception_handlers={ChatdError: _chatd_error, HTTPException: _http_error, Exception: _fault},
        )
        self.state.chatd = state
        self._addresses = Addresses(state.settings.host, state.settings.allowed_hosts)

    def build_middleware_stack(self) -> ASGIApp:
        state: AppState = self.state.chatd
        admitted = Doorman(super().build_middleware_stack(), state, _refused)
        guarded = Guard(admitted, self._addresses)
        return RequestLog(guarded, self.routes, state.http, state.new_id)


def create_app(state: AppState) -> Starlette:
    """Every route of the server. ``state.service`` may come later."""
    routes = [
        *health.ROUTES,
        metrics.ROUTE,
        openapi.ROUTE,
        *keys_api.ROUTES,
        admin_api.ROUTES,
        *cache_page_api.ROUTES,
        *search_api.ROUTES,
        *archive_api.ROUTES,
        *login_api.ROUTES,
        reports_api.ROUTES,
        native_api.ROUTES,
        openai_api.ROUTES,
        WebSocketRoute("/ws", serve_socket),
        *page_routes(state.settings.web_dir),
    ]
    return Application(state, routes)


async def _chatd_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ChatdError)
    return _refused(request, error)


def _refused(request: HTTPConnection, error: ChatdError) -> Response:
    """As the interface at that path says it."""
    state: AppState = request.app.state.chatd
    path = str(request.scope["path"]).removeprefix(state.settings.root_path)
    is_openai = path.startswith(openai_api.ROUTES.path + "/")
    return openai_errors.error_response(error) if is_openai else error_response(error)


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path, or not with that method."""
    assert isinstance(error, HTTPException)
    kinds: dict[int, type[ChatdError]] = {404: NotFound, 405: MethodNotAllowed, 413: TooLarge}
    response = await _chatd_error(request, kinds.get(error.status_code, InvalidRequest)(error.detail))
    response.status_code = error.status_code
    response.headers.update(error.headers or {})
    return response


async def _fault(request: Request, error: Exception) -> Response:
    """The middleware that calls this raises ``error`` again, so it is logged."""
    return await _chatd_error(request, ChatdError("internal error; the server's log has the details"))


def server_config(app: ASGIApp, settings: ServerSettings) -> uvicorn.Config:
    """uvicorn with everything said that its defaults leave open."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        root_path=settings.root_path,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        ws=SocketProtocol,
        ws_max_size=WS_MAX_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=settings.ping_interval_s,
        ws_ping_timeout=settings.ping_timeout_s,
        timeout_graceful_shutdown=GRACEFUL_S,
        lifespan="off",
        server_header=False,
        access_log=False,
        log_config=None,
    )


def check_tls(settings: ServerSettings) -> None:
    """`SetupError` for a certificate or a key that cannot be used."""
    if settings.tls_cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SetupError(
            f"{settings.tls_cert} and {settings.tls_key} cannot be used for TLS: {reason}.", param="tls_cert"
        ) from None


def bind(settings: ServerSettings) -> socket.socket:
    """Listen on the configured address. `SetupError` if it is taken or not ours."""
    with contextlib.ExitStack() as undo:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = undo.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            raise SetupError(
                f"Cannot listen on {settings.host}:{settings.port}: {_refusal(error)}"
            ) from error
        undo.pop_all()
    listener.setblocking(False)
    return listener


def _refusal(error: OSError) -> str:
    """Why an address cannot be listened on, and what to do."""
    if isinstance(error, socket.gaierror):
        return "no machine has that name. Choose an address of this machine with --host."
    match error.errno:
        case errno.EADDRINUSE:
            return "the port is taken. Is another server running? Choose another with --port."
        case errno.EADDRNOTAVAIL:
            return "this machine has no such address. Choose one that it has with --host."
        case errno.EACCES:
            return "only the system's administrator may use that port. Choose one above 1023 with --port."
        case _:
            return f"{error.strerror}. Choose another with --host or --port."


def page_url(listener: socket.socket, settings: ServerSettings) -> str:
    """Where browsers and commands on this machine find the server, without a slash at its end.

    ``root_path`` is no part of it: the proxy that has it cuts it off.
    """
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://{host}:{listener.getsockname()[1]}"


def ending_signals() -> list[signal.Signals]:
    """A closed terminal ends a server as gently as the others, unless it was told to outlive it (nohup)."""
    signals = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    return signals


class ChatdServer(uvicorn.Server):
    """uvicorn's server with our way of ending.

    At the first SIGTERM or SIGINT: no new connections, `server.draining` to every socket, running answers
    have ``drain_timeout_s`` (then the service cancels them) and their rows are settled; then sockets
    are closed with 1012 and `serve` returns. At the second signal it returns at once: what is
    open then is settled at the next start. ``on_started`` is called once connections are accepted.
    """

    def __init__(
        self, config: uvicorn.Config, state: AppState, on_started: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(config)
        self._state = state
        self._on_started = on_started
        self._forced = asyncio.Event()
        self._stopped_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """What the signals do. Call it on the event loop."""
        now = self._state.clock()
        if self.should_exit and now - self._stopped_at >= REPEAT_S:
            self.force_exit = True
            self._forced.set()
        elif not self.should_exit:
            self._stopped_at = now
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.stop)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn raises the signal again when done, which would end the process before its clean-up."""
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in ending_signals()}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._drain, tasks.cancel_scope)
            tasks.start_soon(self._wait_forced, tasks.cancel_scope)
        await super().shutdown(sockets)

    async def _drain(self, done: anyio.CancelScope) -> None:
        state = self._state
        state.begin_drain()
        if state.service is not None:
            await state.service.drain(state.settings.drain_timeout_s)
            await self._deliver()
        done.cancel()

    async def _deliver(self) -> None:
        """Give the endings time to reach the clients that still read."""
        with anyio.move_on_after(DELIVER_S):
            async with anyio.create_task_group() as tasks:
                for connection in self._state.connections:
                    tasks.start_soon(connection.until_idle)

    async def _wait_forced(self, done: anyio.CancelScope) -> None:
        await self._forced.wait()
        done.cancel()


async def serve(state: AppState, listener: socket.socket, on_started: Callable[[], None]) -> None:
    """Serve on ``listener`` until a signal, then end as `ChatdServer` says. Closes ``listener``."""
    config = server_config(create_app(state), state.settings)
    await ChatdServer(config, state, on_started).serve([listener])
