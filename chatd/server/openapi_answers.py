"""Types of what routes make as dicts, for `openapi`: nothing is made with them."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from chatd.server import protocol as wire
from chatd.server import views


class NativeError(Struct, frozen=True):
    code: str
    message: str
    retryable: bool
    param: str | None


class NativeErrorBody(Struct, frozen=True):
    error: NativeError


class Health(Struct, frozen=True):
    status: str


class Ready(Struct, frozen=True):
    status: str
    progress: float
    what: str


class ConversationList(Struct, frozen=True):
    conversations: list[views.ConversationBrief]
    next: str | None


class Accepted(Struct, frozen=True):
    accepted: bool


class Estimated(Struct, frozen=True):
    """`cache.estimated`, without its key."""

    prompt_tokens: int
    gpu_hit: int
    disk_hit: int
    computed: int
    queue_ms: float
    restore_ms: float
    compute_ms: float
    ttft_ms: float
    cost: wire.PromptCost
    context_left: int
    max_tokens: int
    dropped_turns: int
    xray: wire.Xray


class Session(Struct, frozen=True):
    """Who one is. ``open``: nobody needs a key."""

    account: str
    key: str | None
    scopes: list[str]
    logged_in: bool
    open: bool


class Ticket(Struct, frozen=True):
    ticket: str
    expires_in: float


class LoginToken(Struct, frozen=True):
    token: str
    expires_in: float


class Key(Struct, frozen=True):
    """``secret`` and ``first`` only when it is made, ``use`` only in the list."""

    name: str
    account: str
    prefix: str
    scopes: list[str]
    requests_per_min: int | None
    tokens_per_min: int | None
    turns: int | None
    budget: dict[str, Any] | None
    created_at: str
    revoked_at: str | None
    use: dict[str, Any] | UnsetType = UNSET
    secret: str | UnsetType = UNSET
    first: bool | UnsetType = UNSET


class KeyList(Struct, frozen=True):
    keys: list[Key]


class SessionsReport(Struct, frozen=True):
    sessions: list[dict[str, Any]]
    totals: list[dict[str, Any]]


class Verdict(Struct, frozen=True):
    ok: bool
    unsettled: int | None
    settled: int
    findings: list[dict[str, str]]
    runs: int
    responses: int
    messages: int
    pieces: int


class Status(Struct, frozen=True):
    status: str
    version: str
    connections: int
    model: dict[str, Any] | None
    engine: dict[str, Any] | None


class UsageReport(Struct, frozen=True):
    by: str
    rows: list[dict[str, Any]]
    totals: list[dict[str, Any]]
    next: str | None


class StorageReport(Struct, frozen=True):
    rows: list[dict[str, Any]]
    totals: list[dict[str, Any]]
