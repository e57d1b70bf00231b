"""Keys, their limits, and what is left of them: frozen values, no rows."""

from dataclasses import dataclass
from enum import StrEnum

from chatd.ids import Namespace


class KeyScope(StrEnum):
    """What a key is good for."""

    CHAT = "chat"
    """Conversations and answers."""
    REPORT = "report"
    """What the key's account used and cost."""
    ADMIN = "admin"
    """All that the operator may do: keys, the cache, metrics, verifying the ledger."""


class Period(StrEnum):
    """What a budget is for, in UTC."""

    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Budget:
    """At most ``nano`` billionths of ``currency`` a period."""

    nano: int
    period: Period
    currency: str


@dataclass(frozen=True, slots=True)
class Limits:
    """None: without limit. ``turns`` may be under way at once."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    turns: int | None = None
    budget: Budget | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """``prefix`` is how its secret begins, for people to know it by. Times are Unix microseconds."""

    name: str
    account: Namespace
    prefix: str
    scopes: frozenset[KeyScope]
    limits: Limits
    created_at: int
    revoked_at: int | None = None


@dataclass(frozen=True, slots=True)
class KeyUse:
    """What counts against a key's limits now. ``spent_nano`` is of ended turns of the budget's period,
    ``reserved_nano`` the most that those under way may still cost; both in the budget's currency, 0 without
    a budget. ``requests`` and ``tokens`` are of the last minute.
    """

    requests: int
    tokens: int
    turns: int
    spent_nano: int
    reserved_nano: int


@dataclass(frozen=True, slots=True)
class Left:
    """``remaining`` of ``limit`` a minute; all of it is there again in ``reset_s`` seconds."""

    limit: int
    remaining: int
    reset_s: float


@dataclass(frozen=True, slots=True)
class Room:
    """What a key has left after it was charged; None for what it has no limit of."""

    requests: Left | None = None
    tokens: Left | None = None


@dataclass(frozen=True, slots=True)
class Login:
    """A page that is logged in until ``expires_at``. ``hash`` is of its cookie; no key: the operator's."""

    hash: bytes
    key_name: str | None
    created_at: int
    expires_at: int
