"""Keys: made, found, revoked; and limits, exact among requests at once and after a crash."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatd.errors import BudgetSpent, Conflict, InvalidParameter, NotFound, RateLimited, Unauthorized
from chatd.store.key_limits import Charge, NoRoom, _days, _money
from chatd.store.key_records import Budget, KeyScope, KeyUse, Left, Limits, Login, Period
from chatd.store.keys import PREFIX_CHARS, new_secret
from chatd.store.prices import PriceBook, Prices, Rules
from chatd.store.records import BegunResponse, NewResponse
from chatd.store.reserve import most_nano
from chatd.store.store import Store
from tests.store.scribe import NS, START, Scribe, asked, opened, said

CHAT = frozenset({KeyScope.CHAT})
NANO = 1_000_000_000
_names = itertools.count(1)


class Watch:
    """Unix seconds that go on when the test says so."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
async def store(data_dir: Path, watch: Watch) -> AsyncIterator[Store]:
    async with opened(data_dir, clock=watch) as store:
        yield store


async def key(store: Store, name: str = "k", **limits: object) -> str:
    secret = new_secret()
    await store.keys.create(name, NS, CHAT, Limits(**limits), secret)  # type: ignore[arg-type]
    return secret


def turn(name: str = "k", prompt_len: int = 10, max_tokens: int = 40) -> NewResponse:
    """A question in a new conversation."""
    rid = f"r{next(_names)}"
    new = asked(rid, *said(("user", rid)), prompt_len=prompt_len)
    return replace(new, key_id=name, max_tokens=max_tokens)


async def use(store: Store, name: str = "k") -> KeyUse:
    return next(use for one, use in await store.keys.uses() if one.name == name)


# --- keys -----------------------------------------------------------------------------------------


async def test_a_secret_is_not_in_the_database(store: Store, data_dir: Path) -> None:
    secret = await key(store)
    (sealed,) = await store.keys.all()
    assert sealed.opens(secret)
    assert not sealed.opens(secret[:-1])
    assert sealed.key.prefix == secret[:PREFIX_CHARS]
    await store.close()
    files = [path.read_bytes() for path in data_dir.iterdir()]  # noqa: ASYNC240 - the store is closed
    assert all(secret[PREFIX_CHARS:].encode() not in raw for raw in files)


async def test_a_name_is_used_once(store: Store) -> None:
    await key(store)
    await store.keys.revoke("k")
    with pytest.raises(Conflict):
        await key(store)
    with pytest.raises(NotFound):
        await store.keys.revoke("other")


async def test_revoking_logs_its_pages_out(store: Store) -> None:
    await key(store, "a")
    await key(store, "b")
    for name in ("a", "b", None):
        await store.keys.add_login(Login(repr(name).encode(), name, 1, 2**60))
    await store.keys.revoke("a")
    assert {login.key_name for login in await store.keys.logins()} == {"b", None}


async def test_a_revoked_and_an_unknown_key_may_ask_nothing(store: Store) -> None:
    await Scribe.begin(store)
    await key(store)
    await store.keys.revoke("k")
    for name in ("k", "nobody"):
        with pytest.raises(Unauthorized):
            await store.begin_response(turn(name))


# --- a minute -------------------------------------------------------------------------------------


async def test_requests_a_minute(store: Store, watch: Watch) -> None:
    scribe = await Scribe.begin(store)
    await key(store, requests_per_min=3)
    rooms = []
    for _ in range(3):
        rooms.append((await scribe.answer(turn(), "x")).room)
        watch.now += 10
    assert [room and room.requests for room in rooms] == [Left(3, n, 60.0) for n in (2, 1, 0)]
    with pytest.raises(NoRoom) as refused:
        await scribe.ask(turn())
    assert refused.value.retry_after_s == 30
    assert refused.value.room.requests == Left(3, 0, 50.0)
    watch.now += 29.9
    with pytest.raises(RateLimited):
        await scribe.ask(turn())
    watch.now += 0.2
    await scribe.answer(turn(), "x")


