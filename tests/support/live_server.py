"""The real application on a real loopback port, in the test's own event loop, and clients for it."""

import asyncio
import contextlib
import itertools
import socket
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect

from chatd.server import protocol as wire
from chatd.server.app import ChatdServer, bind, create_app, server_config
from chatd.server.state import AppState, ServerSettings, Service
from chatd.store.prices import PriceBook
from chatd.store.store import Store
from tests.support.chat_lab import ME, ChatLab, chat_lab, counter_ids

EventT = TypeVar("EventT", bound=wire.ServerFrame)

_keys = itertools.count(1)


@dataclass(frozen=True)
class LiveServer:
    """``port`` is one that was free."""

    state: AppState
    server: ChatdServer
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator["Client"]:
        """``options`` as `websockets.connect` takes them, its ``uri`` too."""
        async with self.connect(**options) as socket:
            yield Client(socket)

    def connect(self, **options: Any) -> connect:
        chosen = {"subprotocols": [wire.SUBPROTOCOL], "compression": None, "proxy": None, **options}
        return connect(chosen.pop("uri", f"ws://127.0.0.1:{self.port}/ws"), **chosen)


class Client:
    """A client of chatd.v1 that checks the joins of every delta it is given."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.text: dict[str, str] = {}
        self.seq: dict[str, int] = {}
        self.errors: list[wire.Error] = []

    async def send(self, event: wire.ClientEvent) -> None:
        await self.socket.send(wire.encode(event), text=True)

    async def receive(self) -> wire.ServerEvent:
        event = wire.decode_server(await self.socket.recv())
        if isinstance(event, wire.ResponseDelta):
            assert event.from_seq == self.seq.get(event.response_id, event.from_seq - 1) + 1
            self.seq[event.response_id] = event.seq
            self.text[event.response_id] = self.text.get(event.response_id, "") + event.delta
        if isinstance(event, wire.Error):
            self.errors.append(event)
        return event

    async def until(self, kind: type[EventT]) -> EventT:
        """The next event of that kind; what comes before it is passed over."""
        while True:
            if isinstance(event := await self.receive(), kind):
                return event

    async def start(self, text: str = "hello", **fields: Any) -> wire.ResponseCreated:
        key = fields.pop("idempotency_key", f"key-{next(_keys)}")
        await self.send(wire.ResponseCreate(key, text, **fields))
        return await self.until(wire.ResponseCreated)

    async def ending(self, response_id: str) -> wire.AnyEnding:
        while True:
            event = await self.receive()
            if isinstance(event, wire.Ending) and event.response_id == response_id:
                assert isinstance(event, wire.AnyEnding)
                return event

    def reset(self) -> None:
        """Cut the TCP connection with RST, as a crash or a pulled cable does."""
        raw: socket.socket = self.socket.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.transport.abort()


def new_state(store: Store, service: Service | None = None, **settings: Any) -> AppState:
    ids = itertools.count(1)
    state = AppState(
        store=store,
        settings=ServerSettings(**{"port": 0, "drain_timeout_s": 0.1, **settings}),
        version="1.2.3",
        currency="CNY",
        clock=asyncio.get_running_loop().time,
        new_id=lambda: f"session-{next(ids)}",
        namespace=ME,
    )
    if service is not None:
        state.model_ready(service)
    return state


@contextlib.asynccontextmanager
async def running(state: AppState) -> AsyncIterator[LiveServer]:
    """Serve ``state`` until the block is left; then the server ends as a signal would end it."""
    listener = bind(state.settings)
    started = asyncio.Event()
    server = ChatdServer(server_config(create_app(state), state.settings), state, started.set)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        await started.wait()
        yield LiveServer(state, server, listener.getsockname()[1])
    finally:
        if not server.should_exit:
            server.stop()
        await serving
        listener.close()


@contextlib.asynccontextmanager
async def live_lab(
    data_dir: Path, *, lab: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[LiveServer, ChatLab]]:
    """A server over a whole service. ``lab`` as `chat_lab` takes it: by default, an engine moved by hand."""
    async with (
        chat_lab(data_dir, **({"by_hand": True} if lab is None else lab)) as chat,
        running(new_state(chat.store, chat.service, **settings)) as server,
    ):
        yield server, chat


@contextlib.asynccontextmanager
async def bare_server(data_dir: Path, **settings: Any) -> AsyncIterator[LiveServer]:
    """A server whose model is still loading."""
    store = await Store.open(data_dir, prices=PriceBook(), clock=time.time, new_id=counter_ids())
    try:
        async with running(new_state(store, **settings)) as server:
            yield server
    finally:
        await store.close()
