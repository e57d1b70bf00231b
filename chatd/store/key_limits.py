"""What a key may still do, and charging a turn to it, as functions of a connection.

Nothing is counted twice: the ledger's own rows are the count. A turn is charged in the transaction that opens
its row, with all it may come to; from the transaction that ends the row on, what it came to counts instead.
So limits hold to the unit among any number of requests at once, and after a crash, whose open rows are
settled before the next request.

- A request and its tokens count for a minute from when it was asked: while it runs with prompt and
  ``max_tokens``, then with what it used.
- Money counts in the period (UTC) in which a turn was asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from sqlalchemy import ColumnElement, Connection, Integer, case, func, select

from chatd.errors import BudgetSpent, InvalidParameter, RateLimited, Unauthorized
from chatd.store.key_records import Budget, Key, KeyUse, Left, Limits, Period, Room
from chatd.store.keys import find_key
from chatd.store.rollups import DAY_US
from chatd.store.schema import price_books, responses, usage_days

MINUTE_US = 60_000_000
SECOND_US = 1_000_000
TURNS_RETRY_S = 1
"""When one of several turns ends cannot be known."""

Wanted = dict[str, tuple[int, int]]
"""By limit, "requests" or "tokens": how much of it there is, and how much is asked for."""
Counted = Sequence[tuple[int, int]]
"""Requests of the last minute, oldest first: when they were asked, and their tokens."""


class NoRoom(RateLimited):
    """With what is left, for headers."""

    def __init__(self, message: str, retry_after_s: int, room: Room) -> None:
        super().__init__(message, retry_after_s)
        self.room = room


@dataclass(frozen=True, slots=True)
class Charge:
    """What a turn may come to: tokens of its prompt, of its answer, and money."""

    prompt_len: int
    max_tokens: int
    nano: int
    currency: str

    @property
    def tokens(self) -> int:
        return self.prompt_len + self.max_tokens


def charge(conn: Connection, name: str, asked: Charge, *, now: int) -> Room:
    """Checks that the key may ask this now; the caller opens the row in the same transaction.

    Unauthorized for one that is revoked, RateLimited or BudgetSpent for one without room, InvalidParameter
    for a turn that never has any.
    """
    key = find_key(conn, name)
    if key is None or key.revoked_at is not None:
        raise Unauthorized("The key was revoked.")
    limits = key.limits
    _check_turns(conn, name, limits)
    room = _check_minute(conn, name, limits, asked, now)
    if limits.budget is not None:
        _check_budget(conn, key, limits.budget, asked, now)
    return room


def use_of(conn: Connection, key: Key, *, now: int) -> KeyUse:
    """What counts against its limits now."""
    budget = key.limits.budget
    return KeyUse(
        **_used(conn, key.name, now),
        turns=_open_turns(conn, key.name),
        spent_nano=0 if budget is None else _spent(conn, key, budget, now),
        reserved_nano=0 if budget is None else _reserved(conn, key.name, budget, now),
    )


def _check_turns(conn: Connection, name: str, limits: Limits) -> None:
    if limits.turns is not None and _open_turns(conn, name) >= limits.turns:
        many = "one answer" if limits.turns == 1 else f"{limits.turns} answers"
        raise RateLimited(f"This key may have {many} under way at once. Wait for one to end.", TURNS_RETRY_S)


def _open_turns(conn: Connection, name: str) -> int:
    mine = (responses.c.key_id == name) & (responses.c.status == "open")
    return conn.execute(select(func.count()).where(mine)).scalar_one()


def _check_minute(conn: Connection, name: str, limits: Limits, asked: Charge, now: int) -> Room:
    wanted: Wanted = {}
    if limits.requests_per_min is not None:
        wanted["requests"] = limits.requests_per_min, 1
    if limits.tokens_per_min is not None:
        _refuse_impossible(asked, limits.tokens_per_min)
        wanted["tokens"] = limits.tokens_per_min, asked.tokens
    if not wanted:
        return Room()
    used = _used(conn, name, now)
    left = {what: limit - used[what] - more for what, (limit, more) in wanted.items()}
    if min(left.values()) < 0:
        raise _no_room(_last_minute(conn, name, now), wanted, now)
    whole_s = MINUTE_US / SECOND_US
    return Room(**{what: Left(limit, left[what], whole_s) for what, (limit, _) in wanted.items()})


def _no_room(counted: Counted, wanted: Wanted, now: int) -> NoRoom:
    """What there is instead, and how long to wait."""
    lefts: dict[str, Left] = {}
    waits: dict[str, int] = {}
    for what, (limit, more) in wanted.items():
        amounts = [(at, 1 if what == "requests" else tokens) for at, tokens in counted]
        used = sum(amount for _, amount in amounts)
        newest = counted[-1][0] if counted else now
        lefts[what] = Left(limit, max(0, limit - used), (newest + MINUTE_US - now) / SECOND_US)
        if used + more > limit:
            waits[what] = _wait_s(amounts, used + more - limit, now)
    what, wait_s = max(waits.items(), key=lambda item: item[1])
    said = f"This key may use {wanted[what][0]:,} {what} a minute. Wait {wait_s} s."
    return NoRoom(said, wait_s, Room(**lefts))


def _wait_s(amounts: Counted, excess: int, now: int) -> int:
    """Until enough of the oldest have left the minute."""
    for at, amount in amounts:
        excess -= amount
        if excess <= 0:
            return max(1, -(-(at + MINUTE_US - now) // SECOND_US))
    return MINUTE_US // SECOND_US


_TOKENS = case(
    (responses.c.status == "open", responses.c.prompt_len + responses.c.max_tokens),
    else_=responses.c.prompt_tokens + responses.c.output_tokens,
)


def _in_last_minute(name: str, now: int) -> ColumnElement[bool]:
    row = responses.c
    return (row.key_id == name) & (row.key_id != "") & (row.opened_at > now - MINUTE_US)


def _used(conn: Connection, name: str, now: int) -> dict[str, int]:
    query = select(func.count(), func.coalesce(func.sum(_TOKENS), 0, type_=Integer))
    requests, tokens = conn.execute(query.where(_in_last_minute(name, now))).one()
    return {"requests": requests, "tokens": tokens}


def _last_minute(conn: Connection, name: str, now: int) -> Counted:
    query = select(responses.c.opened_at, _TOKENS).where(_in_last_minute(name, now))
    rows = conn.execute(query.order_by(responses.c.opened_at, responses.c.seq))
    return [(at, count) for at, count in rows]


def _refuse_impossible(asked: Charge, limit: int) -> None:
    if asked.tokens > limit:
        raise InvalidParameter(
            f"The prompt has {asked.prompt_len:,} tokens and max_tokens is {asked.max_tokens:,}, but this "
            f"key may use {limit:,} tokens a minute. Lower max_tokens or shorten the prompt.",
            param="max_tokens",
        )


def _check_budget(conn: Connection, key: Key, budget: Budget, asked: Charge, now: int) -> None:
    if asked.currency != budget.currency:
        raise BudgetSpent(
            f"This key's budget is in {budget.currency}, and prices are in {asked.currency} now. "
            "Ask the operator for another key."
        )
    spent, reserved = _spent(conn, key, budget, now), _reserved(conn, key.name, budget, now)
    left = budget.nano - spent - reserved
    if asked.nano <= left:
        return
    until_s = max(1, (_ends(budget.period, now) - now) // SECOND_US)
    what = f"this {budget.period}'s budget of {_money(budget.nano)} {budget.currency}"
    held = f", of which answers under way hold {_money(reserved)}" if reserved else ""
    raise BudgetSpent(
        f"Of {what}, {_money(max(0, left))} is left{held}; this answer may cost up to {_money(asked.nano)}. "
        "Lower max_tokens, or wait for the next period.",
        until_s,
    )


def _spent(conn: Connection, key: Key, budget: Budget, now: int) -> int:
    """Of ended turns: the roll-ups know, in the transaction that ends them."""
    day = usage_days.c
    first, last = _days(budget.period, now)
    query = select(func.coalesce(func.sum(day.cost_nano), 0, type_=Integer))
    query = query.join(price_books, price_books.c.version == day.price_version)
    is_mine = (day.namespace == key.account) & (day.key_id == key.name)
    is_now = day.day.in_(range(first, last + 1))  # one by one: so that the index finds them
    found = conn.execute(query.where(is_mine, is_now, price_books.c.currency == budget.currency))
    return int(found.scalar_one())


def _reserved(conn: Connection, name: str, budget: Budget, now: int) -> int:
    row = responses.c
    first, _ = _days(budget.period, now)
    query = select(func.coalesce(func.sum(row.reserved_nano), 0, type_=Integer))
    mine = (row.key_id == name) & (row.status == "open") & (row.opened_at >= first * DAY_US)
    return int(conn.execute(query.where(mine)).scalar_one())


def _days(period: Period, now: int) -> tuple[int, int]:
    """The first and the last day of the period, since 1970-01-01."""
    today = now // DAY_US
    if period is Period.DAY:
        return today, today
    month = (_EPOCH + timedelta(days=today)).replace(day=1)
    following = (month + timedelta(days=31)).replace(day=1)
    return (month - _EPOCH).days, (following - _EPOCH).days - 1


def _ends(period: Period, now: int) -> int:
    return (_days(period, now)[1] + 1) * DAY_US


_EPOCH = date(1970, 1, 1)


def _money(nano: int) -> str:
    """Exact, without zeros at its end: 1_500_000_000 -> '1.5'."""
    whole, rest = divmod(nano, 1_000_000_000)
    return f"{whole:,}" + f".{rest:09d}".rstrip("0").rstrip(".")
