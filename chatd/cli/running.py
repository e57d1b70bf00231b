"""One server from its lock to its last write.

    lock -> listen -> open the store -> serve at once, and meanwhile load -> ready
    signal -> drain (server/app.py) -> stop the engine -> close the run and the store -> unlock

HTTP is up while the model loads, so that the page and ``/readyz`` can say how far it is.
"""

import asyncio
import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable

import structlog
import torch

from chatd import __version__
from chatd.cache.block_tier import BLOCK_LEN
from chatd.cli.cores import compute_threads
from chatd.cli.ids import new_id
from chatd.cli.loading import Loaded, Progress, load
from chatd.cli.own_thread import in_own_thread
from chatd.cli.serve_screen import Facts, ServeScreen
from chatd.config import Settings, refuse_open_doors
from chatd.data_dir import ServerAddress, hold_data_dir, write_address
from chatd.engine.engine import Engine
from chatd.engine.messages import StepOutput
from chatd.errors import SetupError
from chatd.price_file import load_prices
from chatd.resources import web_dir
from chatd.server.app import ChatdServer, bind, check_tls, create_app, page_url, server_config
from chatd.server.service import ChatService, ServiceSettings
from chatd.server.state import AppState, ServerSettings
from chatd.store.store import Store

log = structlog.get_logger("chatd")

Loader = Callable[[Settings, Callable[[StepOutput], None], Progress], Loaded]

ENGINE_STOP_S = 2.0
"""For the step under way when the server ends."""
LEAST_WRITE_S = 1.0
"""For writing what is cached to disk, even if the answers took all the time there was for draining."""
DISK_CLOSE_S = 1.0
"""For the blocks that were handed to the disk already."""


async def run(settings: Settings, screen: ServeScreen, load: Loader = load) -> None:
    """Serve what ``load`` loads until a signal. `SetupError` if it cannot start as configured."""
    began = time.monotonic()
    prices = load_prices(settings.prices)
    torch.set_num_threads(compute_threads())
    addresses = _server_settings(settings)
    check_tls(addresses)
    with (
        hold_data_dir(settings.data_dir),
        contextlib.closing(bind(addresses)) as listener,
        contextlib.closing(screen),
    ):
        store = await Store.open(settings.data_dir, prices=prices, clock=time.time, new_id=new_id)
        try:
            state = AppState(
                store=store,
                settings=addresses,
                version=__version__,
                currency=prices.currency,
                clock=time.monotonic,
                new_id=new_id,
                admin_token=secrets.token_urlsafe(32),
            )
            await state.keys.load()
            if not state.keys.live_count:
                refuse_open_doors(settings)
            url = page_url(listener, addresses)
            server = LoadingServer(settings, state, screen, load, url=url, began=began)
            await server.serve_with_model(listener)
        finally:
            await store.close()


def _server_settings(settings: Settings) -> ServerSettings:
    try:
        page = web_dir()
    except SetupError as error:
        log.warning(error.message)
        page = None
    return ServerSettings(
        host=settings.host,
        port=settings.port,
        root_path=settings.root_path,
        allowed_hosts=settings.allowed_hosts,
        web_dir=page,
        drain_timeout_s=settings.drain_timeout,
        metrics_compat=settings.metrics_compat,
        trusted_proxies=settings.trusted_proxy,
        tls_cert=settings.tls_cert,
        tls_key=settings.tls_key,
    )


class LoadStopped(Exception):
    """Raised in the loading thread when the server is to end before its model is there."""


