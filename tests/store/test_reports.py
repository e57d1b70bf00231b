"""Reports against sums made by hand, and against SQL written for the purpose."""

import random
import sqlite3
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

from chatd.ids import Namespace, ResponseId
from chatd.price_file import find_book
from chatd.store.prices import PriceBook
from chatd.store.pricing import View
from chatd.store.session_report import SessionRow
from chatd.store.store import DATABASE_NAME, Store
from chatd.store.usage import Asked, By, Scope, StorageUse
from tests.store.scribe import NS, OTHER, STATUS, Scribe, asked, opened, said

ODD = PriceBook(
    version="odd", currency="CNY", computed=1_234_567, gpu_hit=98_765, disk_hit=55_555, generated=777_777
)

BY_HAND = """
    SELECT conversation_id, count(*), sum(prompt_tokens), sum(gpu_hit), sum(disk_hit), sum(computed),
           sum(output_tokens),
           sum(gpu_hit_nano) + sum(disk_hit_nano) + sum(computed_nano) + sum(output_nano),
           sum(without_cache_nano)
    FROM responses WHERE namespace = ? GROUP BY conversation_id
"""


async def some_turns(store: Store, scribe: Scribe, ns: Namespace, count: int, dice: random.Random) -> None:
    homes = [(await store.create_conversation(ns, f"{ns} {n}")).id for n in range(3)]
    for n in range(count):
        rid = ResponseId(f"{ns}-{n}")
        prompt_len = dice.randrange(1, 5000)
        new = asked(rid, *said(("user", rid), ns=ns), ns=ns, conversation_id=dice.choice(homes))
        new = asked(
            rid,
            *said(("user", rid), ns=ns),
            ns=ns,
            conversation_id=new.conversation_id,
            prompt_len=prompt_len,
        )
        await scribe.ask(new)
        if dice.random() < 0.9:
            hit = dice.randrange(prompt_len)
            scribe.admit(rid, gpu_hit=hit, disk_hit=dice.randrange(prompt_len - hit))
            scribe.say(rid, "x" * dice.randrange(50))
        scribe.end(rid, dice.choice(list(STATUS)))
        await scribe.flush()


def some_turns_of(count: int) -> Callable[[Store, Scribe], Awaitable[None]]:
    """So many turns in each of two namespaces."""

    async def write(store: Store, scribe: Scribe) -> None:
        for ns in (NS, OTHER):
            await some_turns(store, scribe, ns, count, random.Random(5))

    return write


def as_tuple(row: SessionRow) -> tuple[object, ...]:
    buckets = (row.prompt_tokens, row.gpu_hit, row.disk_hit, row.computed, row.output_tokens)
    return (row.session_id, row.turns, *buckets, row.cost_nano, row.without_cache_nano)


async def test_sessions_equal_sums_written_by_hand(data_dir: Path) -> None:
    dice = random.Random(5)
    async with opened(data_dir, prices=ODD) as store:
        scribe = await Scribe.begin(store)
        for ns in (NS, OTHER):
            await some_turns(store, scribe, ns, 30, dice)
        with closing(sqlite3.connect(data_dir / DATABASE_NAME)) as connection:
            for ns in (NS, OTHER):
                report = await store.sessions_report(ns)
                rows = connection.execute(BY_HAND, (ns,)).fetchall()
                assert sorted(map(as_tuple, report.sessions)) == sorted(rows)
        whole = await store.sessions_report()
        (total,) = whole.totals
        assert total.sessions == len(whole.sessions) == 6
        sums: dict[str, int] = defaultdict(int)
        for session in whole.sessions:
            for name in ("turns", "prompt_tokens", "gpu_hit", "disk_hit", "computed", "output_tokens"):
                sums[name] += getattr(session, name)
            sums["cost_nano"] += session.cost_nano
            sums["without_cache_nano"] += session.without_cache_nano
            assert session.saved_nano == session.without_cache_nano - session.cost_nano
            assert session.hit_rate == (session.gpu_hit + session.disk_hit) / session.prompt_tokens
        assert {name: getattr(total, name) for name in sums} == dict(sums)
        assert (await store.verify()).ok


async def test_every_row_is_rounded_by_itself(data_dir: Path) -> None:
    half = PriceBook(version="half", computed=50_000, gpu_hit=50_000, disk_hit=50_000, generated=0)
    async with opened(data_dir, prices=half) as store:
        scribe = await Scribe.begin(store)
        begun = await scribe.answer(asked("r0", *said(("user", "q"))), "a")
        for n in range(1, 4):
            again = asked(f"r{n}", conversation_id=begun.conversation_id, parent_id=begun.user_message_id)
            await scribe.answer(again, "a")
        (session,) = (await store.sessions_report()).sessions
        assert session.prompt_tokens == 40
        assert session.cost_nano == 4, "four times 0.5 rounded up, not 2.0"


