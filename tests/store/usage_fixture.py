"""Turns of every kind: all endings, each cold, with a hit, with a hit on disk, and preempted."""

import asyncio
import itertools
import random
from dataclasses import replace
from pathlib import Path

from chatd.ids import ConversationId, Namespace, ResponseId
from chatd.store.flush_batch import EndedRow
from chatd.store.key_records import KeyScope, Limits
from chatd.store.keys import new_secret
from chatd.store.prices import PriceBook, Prices
from chatd.store.records import NewResponse, Timings
from chatd.store.store import Store
from tests.store.scribe import NS, OTHER, STATUS, Scribe, asked, opened, said

ODD = PriceBook(
    version="odd",
    computed=1_234_567_891,
    gpu_hit=98_765_432,
    disk_hit=55_555_555,
    generated=777_777_777,
    models=(("large", Prices(9_876_543_210, 7, 0, 5_000_000_001, 3)),),
)

KINDS = ("cold", "hit", "disk hit", "preempted")


def write_turns(data_dir: Path, count: int, *, seed: int) -> None:
    """A ledger at odd prices: `many_turns`, some minutes apart, which verify."""
    dice, now = random.Random(seed), 1_800_000_000.0

    def clock() -> float:
        nonlocal now
        now += dice.expovariate(1 / 300)
        return now

    async def write() -> None:
        async with opened(data_dir, prices=ODD, clock=clock) as store:
            await many_turns(store, count, dice)
            assert (await store.verify()).ok

    asyncio.run(write())


async def many_turns(store: Store, count: int, dice: random.Random) -> None:
    """``count`` turns over both namespaces and a few sessions, models and keys."""
    scribe = await Scribe.begin(store)
    await store.keys.create("k1", NS, frozenset(KeyScope), Limits(), new_secret())
    homes = {
        ns: [(await store.create_conversation(ns, f"{ns} {n}")).id for n in range(4)] for ns in (NS, OTHER)
    }
    kinds = itertools.cycle(itertools.product(STATUS, KINDS))
    for n in range(count):
        reason, kind = next(kinds)
        ns = dice.choice((NS, OTHER))
        await _turn(scribe, ns, homes[ns], n, reason, kind, dice)
    await store.end_run()


async def _turn(
    scribe: Scribe,
    ns: Namespace,
    homes: list[ConversationId],
    n: int,
    reason: str,
    kind: str,
    dice: random.Random,
) -> None:
    rid, prompt_len = ResponseId(f"{n}-{kind}-{reason}"), dice.randrange(2, 3000)
    new = asked(
        rid,
        *said(("user", rid), ns=ns),
        ns=ns,
        conversation_id=dice.choice(homes),
        prompt_len=prompt_len,
    )
    await scribe.ask(_with_model(new, dice))
    hit = 0 if kind == "cold" else dice.randrange(1, prompt_len)
    disk = dice.randrange(hit + 1) if kind == "disk hit" else 0
    never_ran = reason == "cancelled" and dice.random() < 0.3
    if not never_ran:
        scribe.admit(rid, gpu_hit=hit - disk, disk_hit=disk)
        scribe.say(rid, "x" * dice.randrange(1, 60))
    scribe.end(rid, reason, preemptions=3 if kind == "preempted" else 0)
    scribe._ended[-1] = _timed(scribe._ended[-1], prompt_len - hit, never_ran, dice)
    await scribe.flush()


def _with_model(new: NewResponse, dice: random.Random) -> NewResponse:
    return replace(new, model=dice.choice(("small", "large")), key_id=dice.choice(("", "k1")))


def _timed(row: EndedRow, computed: int, never_ran: bool, dice: random.Random) -> EndedRow:
    queue = dice.expovariate(1 / 8)
    if never_ran:
        return replace(row, timings=Timings(queue_ms=queue, total_ms=queue))
    ttft = queue + 12 + 0.6 * computed
    tpot = dice.uniform(12, 40) if row.generated > 1 else None
    total = ttft + row.generated * 25
    return replace(row, timings=Timings(queue, ttft, tpot, 40.0, total), recomputed=dice.randrange(200))