class LoadingServer(ChatdServer):
    """`ChatdServer` that loads its model while it serves. ``began`` is when the process did, monotonic."""

    def __init__(
        self,
        settings: Settings,
        state: AppState,
        screen: ServeScreen,
        load: Loader,
        *,
        url: str,
        began: float,
    ) -> None:
        super().__init__(server_config(create_app(state), state.settings), state, self._listening)
        self._settings = settings
        self._app = state
        self._screen = screen
        self._load = load
        self._url = url
        self._began = began
        self._load_no_more = threading.Event()
        self._served = asyncio.Event()
        self._stopping_at = began

    async def serve_with_model(self, listener: socket.socket) -> None:
        """Until a signal; or until loading fails, and then its error is raised."""
        model = asyncio.create_task(self._run_model())
        model.add_done_callback(self._end_if_failed)
        try:
            await self.serve([listener])
        finally:
            self._load_no_more.set()
            self._served.set()
            with contextlib.suppress(LoadStopped):
                await model

    def stop(self) -> None:
        """At the first and the second signal."""
        first = not self.should_exit
        self._load_no_more.set()
        super().stop()
        if first:
            self._stopping_at = time.monotonic()
            self._screen.stopping(self._settings.drain_timeout)

    def _listening(self) -> None:
        cert = self._settings.tls_cert
        address = ServerAddress(
            os.getpid(), self._url, __version__, self._app.admin_token, "" if cert is None else str(cert)
        )
        write_address(self._settings.data_dir, address)
        self._screen.listening(self._url)

    def _end_if_failed(self, model: asyncio.Task[None]) -> None:
        if not self.should_exit and not model.cancelled() and model.exception() is not None:
            super().stop()

    async def _run_model(self) -> None:
        """Load, then answer until the server has drained."""
        loop = asyncio.get_running_loop()

        def post(out: StepOutput) -> None:
            # A step that outlasts the server finds its loop closed: nobody is left to hear of it.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(service.on_step, out)

        loaded = await in_own_thread(
            lambda: self._load(self._settings, post, lambda *args: self._tell(loop, *args)), "chatd-load"
        )
        service = ChatService(
            backend=loaded.backend,
            store=self._app.store,
            settings=ServiceSettings(
                grace_s=self._settings.grace,
                retain_s=None if self._settings.retain_days is None else 86_400 * self._settings.retain_days,
            ),
            clock=time.time,
            new_id=new_id,
            on_disk=dict if loaded.disk is None else loaded.disk.kept_bytes,
        )
        service.listen(self._app.conversation_changed)
        try:
            async with service.running():
                loaded.engine.start()
                self._app.device = loaded.device
                self._app.disk = loaded.disk
                self._app.service = service
                self._screen.ready(self._facts(loaded))
                if not self._app.keys.is_open:
                    self._screen.keys(lambda: f"{self._url}/#login={self._app.keys.new_login_token(None)}")
                await self._served.wait()
                await asyncio.to_thread(self._stop_engine, loaded.engine)
        finally:
            if loaded.disk is not None:
                await asyncio.to_thread(loaded.disk.close, DISK_CLOSE_S)

    def _stop_engine(self, engine: Engine) -> None:
        """What is left of the drain's time, and a second in any case, goes into writing what is cached."""
        spent = time.monotonic() - self._stopping_at
        write_s = max(LEAST_WRITE_S, self._settings.drain_timeout - spent)
        engine.stop(ENGINE_STOP_S + write_s, write_s=write_s, progress=self._screen.writing)

    def _tell(self, loop: asyncio.AbstractEventLoop, share: float, what: str) -> None:
        """Called on the loading thread."""
        if self._load_no_more.is_set():
            raise LoadStopped
        loop.call_soon_threadsafe(self._show, share, what)

    def _show(self, share: float, what: str) -> None:
        self._app.progress, self._app.loading = share, what
        if not self.should_exit and self._app.service is None:
            self._screen.progress(share, what)

    def _facts(self, loaded: Loaded) -> Facts:
        disk = loaded.disk.stats() if loaded.disk is not None else None
        return Facts(
            url=self._url,
            data_dir=self._settings.data_dir,
            model=loaded.backend.model_name,
            context_length=loaded.backend.context_length,
            device=loaded.device,
            threads=torch.get_num_threads(),
            weights=loaded.weights,
            kernels=loaded.kernels,
            kv_dtype=loaded.kv_dtype,
            kv_bytes=loaded.kv.nbytes,
            bytes_per_token=loaded.kv.bytes_per_token,
            kv_tokens=loaded.kv.tokens,
            sessions=loaded.kv.tokens / loaded.backend.context_length,
            graphs=len(loaded.graphs),
            graph_bytes=loaded.graph_bytes,
            disk=self._settings.disk,
            disk_bytes=disk.nbytes if disk else 0,
            disk_quota_bytes=disk.quota_bytes if disk else 0,
            disk_tokens=disk.blocks * BLOCK_LEN if disk else 0,
            started_s=time.monotonic() - self._began,
        )
