"""Roll-ups: kept with every ending, rebuilt the same, and every kind of damage to them found."""

import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from chatd.ids import ResponseId
from chatd.store.connect import make_engine
from chatd.store.flush_batch import DeliveredRow, FlushBatch
from chatd.store.rollups import Turn, rebuild
from chatd.store.store import DATABASE_NAME, Store
from tests.store.scribe import NS, Scribe, asked, keep_ids, opened, said
from tests.store.test_verify import fill, tamper
from tests.store.usage_fixture import many_turns

ROLLUPS = ("usage_days", "usage_branches", "usage_sessions")


def dump(data_dir: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(data_dir / DATABASE_NAME)) as connection:
        return {
            table: sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr)
            for table in ROLLUPS
        }


@pytest_asyncio.fixture
async def filled(data_dir: Path) -> AsyncIterator[Path]:
    async with opened(data_dir) as store:
        await fill(store)
    yield data_dir


async def test_they_are_kept_as_they_would_be_worked_out(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        await many_turns(store, 60, random.Random(3))
        report = await store.verify()
        assert report.ok, report.findings
    kept = dump(data_dir)
    engine = make_engine(data_dir / DATABASE_NAME, begin="BEGIN IMMEDIATE", connections=1)
    with engine.begin() as connection:
        assert rebuild(connection) == 60
    engine.dispose()
    assert dump(data_dir) == kept
    assert all(kept.values())


async def test_an_ending_that_is_not_stored_counts_nowhere(data_dir: Path) -> None:
    """The roll-ups are in the ending's own transaction."""
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        await scribe.ask(asked("r1", *said(("user", "q"))))
        scribe.admit(ResponseId("r1"))
        scribe.say(ResponseId("r1"), "a")
        scribe.end(ResponseId("r1"))
        batch = scribe.batch()
        wrong = replace(batch, counters=replace(batch.counters, computed=batch.counters.computed + 1))
        with pytest.raises(Exception, match="constraint"):
            await store.flush(wrong)
        assert dump(data_dir)["usage_days"] == dump(data_dir)["usage_branches"] == []
        await store.flush(batch)
        assert len(dump(data_dir)["usage_days"]) == 1


async def test_settled_turns_count_too(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        await scribe.ask(asked("left", *said(("user", "q"))))
        scribe.admit(ResponseId("left"))
        scribe.say(ResponseId("left"), "half")
        await scribe.flush()
        assert dump(data_dir)["usage_days"] == []
    async with opened(data_dir, prefix="later") as store:
        assert await store.settle(keep_ids) == 1
        assert len(dump(data_dir)["usage_days"]) == 1
        assert (await store.verify()).ok


async def test_a_preempted_turn_is_counted_and_billed_once(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        for rid, preemptions in (("calm", 0), ("preempted", 3)):
            begun = await scribe.ask(asked(rid, *said(("user", rid)), prompt_len=100))
            scribe.admit(begun.response.id, gpu_hit=64)
            scribe.say(begun.response.id, "answer")
            scribe.end(begun.response.id, preemptions=preemptions)
            await scribe.flush()
        (calm, preempted) = reversed((await store.sessions_report()).sessions)
        assert calm.cost_nano == preempted.cost_nano
        with closing(sqlite3.connect(data_dir / DATABASE_NAME)) as connection:
            sums = connection.execute("SELECT turns, preemptions, computed FROM usage_days").fetchone()
        assert sums == (2, 3, 72)


async def test_generated_sent_and_acknowledged_stay_apart(data_dir: Path) -> None:
    """Each may only grow, nobody has what was not sent, and only what was generated is billed."""
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        rid = (await scribe.ask(asked("r1", *said(("user", "q"))))).response.id

        async def told(sent: int, arrived: int) -> tuple[int, int, int]:
            delivered, acknowledged = (DeliveredRow(rid, sent),), (DeliveredRow(rid, arrived),)
            await store.flush(replace(scribe.batch(), delivered=delivered, acknowledged=acknowledged))
            row = await store.response(NS, rid)
            return row.output_tokens, row.delivered, row.acknowledged

        scribe.admit(rid)
        scribe.say(rid, "0123456789")
        assert await told(6, 2) == (10, 6, 2)
        assert await told(4, 1) == (10, 6, 2)
        assert await told(6, 99) == (10, 6, 6)
        scribe.end(rid)
        before = (await store.response(NS, rid)).cost
        assert await told(8, 7) == (10, 8, 7)
        assert await told(10, 99) == (10, 10, 10)
        assert await told(0, 0) == (10, 10, 10)
        assert (await store.response(NS, rid)).cost.total_nano == before.total_nano
        assert (await store.verify()).ok


async def test_an_acknowledgement_alone_is_a_batch(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        begun = await scribe.answer(asked("r1", *said(("user", "q"))), "abc")
        scribe.deliver(begun.response.id, 3)
        await scribe.flush()
        empty: FlushBatch = scribe.batch()
        await store.flush(replace(empty, acknowledged=(DeliveredRow(begun.response.id, 2),)))
        assert (await store.response(NS, begun.response.id)).acknowledged == 2
        with closing(sqlite3.connect(data_dir / DATABASE_NAME)) as connection:
            for view in ("v_session_cost", "v_daily_cost"):
                query = f"SELECT output_tokens, sent_tokens, acknowledged_tokens FROM {view}"
                assert connection.execute(query).fetchall() == [(3, 3, 2)]


GROWN = {
    f"more {name}": f"UPDATE usage_days SET {name} = {name} + 1"
    for name in ("turns", "output_tokens", "cost_nano", "without_cache_nano", "recomputed", "timed_us")
}
DAMAGE = {
    **GROWN,
    "tokens moved to another bucket": "UPDATE usage_days SET gpu_hit = gpu_hit + 1, computed = computed - 1",
    "another day": "UPDATE usage_days SET day = day + 1",
    "another owner": "UPDATE usage_days SET namespace = 'bob'",
    "another model": "UPDATE usage_branches SET model = 'dear' WHERE conversation_id = 'id1'",
    "a day removed": "DELETE FROM usage_days",
    "a session's sums removed": "DELETE FROM usage_branches WHERE conversation_id = 'id1'",
    "the last session's sums removed": (
        "DELETE FROM usage_branches WHERE conversation_id = (SELECT max(conversation_id) FROM usage_branches)"
    ),
    "a session's cost": "UPDATE usage_branches SET cost_nano = cost_nano - 1 WHERE conversation_id = 'id1'",
    "sums that nobody made": (
        "INSERT INTO usage_branches SELECT 'zz', branch_id, day, namespace, key_id, model, price_version,"
        "turns, prompt_tokens, gpu_hit, disk_hit, computed, output_tokens, preemptions, recomputed,"
        "cost_nano, without_cache_nano, first_at, last_at, latencies FROM usage_branches LIMIT 1"
    ),
    "latencies removed": "UPDATE usage_days SET latencies = x''",
    "a latency more": "UPDATE usage_branches SET latencies = CAST(latencies || x'ff0001000000' AS BLOB)",
    "used earlier": "UPDATE usage_branches SET first_at = first_at - 1 WHERE conversation_id = 'id1'",
    "a session used later": "UPDATE usage_sessions SET last_at = last_at + 1 WHERE conversation_id = 'id1'",
    "a session removed": "DELETE FROM usage_sessions WHERE conversation_id = 'id1'",
    "a session that never was": "INSERT INTO usage_sessions VALUES ('zz', 'ann', 1, 2)",
    "another branch": (
        "UPDATE usage_branches SET branch_id = 'other' WHERE conversation_id = 'id1' AND branch_id = 'id1'"
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
async def test_damage_is_found(filled: Path, what: str) -> None:
    async with opened(filled, prefix="later") as store:
        assert (await store.verify()).ok
        tamper(filled, DAMAGE[what])
        report = await store.verify()
        assert {finding.check for finding in report.findings} == {"rollup"}, report.findings


async def test_a_row_on_another_branch_is_found(filled: Path) -> None:
    async with opened(filled, prefix="later") as store:
        tamper(filled, "UPDATE responses SET branch_id = 'other' WHERE id = 'r1'")
        report = await store.verify()
        assert {finding.check for finding in report.findings} == {"rollup", "branch"}


def test_a_hit_is_half_of_a_prompt() -> None:
    def turn(gpu: int, disk: int, computed: int) -> Turn:
        counts = (gpu + disk + computed, gpu, disk, computed)
        return Turn("c", "c", "n", "", "m", "p", 0, 1, *counts, 1, 0, 0, 0, 0, None, 10.0, None, None)

    assert turn(25, 25, 50).is_hit
    assert not turn(25, 24, 51).is_hit
    assert not turn(0, 0, 0).is_hit


async def test_branches_begin_where_the_tree_forks(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        branches = await _fork(store)
        assert branches["r1"] == branches["r3"] == "id1"
        assert branches["regenerated"] not in ("id1", branches["edited"])
        assert branches["edited"] != "id1"
        assert branches["after the edit"] == branches["edited"]
        assert (await store.verify()).ok


async def _fork(store: Store) -> dict[str, str]:
    """A first turn, another answer to it, a second turn, an edit of the first, and a turn after that."""
    scribe = await Scribe.begin(store)
    first = await scribe.answer(asked("r1", *said(("user", "q"))), "a")
    home = first.conversation_id
    await scribe.answer(asked("regenerated", conversation_id=home, parent_id=first.user_message_id), "b")
    await _under(store, scribe, "r3", first.message_id)
    edited = await scribe.answer(asked("edited", *said(("user", "Q")), conversation_id=home), "c")
    await _under(store, scribe, "after the edit", edited.message_id)
    rows = [await store.response(NS, ResponseId(rid)) for rid in ("r1", "regenerated", "r3", "edited")]
    rows.append(await store.response(NS, ResponseId("after the edit")))
    return {row.id: row.branch_id for row in rows}


async def _under(store: Store, scribe: Scribe, rid: str, message_id: object) -> None:
    above = (await store.path_to(NS, message_id))[-1]  # type: ignore[arg-type]
    assert above.chain_key is not None
    question = said(("user", rid), under=above.chain_key)
    await scribe.answer(
        asked(rid, *question, conversation_id=above.conversation_id, parent_id=above.id), "more"
    )