async def test_an_open_response_counts_with_its_bill_so_far(data_dir: Path) -> None:
    async with opened(data_dir, prices=ODD) as store:
        scribe = await Scribe.begin(store)
        begun = await scribe.ask(asked("r1", *said(("user", "q")), prompt_len=1000))
        scribe.admit(begun.response.id, gpu_hit=321, disk_hit=99)
        scribe.say(begun.response.id, "x" * 77)
        await scribe.flush()
        (running,) = (await store.sessions_report()).sessions
        scribe.end(begun.response.id)
        await scribe.flush()
        (ended,) = (await store.sessions_report()).sessions
        assert running.cost_nano == ended.cost_nano > 0
        assert running.without_cache_nano == ended.without_cache_nano > running.cost_nano


async def test_zeros_stay_zeros(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        empty = await store.sessions_report()
        assert (empty.sessions, empty.totals) == ((), ())
        scribe = await Scribe.begin(store)
        await scribe.ask(asked("r1", *said(("user", "q"))))
        scribe.end(ResponseId("r1"), "cancelled")
        await scribe.flush()
        (session,) = (await store.sessions_report()).sessions
        assert (session.turns, session.prompt_tokens, session.gpu_hit, session.output_tokens) == (1, 0, 0, 0)
        assert (session.cost_nano, session.saved_nano, session.hit_rate) == (0, 0, 0.0)


async def test_a_limit_chooses_the_newest(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        for n in range(4):
            await scribe.answer(asked(f"r{n}", *said(("user", f"q{n}"))), "a")
        some = await store.sessions_report(limit=2)
        assert [session.title for session in some.sessions] == ["q3", "q2"]
        assert (some.totals[0].sessions, some.totals[0].turns) == (4, 4)


async def test_two_currencies_are_two_lines(data_dir: Path) -> None:
    """A server whose prices changed: each turn keeps the currency it was billed in."""
    for number, currency in enumerate(("CNY", "EUR")):
        book = PriceBook(version=currency, currency=currency)
        async with opened(data_dir, prices=book, prefix=currency) as store:
            scribe = await Scribe.begin(store)
            await scribe.answer(asked(f"r{number}", *said(("user", f"q{number}"))), "a")
            await store.end_run()
    async with opened(data_dir, prices=ODD, prefix="look") as store:
        found = await store.usage_report(Asked(By.MODEL))
        assert [(row.currency, row.turns) for row in found.rows] == [("CNY", 1), ("EUR", 1)]
        assert [(total.currency, total.sessions) for total in found.totals] == [("CNY", 1), ("EUR", 1)]
        view = View(book=find_book("deepseek-like"))
        (row,) = (await store.usage_report(Asked(By.MODEL, view=view))).rows
        assert (row.currency, row.turns) == ("CNY", 2)


async def test_open_turns_are_in_every_report(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        begun = await scribe.ask(asked("r1", *said(("user", "q")), prompt_len=100))
        scribe.admit(begun.response.id, gpu_hit=64)
        scribe.say(begun.response.id, "x" * 7)
        await scribe.flush()
        for by in By:
            found = await store.usage_report(Asked(by))
            (row,) = found.rows
            assert (row.turns, row.gpu_hit, row.output_tokens) == (1, 64, 7)
            assert row.cost_nano == 6_400 + 36_000 + 14_000
            assert found.totals[0].cost_nano == row.cost_nano
            assert found.totals[0].sessions == 1
            (again,) = (await store.usage_report(Asked(by, view=View(book=find_book("openai-like"))))).rows
            assert again.cost_nano == 125_000 + 70_000


async def test_storage_is_metered_by_the_day(data_dir: Path) -> None:
    gib_hour = 2**30 * 3600
    book = PriceBook(version="stored", storage=20_000_000)
    async with opened(data_dir, prices=book) as store:
        for _ in range(3):
            await store.add_storage(
                [StorageUse(NS, "disk", gib_hour // 2), StorageUse(OTHER, "pinned", gib_hour)]
            )
        rows = await store.storage_report(Scope())
        assert [(row.namespace, row.tier, row.byte_seconds, row.cost_nano) for row in rows] == [
            (NS, "disk", 3 * gib_hour // 2, 30_000_000),
            (OTHER, "pinned", 3 * gib_hour, 60_000_000),
        ]
        assert len(await store.storage_report(Scope(namespace=NS))) == 1
        assert await store.storage_report(Scope(last_day=1)) == ()
    async with opened(data_dir, prefix="later") as store:
        await store.add_storage([StorageUse(NS, "disk", 1)])
        rows = await store.storage_report(Scope(namespace=NS))
        assert [row.cost_nano for row in rows] == [None, 30_000_000], "no price is not a price of 0"
