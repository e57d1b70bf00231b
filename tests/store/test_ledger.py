"""The ledger's law, all endings, and one charge for one key."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from chatd.errors import Conflict, SetupError
from chatd.ids import ResponseId
from chatd.store.connect import make_engine
from chatd.store.flush_batch import AdmittedRow, DeliveredRow, EndedRow, FlushBatch, PieceRow, RunningRow
from chatd.store.prices import PriceBook
from chatd.store.records import ResponseStatus, RunCounters, Timings
from chatd.store.store import DATABASE_NAME, LedgerViolation, Store, StoreFailure
from tests.store.scribe import NS, OTHER, Scribe, asked, ids_of, opened, said

R = ResponseId


async def test_q1_every_ending_is_billed_once(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        for reason in ("end", "stop", "length", "cancelled", "failed"):
            for generated in (0, 3):
                rid = f"{reason}-{generated}"
                begun = await scribe.ask(asked(rid, *said(("user", rid)), prompt_len=100))
                assert begun.response.status is ResponseStatus.OPEN
                scribe.admit(R(rid), gpu_hit=40, disk_hit=24)
                if generated:
                    scribe.say(R(rid), "ab", held=1)
                await scribe.flush()
                scribe.end(R(rid), reason, preemptions=3)
                await scribe.flush()
                row = await store.response(NS, R(rid))
                assert (row.prompt_tokens, row.gpu_hit, row.disk_hit, row.computed) == (100, 40, 24, 36)
                assert (row.output_tokens, row.preemptions, row.finish_reason) == (generated, 3, reason)
                assert row.cost.total_nano == 64 * 100 + 36 * 1000 + generated * 2000
                assert row.cost.without_cache_nano == 100 * 1000 + generated * 2000
                assert row.timings == Timings(queue_ms=1.0, total_ms=20.5)
                assert row.error_code == ("engine_failure" if reason == "failed" else "")
        report = await store.verify(lambda: RunCounters(**scribe.counters))
        assert report.ok, report.findings
        assert report.responses == 10
        total = (await store.sessions_report()).totals[0]
        sessions = (await store.sessions_report(NS)).sessions
        assert total.cost_nano == sum(session.cost_nano for session in sessions)
        assert total.output_tokens == 15


async def test_q1_a_request_that_never_ran_costs_an_explicit_zero(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        await scribe.ask(asked("r1", *said(("user", "q"))))
        scribe.end(R("r1"), "cancelled")
        await scribe.flush()
        row = await store.response(NS, R("r1"))
        assert (row.prompt_len, row.prompt_tokens, row.output_tokens) == (10, 0, 0)
        assert (row.cost.total_nano, row.cost.without_cache_nano, row.cost.saved_nano) == (0, 0, 0)
        assert row.admitted_at is None
        message = await store.message(NS, row.message_id)
        assert (message.text, message.token_ids, message.status) == ("", (), "cancelled")
        assert (await store.verify()).ok


async def test_an_open_row_shows_its_bill_so_far(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        await scribe.ask(asked("r1", *said(("user", "q"))))
        scribe.admit(R("r1"), gpu_hit=4)
        scribe.say(R("r1"), "abc")
        scribe.deliver(R("r1"), 2)
        await scribe.flush()
        row = await store.response(NS, R("r1"))
        assert (row.status, row.output_tokens, row.delivered, row.last_seq) == ("open", 3, 2, 1)
        assert row.cost.total_nano == 4 * 100 + 6 * 1000 + 3 * 2000
        assert (row.finish_reason, row.ended_at) == (None, None)


async def test_delivered_only_grows_even_after_the_end(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        await scribe.answer(asked("r1", *said(("user", "q"))), "abcdef")
        for count, seen in ((4, 4), (2, 4), (6, 6)):
            scribe.deliver(R("r1"), count)
            await scribe.flush()
            assert (await store.response(NS, R("r1"))).delivered == seen
        assert (await store.verify()).ok


def piece(from_seq: int, seq: int, said_text: str, *ends: int, rid: str = "r1") -> PieceRow:
    return PieceRow(R(rid), from_seq, seq, said_text, ids_of(said_text), ends)


ADMIT = AdmittedRow(R("r1"), 10, 0, 0, 10, at=1)
END = EndedRow(R("r1"), ResponseStatus.COMPLETED, "end", 2, (), at=2)

BREACHES: dict[str, dict[str, Any]] = {
    "unknown": {"running": (RunningRow(R("nobody"), 9),)},
    "already ended": {"running": (RunningRow(R("done"), 9),)},
    "admitted twice": {"admitted": (ADMIT,)},
    "buckets": {"admitted": (AdmittedRow(R("r2"), 10, 1, 1, 1, at=1),)},
    "generates before admission": {"running": (RunningRow(R("r2"), 1),)},
    "ends with tokens before admission": {"ended": (replace(END, response_id=R("r2")),)},
    "takes tokens back": {"running": (RunningRow(R("r1"), 1),)},
    "a gap": {"pieces": (piece(3, 3, "x", 1),)},
    "twice the same piece": {"pieces": (piece(1, 1, "x", 1),)},
    "an end missing": {"pieces": (piece(2, 3, "xy", 2),)},
    "ends short of the text": {"pieces": (piece(2, 2, "xy", 1),)},
    "ends that fall": {"pieces": (piece(2, 3, "xy", 3, 2),)},
    "ends twice": {"ended": (END, END)},
    "ends open": {"ended": (replace(END, status=ResponseStatus.OPEN),)},
}


@pytest.mark.parametrize("breach", BREACHES)
async def test_a_breach_of_the_law_stores_nothing(data_dir: Path, breach: str) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        await scribe.answer(asked("done", *said(("user", "q"))), "ok")
        for rid in ("r1", "r2"):
            await scribe.ask(asked(rid, *said(("user", "q"))))
        scribe.admit(R("r1"))
        scribe.say(R("r1"), "hi")
        await scribe.flush()
        before = await store.response(NS, R("r1"))
        good = (DeliveredRow(R("r1"), 1),)
        counters = RunCounters(**scribe.counters)
        batch = FlushBatch(scribe.run_id, counters, delivered=good, **BREACHES[breach])
        with pytest.raises(LedgerViolation):
            await store.flush(batch)
        assert await store.response(NS, R("r1")) == before
        assert (await store.verify()).ok


async def test_nothing_is_stored_without_a_run(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        with pytest.raises(LedgerViolation, match="no engine run"):
            await store.begin_response(asked("r1", *said(("user", "q"))))
        scribe = await Scribe.begin(store)
        await store.end_run()
        with pytest.raises(LedgerViolation, match="not running"):
            await scribe.flush()


@pytest.mark.parametrize(
    ("statement", "breach"),
    [
        ("UPDATE responses SET status = 'failed', finish_reason = 'failed'", "ends once"),
        ("UPDATE responses SET output_tokens = 1", "ends once"),
        ("UPDATE responses SET output_nano = 0", "ends once"),
        ("UPDATE responses SET gpu_hit = 9, computed = 1", "never change"),
        ("UPDATE responses SET computed = 9", "never change|CHECK"),
        ("DELETE FROM responses", "keeps its rows"),
        ("UPDATE engine_runs SET computed = computed + 1", "CHECK"),
        ("UPDATE messages SET parent_id = 'nobody'", "FOREIGN KEY"),
        ("UPDATE messages SET status = 'streaming'", "CHECK"),
        ("DELETE FROM messages WHERE role = 'user'", "FOREIGN KEY"),
    ],
)
async def test_the_database_itself_refuses(data_dir: Path, statement: str, breach: str) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        await scribe.answer(asked("r1", *said(("user", "q"))), "ok")
        await store.end_run()
    engine = make_engine(data_dir / DATABASE_NAME, begin="BEGIN IMMEDIATE", connections=1)
    with engine.connect() as connection, pytest.raises(IntegrityError, match=breach):
        connection.execute(text(statement))
    engine.dispose()


async def test_any_piece_can_be_cut_out_exactly(data_dir: Path) -> None:
    said_pieces = ["Grü", "", "ße", " 你好", "🙂", "x", "yz"]
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        await scribe.ask(asked("r1", *said(("user", "q"))))
        scribe.admit(R("r1"))
        scribe.say(R("r1"), *said_pieces[:3])
        scribe.say(R("r1"), said_pieces[3])
        await scribe.flush()
        scribe.say(R("r1"), *said_pieces[4:])
        scribe.end(R("r1"))
        await scribe.flush()
        for after in range(len(said_pieces) + 2):
            cut: list[str] = []
            for row in await store.pieces_after(R("r1"), after):
                assert row.from_seq == after + len(cut) + 1
                starts = (0, *row.piece_ends)
                cut += [row.text[a:b] for a, b in zip(starts, row.piece_ends, strict=False)]
                assert row.seq == after + len(cut)
                assert row.piece_ends[-1] == len(row.text)
            assert cut == said_pieces[after:]
        assert await store.pieces_after(R("nobody"), 0) == []
        assert (await store.verify()).ok


async def test_ids_that_are_not_known_stay_unknown(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        question = replace(said(("user", "q"))[0], token_ids=None)
        begun = await scribe.ask(asked("r1", question))
        scribe.end(R("r1"), "cancelled")
        batch = scribe.batch()
        await store.flush(replace(batch, ended=(replace(batch.ended[0], message_ids=None),)))
        path = await store.path_to(NS, begun.message_id)
        assert [message.token_ids for message in path] == [None, None]


async def test_q2_one_key_ten_times_at_once(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        calls = [scribe.ask(asked(f"r{n}", *said(("user", "q")), key="k")) for n in range(10)]
        begun = await asyncio.gather(*calls)
        assert [one.replay for one in begun].count(False) == 1
        assert len({one.response.id for one in begun}) == 1
        assert len({one.message_id for one in begun}) == 1
        rid = begun[0].response.id
        scribe.admit(rid)
        scribe.say(rid, "one answer")
        scribe.end(rid)
        await scribe.flush()
        late = await scribe.ask(asked("late", *said(("user", "q")), key="k"))
        assert (late.replay, late.response.id, late.response.status) == (True, rid, "completed")
        assert (late.conversation_id, late.user_message_id) == (
            begun[0].conversation_id,
            begun[0].user_message_id,
        )
        assert (await store.verify()).responses == 1
        assert (await store.sessions_report()).totals[0].turns == 1


async def test_q2_a_key_belongs_to_one_request_of_one_namespace(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        await scribe.ask(asked("r1", *said(("user", "q")), key="k"))
        with pytest.raises(Conflict, match="another request"):
            await scribe.ask(asked("r2", *said(("user", "something else")), key="k"))
        theirs = await scribe.ask(asked("r3", *said(("user", "q"), ns=OTHER), ns=OTHER, key="k"))
        assert not theirs.replay
        for n in range(3):
            assert not (await scribe.ask(asked(f"none{n}", *said(("user", "q"))))).replay


async def test_q2_a_key_is_remembered_over_a_restart_and_a_deletion(data_dir: Path) -> None:
    new = asked("r1", *said(("user", "q")), key="k")
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        begun = await scribe.answer(new, "a")
        await store.delete(NS, begun.conversation_id)
        await store.end_run()
    async with opened(data_dir, prefix="later") as store:
        scribe = await Scribe.begin(store)
        again = await scribe.ask(replace(new, response_id=R("r2")))
        assert (again.replay, again.response.id) == (True, "r1")


async def test_q2_a_key_can_be_looked_up_before_anything_is_planned(data_dir: Path) -> None:
    new = asked("r1", *said(("user", "q")), key="k")
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        assert await store.find_replay(NS, "k", new.request_hash) is None
        begun = await scribe.ask(new)
        found = await store.find_replay(NS, "k", new.request_hash)
        assert found == replace(begun, replay=True)
        assert await store.find_replay(OTHER, "k", new.request_hash) is None
        with pytest.raises(Conflict, match="another request"):
            await store.find_replay(NS, "k", b"another")


async def test_a_row_keeps_the_prices_it_was_opened_under(data_dir: Path) -> None:
    dear = PriceBook(version="dear", currency="EUR", computed=10**12, generated=10**12)
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        await scribe.answer(asked("r1", *said(("user", "q"))), "a")
        await store.end_run()
    async with opened(data_dir, prefix="later", prices=dear) as store:
        scribe = await Scribe.begin(store)
        await scribe.answer(asked("r2", *said(("user", "q"))), "a")
        old, new = await store.response(NS, R("r1")), await store.response(NS, R("r2"))
        assert (old.cost.currency, old.cost.total_nano) == ("CNY", 10 * 1000 + 2000)
        assert (new.cost.currency, new.cost.total_nano) == ("EUR", 11 * 10**6)
        totals = (await store.sessions_report()).totals
        assert [(total.currency, total.cost_nano) for total in totals] == [
            ("CNY", 12_000),
            ("EUR", 11_000_000),
        ]
        assert (await store.verify()).ok


async def test_a_price_book_cannot_change_under_its_name(data_dir: Path) -> None:
    async with opened(data_dir):
        pass
    with pytest.raises(SetupError, match="new version"):
        await Store.open(data_dir, prices=PriceBook(computed=1), clock=lambda: 1.0, new_id=lambda: "x")
    async with opened(data_dir):
        pass


async def test_a_closed_store_says_so(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        pass
    with pytest.raises(StoreFailure, match="closed"):
        await store.begin_run()
    await store.close()