async def test_tokens_count_as_they_may_come_and_then_as_they_came(store: Store, watch: Watch) -> None:
    scribe = await Scribe.begin(store)
    await key(store, tokens_per_min=100)
    first = await scribe.ask(turn(prompt_len=10, max_tokens=80))
    assert first.room is not None
    assert first.room.tokens == Left(100, 10, 60.0)
    with pytest.raises(RateLimited):
        await scribe.ask(turn(prompt_len=1, max_tokens=10))
    scribe.admit(first.response.id)
    scribe.say(first.response.id, "12345")
    scribe.end(first.response.id)
    await scribe.flush()
    assert (await use(store)).tokens == 15
    again = await scribe.ask(turn(prompt_len=5, max_tokens=80))
    assert again.room is not None
    assert again.room.tokens == Left(100, 0, 60.0)


async def test_what_never_fits_is_told_apart_from_what_does_not_fit_now(store: Store) -> None:
    scribe = await Scribe.begin(store)
    await key(store, tokens_per_min=100)
    with pytest.raises(InvalidParameter, match="Lower max_tokens"):
        await scribe.ask(turn(prompt_len=50, max_tokens=51))


async def test_turns_at_once(store: Store) -> None:
    scribe = await Scribe.begin(store)
    await key(store, turns=2)
    first = await scribe.ask(turn())
    await scribe.ask(turn())
    with pytest.raises(RateLimited, match="2 answers"):
        await scribe.ask(turn())
    scribe.end(first.response.id, "cancelled")
    await scribe.flush()
    await scribe.ask(turn())


async def test_a_replay_is_charged_once(store: Store) -> None:
    scribe = await Scribe.begin(store)
    await key(store, requests_per_min=1)
    new = replace(turn(), idempotency_key="once")
    await scribe.answer(new, "x")
    assert (await scribe.ask(new)).replay
    assert (await use(store)).requests == 1


# --- money ----------------------------------------------------------------------------------------

BOOK = PriceBook()  # 1, 0.1 and 2 for a million: 1,000, 100 and 2,000 nano-units a token


def budget(nano: int, period: Period = Period.DAY, currency: str = "CNY") -> Budget:
    return Budget(nano, period, currency)


async def test_money_is_reserved_and_then_settled(store: Store) -> None:
    scribe = await Scribe.begin(store)
    most = most_nano(BOOK, "toy", 10, 40)
    assert most == 10 * 1000 + 2 + 40 * 2000
    await key(store, budget=budget(2 * most - 1))
    first = await scribe.ask(turn())
    assert await use(store) == KeyUse(1, 50, 1, 0, most)
    with pytest.raises(BudgetSpent, match=r"hold 0\.000090002") as refused:
        await scribe.ask(turn())
    assert 0 < refused.value.retry_after_s <= 86_400
    scribe.admit(first.response.id, gpu_hit=4)
    scribe.say(first.response.id, "12345")
    scribe.end(first.response.id)
    await scribe.flush()
    cost = 4 * 100 + 6 * 1000 + 5 * 2000
    assert await use(store) == KeyUse(1, 15, 0, cost, 0)
    await scribe.ask(turn())


@pytest.mark.parametrize("fits", [1, 7, 20])
async def test_a_budget_is_exact_among_many_at_once(store: Store, fits: int) -> None:
    await Scribe.begin(store)
    most = most_nano(BOOK, "toy", 10, 40)
    await key(store, budget=budget(fits * most))
    done = await asyncio.gather(*(store.begin_response(turn()) for _ in range(40)), return_exceptions=True)
    assert sum(isinstance(one, BegunResponse) for one in done) == fits
    assert sum(isinstance(one, BudgetSpent) for one in done) == 40 - fits
    assert (await use(store)).reserved_nano == fits * most


async def test_after_a_crash_what_was_stored_is_settled_and_the_rest_is_free(
    data_dir: Path, watch: Watch
) -> None:
    most = most_nano(BOOK, "toy", 10, 40)
    async with opened(data_dir, clock=watch) as store:
        scribe = await Scribe.begin(store)
        await key(store, budget=budget(2 * most))
        first, _ = await scribe.ask(turn()), await scribe.ask(turn())
        scribe.admit(first.response.id)
        scribe.say(first.response.id, "123")
        await scribe.flush()
    async with opened(data_dir, clock=watch, prefix="later") as store:
        assert (await use(store)).reserved_nano == 2 * most
        await store.settle()
        await store.begin_run()
        assert await use(store) == KeyUse(2, 13, 0, 10 * 1000 + 3 * 2000, 0)
        with pytest.raises(BudgetSpent):
            await store.begin_response(turn(prompt_len=2 * 10 * 45))
        await store.begin_response(turn())


