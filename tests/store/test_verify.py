"""Verification finds every kind of tampering, and nothing where nothing is wrong."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from chatd.ids import ResponseId
from chatd.store.records import RunCounters
from chatd.store.store import DATABASE_NAME, Store
from tests.store.scribe import NS, Scribe, asked, keep_ids, opened, said


async def fill(store: Store) -> None:
    """Two turns and a regenerated answer, a continued one, hidden ones, a deleted conversation."""
    scribe = await Scribe.begin(store)
    first = await scribe.answer(asked("r1", *said(("system", "s"), ("user", "q"))), "one ", "two")
    await scribe.answer(
        asked("r2", conversation_id=first.conversation_id, parent_id=first.user_message_id), "other"
    )
    cut = await scribe.answer(asked("r3", *said(("user", "count"))), "1 2", reason="length")
    await scribe.answer(asked("r4", conversation_id=cut.conversation_id, continues=cut.message_id), " 3")
    hidden = asked("r5", *said(("user", "h"), ("assistant", "i"), ("user", "j")), hidden=True)
    await scribe.ask(hidden)
    scribe.admit(ResponseId("r5"), gpu_hit=4, disk_hit=2)
    scribe.say(ResponseId("r5"), "hit")
    scribe.deliver(ResponseId("r5"), 3)
    scribe.end(ResponseId("r5"))
    await scribe.flush()
    await scribe.ask(asked("r6", *said(("user", "never"))))
    scribe.end(ResponseId("r6"), "cancelled")
    gone = await scribe.answer(asked("r7", *said(("user", "gone"))), "gone")
    await store.delete(NS, gone.conversation_id)
    await store.end_run()


@pytest_asyncio.fixture
async def filled(data_dir: Path) -> AsyncIterator[Path]:
    async with opened(data_dir) as store:
        await fill(store)
    yield data_dir


def tamper(data_dir: Path, script: str) -> None:
    """As somebody with a shell would: no constraint and no trigger in the way."""
    with closing(sqlite3.connect(data_dir / DATABASE_NAME)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.executescript(script)


async def test_an_honest_ledger_has_no_findings(filled: Path) -> None:
    async with opened(filled, prefix="later") as store:
        assert await store.settle(keep_ids) == 0
        report = await store.verify()
        assert report.ok, report.findings
        assert (report.runs, report.responses, report.messages, report.pieces) == (1, 7, 12, 5)


ROW = "UPDATE responses SET {} WHERE id = '{}'"
TAMPERED = {
    "an ending turned into another": (ROW.format("status = 'failed'", "r1"), {"ending", "message"}),
    "an unknown status": (ROW.format("status = 'paid'", "r1"), {"ending", "message"}),
    "a reason removed": (ROW.format("finish_reason = NULL", "r1"), {"ending"}),
    "an end removed": (ROW.format("ended_at = NULL", "r1"), {"ending"}),
    "a bill removed": (ROW.format("output_nano = NULL", "r1"), {"ending", "cost"}),
    "a row reopened": (
        ROW.format(
            "status = 'open', finish_reason = NULL, ended_at = NULL, gpu_hit_nano = NULL,"
            "disk_hit_nano = NULL, computed_nano = NULL, output_nano = NULL, without_cache_nano = NULL",
            "r1",
        ),
        {"ending", "message", "text"},
    ),
    "a cheaper answer": (ROW.format("output_nano = output_nano - 1", "r1"), {"cost"}),
    "a dearer prompt": (ROW.format("computed_nano = computed_nano + 1", "r1"), {"cost"}),
    "a dearer hit": (ROW.format("gpu_hit_nano = gpu_hit_nano + 1", "r5"), {"cost"}),
    "a dearer disk hit": (ROW.format("disk_hit_nano = disk_hit_nano + 1", "r5"), {"cost"}),
    "larger savings": (ROW.format("without_cache_nano = without_cache_nano + 1", "r5"), {"cost"}),
    "a zero no longer zero": (ROW.format("output_nano = 1", "r6"), {"cost"}),
    "unknown prices": (ROW.format("price_version = 'none'", "r1"), {"cost"}),
    "other prices": ("UPDATE price_books SET generated = generated + 1000000", {"cost"}),
    "a bucket grown": (ROW.format("gpu_hit = gpu_hit + 1", "r1"), {"buckets", "cost", "run"}),
    "tokens moved to the cheap bucket": (
        ROW.format("gpu_hit = gpu_hit + 1, computed = computed - 1", "r1"),
        {"cost", "run"},
    ),
    "a negative bucket": (
        ROW.format("gpu_hit = -1, computed = computed + gpu_hit + 1", "r5"),
        {"buckets", "cost", "run"},
    ),
    "a longer prompt": (ROW.format("prompt_len = prompt_len + 1", "r1"), {"buckets"}),
    "an admission removed": (ROW.format("admitted_at = NULL", "r1"), {"buckets"}),
    "tokens never generated": (ROW.format("output_tokens = output_tokens + 1", "r1"), {"cost", "run"}),
    "tokens hidden": (ROW.format("output_tokens = output_tokens - 1", "r1"), {"cost", "run", "pieces"}),
    "negative delivery": (ROW.format("delivered = -1", "r1"), {"buckets"}),
    "a piece more": (ROW.format("last_seq = last_seq + 1", "r1"), {"pieces"}),
    "another place in the message": (ROW.format("base_len = base_len + 1", "r4"), {"text"}),
    "another message": (ROW.format("message_id = 'nobody'", "r1"), {"text"}),
    "somebody else's": (ROW.format("namespace = 'bob'", "r1"), {"message"}),
    "a row removed": ("DELETE FROM responses WHERE id = 'r2'", {"run", "pieces"}),
    "a row of a deleted conversation removed": ("DELETE FROM responses WHERE id = 'r7'", {"run"}),
    "a row doubled": (
        "CREATE TEMP TABLE twin AS SELECT * FROM responses WHERE id = 'r7';"
        "UPDATE twin SET seq = 99, id = 'twin'; INSERT INTO responses SELECT * FROM twin",
        {"run"},
    ),
    "a row moved to another run": (
        "INSERT INTO engine_runs SELECT 2, 'ended', 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0;"
        + ROW.format("run_id = 2", "r1"),
        {"run"},
    ),
    "a piece rewritten": ("UPDATE pieces SET text = 'ONE two' WHERE response_seq = 1", {"text"}),
    "a piece shortened": ("UPDATE pieces SET text = 'one tw' WHERE response_seq = 1", {"text", "pieces"}),
    "a piece removed": ("DELETE FROM pieces WHERE response_seq = 1", {"text", "pieces"}),
    "a piece renumbered": ("UPDATE pieces SET from_seq = 2 WHERE response_seq = 1", {"pieces"}),
    "a piece cut elsewhere": (
        "UPDATE pieces SET piece_ends = x'0900000007000000' WHERE response_seq = 1",
        {"pieces"},
    ),
    "a piece with more ids": (
        "UPDATE pieces SET token_ids = token_ids || x'01000000' WHERE response_seq = 1",
        {"pieces"},
    ),
    "a piece of a deleted conversation": (
        "INSERT INTO pieces SELECT (SELECT seq FROM responses WHERE id = 'r7'), 1, 4, 'gone', x'',"
        "x'01000000020000000300000004000000'",
        {"pieces"},
    ),
    "an answer rewritten": (
        "UPDATE messages SET text = 'one TWO' WHERE text = 'one two'",
        {"text", "chain"},
    ),
    "an answer lengthened": (
        "UPDATE messages SET text = text || '!' WHERE text = 'one two'",
        {"text", "chain"},
    ),
    "a question rewritten": ("UPDATE messages SET text = 'Q' WHERE text = 'q'", {"chain"}),
    "a question put in another mouth": ("UPDATE messages SET role = 'system' WHERE text = 'q'", {"chain"}),
    "a chain key changed": (
        "UPDATE messages SET chain_key = zeroblob(32) WHERE text = 'one two'",
        {"chain"},
    ),
    "another conversation's owner": ("UPDATE conversations SET namespace = 'bob'", {"chain", "message"}),
    "an unknown parent": ("UPDATE messages SET parent_id = 'nobody' WHERE text = 'q'", {"tree"}),
    "a parent in another conversation": (
        "UPDATE messages SET parent_id = (SELECT id FROM messages WHERE text = 'h') WHERE text = 'q'",
        {"tree"},
    ),
    "a message that is its own parent": ("UPDATE messages SET parent_id = id WHERE text = 'q'", {"tree"}),
    "a cycle": (
        "UPDATE messages SET parent_id = (SELECT id FROM messages WHERE text = 'one two') WHERE text = 's'",
        {"tree"},
    ),
    "a parent removed": ("DELETE FROM messages WHERE text = 'q'", {"tree"}),
    "an answer removed": ("DELETE FROM messages WHERE text = 'one two'", {"text"}),
    "an answer that never ended": (
        "UPDATE messages SET status = 'streaming', chain_key = NULL WHERE text = 'one two'",
        {"message"},
    ),
    "another status": ("UPDATE messages SET status = 'failed' WHERE text = 'one two'", {"message"}),
    "an unknown tip": ("UPDATE conversations SET tip_id = 'nobody'", {"tree"}),
    "no tip": ("UPDATE conversations SET tip_id = NULL", {"tree"}),
    "a conversation without its row": (
        "DELETE FROM conversations WHERE title = 'q'",
        {"tree", "pieces", "message"},
    ),
    "a run removed": ("DELETE FROM engine_runs", {"run"}),
    **{
        f"a run that counted {name} otherwise": (f"UPDATE engine_runs SET {name} = {name} + 1", {"run"})
        for name in ("prompt_tokens", "gpu_hit", "disk_hit", "computed", "generated")
    },
}


@pytest.mark.parametrize("what", TAMPERED)
async def test_tampering_is_found(filled: Path, what: str) -> None:
    script, checks = TAMPERED[what]
    async with opened(filled, prefix="later") as store:
        tamper(filled, script)
        report = await store.verify()
        found = {finding.check for finding in report.findings}
        # Whoever changes a row leaves the roll-ups behind, which has tests of its own.
        assert found - {"rollup", "branch"} == checks, report.findings


async def test_a_killed_server_is_a_state_and_no_fault(filled: Path) -> None:
    """What it left is checked all the same; only of the last run, and only until another one begins."""
    async with opened(filled, prefix="later") as store:
        scribe = await Scribe.begin(store)
        await scribe.ask(asked("left", *said(("user", "q"))))
        scribe.admit(ResponseId("left"))
        scribe.say(ResponseId("left"), "half")
        await scribe.flush()
    async with opened(filled, prefix="after") as store:
        report = await store.verify()
        assert (report.findings, report.unsettled, report.runs) == ((), 1, 2)
        tamper(filled, ROW.format("output_tokens = output_tokens + 1", "left"))
        report = await store.verify()
        assert ([finding.check for finding in report.findings], report.unsettled) == (["run"], 1)
        tamper(filled, ROW.format("output_tokens = output_tokens - 1", "left"))
        await store.begin_run()
        report = await store.verify()
        assert {finding.check for finding in report.findings} == {"ending", "run"}
        assert report.unsettled is None


async def test_only_the_last_run_can_have_been_killed(filled: Path) -> None:
    async with opened(filled, prefix="later") as store:
        await store.begin_run()
        await store.end_run()
        tamper(filled, "UPDATE engine_runs SET outcome = 'running' WHERE id = 1")
        report = await store.verify()
        assert ([finding.check for finding in report.findings], report.unsettled) == (["run"], None)


async def test_the_live_counters_may_be_ahead_never_behind(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        await scribe.ask(asked("r1", *said(("user", "q"))))
        scribe.admit(ResponseId("r1"))
        scribe.say(ResponseId("r1"), "abc")
        await scribe.flush()
        stored = RunCounters(**scribe.counters)
        ahead, behind = replace(stored, generated=4), replace(stored, generated=2)
        assert (await store.verify(lambda: stored)).ok
        assert (await store.verify(lambda: ahead)).ok
        assert [f.check for f in (await store.verify(lambda: behind)).findings] == ["live"]
        scribe.end(ResponseId("r1"))
        await scribe.flush()
        assert (await store.verify(lambda: stored)).ok
        assert [f.check for f in (await store.verify(lambda: ahead)).findings] == ["live"]


async def test_an_open_response_of_the_live_run_is_in_order(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        begun = await scribe.ask(asked("r1", *said(("user", "q"))))
        assert (await store.verify()).ok
        scribe.admit(begun.response.id)
        scribe.say(begun.response.id, "x")
        await scribe.flush()
        assert (await store.verify()).ok


async def test_a_snapshot_that_does_not_cover_its_rows_is_found(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        await scribe.ask(asked("r1", *said(("user", "q"))))
        scribe.admit(ResponseId("r1"))
        scribe.say(ResponseId("r1"), "abc")
        batch = scribe.batch()
        await store.flush(replace(batch, counters=replace(batch.counters, generated=2)))
        assert [finding.message for finding in (await store.verify()).findings] == [
            "generated: counted 2, rows say 3"
        ]
