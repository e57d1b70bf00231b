"""AppState: what the routes of one server share, and where that server is in its life.

    loading -> ready <-> stalled -> draining

The model loads while the page and the health routes are up already; until `AppState.service` is set,
responses are answered with `not_ready`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from chatd.cache.disk.tier import DiskTier
from chatd.engine.messages import EngineCounters, EngineState
from chatd.engine.stream import TokenStream
from chatd.errors import Draining, NotReady
from chatd.ids import ConversationId, Namespace, ResponseId
from chatd.server.backend import Formats
from chatd.server.cache_service import CacheService
from chatd.server.commands import CreateCommand, Started
from chatd.server.estimates import Estimated
from chatd.server.figures import HttpFigures, ResponseFigures
from chatd.server.flush import ConversationListener
from chatd.server.keyring import Keyring
from chatd.server.looks import Looks
from chatd.server.protocol import ConversationUpdated
from chatd.server.views import update_of
from chatd.server.visitors import Visitor
from chatd.server.visits import Visit
from chatd.store.records import Conversation, ResponseRecord
from chatd.store.store import Store

LOCAL = Namespace("local")
"""The account of this machine's own user, who needs no key as long as there are none."""


class EngineHealth(Protocol):
    def stalled_for(self) -> float: ...


class ModelInfo(Protocol):
    """What the routes say about the model that is served."""

    @property
    def engine(self) -> EngineHealth: ...
    @property
    def model_name(self) -> str: ...
    @property
    def context_length(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def formats(self) -> Formats: ...
    @property
    def kv_bytes(self) -> int: ...
    @property
    def cache_on(self) -> bool: ...


class Service(Protocol):
    """What the routes ask of `ChatService`."""

    @property
    def backend(self) -> ModelInfo: ...
    @property
    def cache(self) -> CacheService: ...
    @property
    def figures(self) -> ResponseFigures: ...
    @property
    def counters(self) -> EngineCounters: ...
    @property
    def engine_state(self) -> EngineState: ...
    @property
    def store_healthy(self) -> bool: ...
    async def create(self, ns: Namespace, command: CreateCommand, by: Visitor | None = None) -> Started: ...
    def end_answers(self, key_id: str) -> None: ...
    async def cancel(self, ns: Namespace, response_id: ResponseId) -> None: ...
    async def subscribe(
        self, ns: Namespace, response_id: ResponseId, after_seq: int
    ) -> TokenStream[ResponseRecord]: ...
    def acknowledge(self, ns: Namespace, response_id: ResponseId, seq: int, tokens: int | None) -> None: ...
    async def estimate(self, ns: Namespace, command: CreateCommand) -> Estimated: ...
    def text_of(self, ids: tuple[int, ...]) -> str: ...
    async def count_tokens(self, ns: Namespace, command: CreateCommand) -> int: ...
    async def delete(self, ns: Namespace, conversation_id: ConversationId) -> None: ...
    async def drain(self, deadline: float) -> None: ...
    def listen(self, listener: ConversationListener) -> Callable[[], None]: ...


class Phase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    STALLED = "stalled"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Addresses and limits. Names ending in ``_s`` are seconds.

    ``trusted_proxies`` are networks whose X-Forwarded headers are believed. ``web_dir`` None means that the
    page was not built. A connection that takes no data for ``send_timeout_s`` is closed; one that answers no
    ping within ``ping_interval_s + ping_timeout_s`` too.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    root_path: str = ""
    allowed_hosts: tuple[str, ...] = ()
    web_dir: Path | None = None
    drain_timeout_s: float = 5.0
    heartbeat_s: float = 15.0
    send_timeout_s: float = 20.0
    ping_interval_s: float = 20.0
    ping_timeout_s: float = 20.0
    stall_s: float = 10.0
    max_responses: int = 32
    metrics_compat: str = "off"
    trusted_proxies: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None


class Inside(Protocol):
    """Who was let in, and may be shown out."""

    @property
    def visitor(self) -> Visitor: ...
    def show_out(self) -> None: ...


class Connection(Inside, Protocol):
    """One open WebSocket, as the rest of the server sees it."""

    async def until_idle(self) -> None: ...
    def drain(self, deadline_s: float) -> None: ...
    def conversation(self, update: ConversationUpdated) -> None: ...


@dataclass(slots=True)
class AppState:
    """``clock`` is monotonic seconds. ``progress`` (0 to 1) and ``loading`` say how far the model is.

    Who knows ``admin_token`` can read the data folder, and is the operator; "" lets nobody in.
    """

    store: Store
    settings: ServerSettings
    version: str
    currency: str
    clock: Callable[[], float]
    new_id: Callable[[], str]
    device: str = ""
    namespace: Namespace = LOCAL
    service: Service | None = None
    progress: float = 0.0
    loading: str = "starting"
    draining: bool = False
    connections: set[Connection] = field(default_factory=set)
    visits: set[Visit] = field(default_factory=set)
    """HTTP requests that are being answered."""
    admin_token: str = field(default="", repr=False)
    disk: DiskTier | None = None
    looks: Looks = field(default_factory=Looks)
    http: HttpFigures = field(default_factory=HttpFigures)
    keys: Keyring = field(init=False)

    def __post_init__(self) -> None:
        self.keys = Keyring(self.store.keys, self.namespace)

    @property
    def phase(self) -> Phase:
        if self.draining:
            return Phase.DRAINING
        if self.service is None:
            return Phase.LOADING
        stalled = self.service.backend.engine.stalled_for() > self.settings.stall_s
        return Phase.STALLED if stalled or not self.service.store_healthy else Phase.READY

    def model_ready(self, service: Service) -> None:
        """Responses may be asked for from now on."""
        self.service = service
        service.listen(self.conversation_changed)

    def ready_service(self) -> Service:
        """The service, or the error to answer with. A stalled engine may come round: it still queues."""
        if self.draining:
            raise Draining("the server is shutting down; connect again in a moment")
        if self.service is None:
            raise NotReady(f"the model is loading, {100 * self.progress:.0f} %")
        return self.service

    def conversation_changed(
        self, namespace: Namespace, conversation: Conversation, *, system_changed: bool = False
    ) -> None:
        """Tell every connection of that account."""
        update = update_of(conversation, system_changed=system_changed)
        for connection in list(self.connections):
            if connection.visitor.namespace == namespace:
                connection.conversation(update)

    def show_out(self) -> None:
        """Close the sockets, and end the requests, of everybody who would not be let in now."""
        inside: list[Inside] = [*self.connections, *self.visits]
        for one in inside:
            if not self.keys.is_good(one.visitor):
                one.show_out()

    def begin_drain(self) -> None:
        """Refuse new responses and tell every connection. Idempotent."""
        self.draining = True
        for connection in list(self.connections):
            connection.drain(self.settings.drain_timeout_s)