async def test_a_period_ends(store: Store, watch: Watch) -> None:
    watch.now = datetime(2027, 2, 28, 23, 0, tzinfo=UTC).timestamp()
    scribe = await Scribe.begin(store)
    most = most_nano(BOOK, "toy", 10, 40)
    await key(store, "day", budget=budget(most))
    await key(store, "month", budget=budget(most, Period.MONTH))
    for name in ("day", "month"):
        begun = await scribe.ask(turn(name))
        scribe.admit(begun.response.id)
        scribe.say(begun.response.id, "x" * 40)
        scribe.end(begun.response.id)
        await scribe.flush()
        with pytest.raises(BudgetSpent) as refused:
            await scribe.ask(turn(name))
        assert refused.value.retry_after_s == 3600
    watch.now += 3600
    for name in ("day", "month"):
        await scribe.ask(turn(name))


async def test_a_budget_in_another_currency_is_closed(store: Store) -> None:
    await Scribe.begin(store)
    await key(store, budget=budget(10**15, currency="EUR"))
    with pytest.raises(BudgetSpent, match="another key"):
        await store.begin_response(turn())


amounts = st.integers(0, 3_000_000_000)


@given(
    prices=st.builds(Prices, amounts, amounts, amounts, amounts, amounts),
    least=st.integers(0, 100),
    unit=st.integers(1, 64),
    buckets=st.tuples(*[st.integers(0, 500)] * 3),
    output=st.integers(0, 300),
    spare=st.integers(0, 50),
)
def test_no_bill_is_above_what_was_reserved(
    prices: Prices, least: int, unit: int, buckets: tuple[int, int, int], output: int, spare: int
) -> None:
    book = PriceBook(models=(("toy", prices),), rules=Rules(least, unit))
    gpu_hit, disk_hit, computed = buckets
    cost = book.cost(gpu_hit=gpu_hit, disk_hit=disk_hit, computed=computed, output=output, model="toy")
    assert cost.total_nano <= most_nano(book, "toy", sum(buckets), output + spare)


@given(st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1)))
def test_days_of_a_month(at: datetime) -> None:
    first, last = _days(Period.MONTH, int(at.replace(tzinfo=UTC).timestamp() * 1_000_000))
    begins, ends = (datetime.fromtimestamp(day * 86_400, UTC) for day in (first, last))
    assert (begins.year, begins.month, begins.day) == (at.year, at.month, 1)
    assert (ends.year, ends.month) == (at.year, at.month)
    assert datetime.fromtimestamp((last + 1) * 86_400, UTC).day == 1


def test_money_in_words() -> None:
    assert [_money(nano) for nano in (0, 1, 1_500_000_000, 10 * NANO)] == ["0", "0.000000001", "1.5", "10"]
    assert Charge(3, 4, 0, "CNY").tokens == 7


# --- retention ------------------------------------------------------------------------------------


async def test_retention_deletes_what_was_not_used_and_keeps_the_money(store: Store, watch: Watch) -> None:
    scribe = await Scribe.begin(store)
    asked_old = turn("")
    asked_old = replace(asked_old, prompt_len=len(asked_old.new_messages[0].text))
    old = await scribe.answer(asked_old, "old")
    running = await scribe.ask(turn(""))
    watch.now += 100
    new = await scribe.answer(turn(""), "new")
    assert await store.retain(50) == 1
    page = await store.list_conversations(NS)
    kept = {conversation.id for conversation in page.conversations}
    assert kept == {running.conversation_id, new.conversation_id}
    assert (await store.response(NS, old.response.id)).cost.total_nano > 0
    assert [purge.namespace for purge in await store.purges()] == [NS]
    assert (await store.verify()).ok
