"""The open rows kept between flushes are those of the database, whatever comes between."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection

from chatd.errors import Conflict
from chatd.ids import ResponseId
from chatd.store import ledger, open_cache
from chatd.store.errors import LedgerViolation, StoreFailure
from chatd.store.flush_batch import FlushBatch
from chatd.store.records import RunId
from chatd.store.schema import pieces, responses
from tests.store.scribe import NS, Scribe, asked, opened, said

TAKE = open_cache.take
ORPHAN = {"response_seq": 999, "from_seq": 1, "seq": 1, "text": "", "token_ids": b"", "piece_ends": bytes(4)}


def refused(conn: Connection) -> None:
    raise Conflict("no")


async def test_what_is_kept_is_what_is_stored(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flushes alone, beside other writes and in batches that fail; after openings, endings and violations."""
    seen = {True: 0, False: 0}

    def checked(conn: Connection, run_id: RunId) -> object | None:
        kept = TAKE(conn, run_id)
        seen[kept is not None] += 1
        if kept is not None:
            assert isinstance(kept, ledger.OpenRows)
            stored = ledger.load_open(conn, responses.c.run_id == run_id)
            assert kept._rows == stored._rows
        return kept

    monkeypatch.setattr(open_cache, "take", checked)
    dice = random.Random(4)
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        made: list[ResponseId] = []
        for number in range(250):
            if number % 7 == 0:
                rid = ResponseId(f"r{number}")
                await scribe.ask(asked(rid, *said(("user", rid))))
                scribe.admit(rid, gpu_hit=dice.randrange(5))
                made.append(rid)
            for rid in filter(scribe.is_running, made):
                scribe.say(rid, "x" * dice.randrange(1, 5))
                scribe.deliver(rid, dice.randrange(9))
                if dice.random() < 0.05:
                    scribe.end(rid, dice.choice(("end", "cancelled", "failed")))
            batch = scribe.batch()
            match dice.randrange(6):
                case 0:  # in one transaction with a job that fails, and one that does not
                    flushed, failed, other = await asyncio.gather(
                        store.flush(batch),
                        store._write(refused),
                        store.create_conversation(NS, "c"),
                        return_exceptions=True,
                    )
                    assert (flushed, isinstance(failed, Conflict)) == (None, True)
                    assert not isinstance(other, BaseException)
                case 1:  # the second half of one is wrong
                    await store.flush(batch)
                    for piece in batch.pieces[:1]:
                        grown = replace(piece, from_seq=piece.seq + 1, seq=2 * piece.seq - piece.from_seq + 1)
                        wrong = FlushBatch(batch.run_id, batch.counters, pieces=(grown, piece))
                        with pytest.raises(LedgerViolation):
                            await store.flush(wrong)
                case 2:  # a response is opened behind it, in the same transaction
                    late = ResponseId(f"late{number}")
                    await asyncio.gather(store.flush(batch), scribe.ask(asked(late, *said(("user", late)))))
                    scribe.admit(late)
                    made.append(late)
                case 3:
                    await store.create_conversation(NS, "c")
                    await store.flush(batch)
                case _:
                    await store.flush(batch)
        assert (await store.verify()).ok
    assert min(seen.values()) > 20, seen


async def test_nothing_is_kept_of_a_flush_whose_commit_failed(data_dir: Path) -> None:
    """A full disk shows at the commit, when all jobs have returned: the flush comes again, and finds what is
    stored, although nothing was written in between."""
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        rid = ResponseId("r")
        await scribe.ask(asked(rid, *said(("user", "Hi"))))
        scribe.admit(rid)
        await store.flush(scribe.batch())
        scribe.say(rid, "Hello")
        batch = scribe.batch()

        def fails_at_commit(conn: Connection) -> None:
            conn.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
            conn.execute(pieces.insert(), [ORPHAN])
            ledger.flush(conn, batch, now=1, hidden_ttl=1)

        with pytest.raises(StoreFailure, match="FOREIGN KEY"):
            await store._write(fails_at_commit)
        await store._write(lambda conn: None)
        await store.flush(batch)
        assert [piece.text for piece in await store.pieces_after(rid, 0)] == ["Hello"]
