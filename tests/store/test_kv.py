"""What the database knows of KV: what is left of a path, what has to go, pins, causes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chatd.errors import Conflict, NotFound
from chatd.ids import ConversationId, ResponseId
from chatd.store.flush_batch import AdmittedRow, EndedRow, FlushBatch
from chatd.store.records import CauseSum, ResponseStatus, RunCounters
from chatd.store.store import Store
from tests.store.scribe import NS, OTHER, Scribe, asked, ids_of, opened, said

TEN = "0123456789"
"""A question of ten tokens: the whole prompt, as `asked` has it."""
R1 = ResponseId("r1")


@pytest.fixture
async def store(data_dir: Path) -> AsyncIterator[Store]:
    async with opened(data_dir) as store:
        yield store


async def test_a_row_keeps_where_its_prompt_came_from(store: Store) -> None:
    run_id = await store.begin_run()
    begun = await store.begin_response(asked("r1", *said(("user", TEN))))
    assert (begun.response.cause, begun.response.xray_json, begun.response.history_len) == ("", "", 0)
    counters = RunCounters(prompt_tokens=10, gpu_hit=5, computed=5)
    admitted = AdmittedRow(R1, 10, 5, 0, 5, 1, 7, "evicted", '{"x":1}')
    await store.flush(FlushBatch(run_id, counters, admitted=(admitted,)))
    record = await store.response(NS, R1)
    assert (record.cause, record.xray_json, record.history_len, record.kv_len) == ("evicted", '{"x":1}', 7, 0)
    assert await store.newest_xrays(10) == []  # of ended ones
    ended = EndedRow(R1, ResponseStatus.CANCELLED, "cancelled", 0, (), 2, kv_len=8)
    await store.flush(FlushBatch(run_id, counters, ended=(ended,)))
    record = await store.response(NS, R1)
    assert (record.cause, record.kv_len) == ("evicted", 8)
    assert await store.cause_sums() == [CauseSum("evicted", 1, 5)]
    [row] = await store.newest_xrays(10)
    assert (row.gpu_hit, row.computed, row.ttft_ms, row.xray_json) == (5, 5, None, '{"x":1}')
    assert (await store.verify()).ok


async def test_what_is_left_on_a_path(store: Store) -> None:
    scribe = await Scribe.begin(store)
    begun = await scribe.answer(asked("r1", *said(("system", ""), ("user", TEN))), "abc")
    path = await store.path_to(NS, begun.message_id)
    [left] = await store.kept_on(path)
    assert (left.message_id, left.parent_id) == (begun.message_id, begun.user_message_id)
    assert (left.prompt_len, left.kv_len, left.run_id, left.model) == (10, 13, scribe.run_id, "toy")
    again = asked("r2", conversation_id=begun.conversation_id, parent_id=begun.user_message_id)
    other = await scribe.answer(again, "d")
    assert [one.message_id for one in await store.kept_on(path)] == [begun.message_id]
    under = await store.kept_on(path[:-1])
    assert [one.message_id for one in under] == [begun.message_id, other.message_id]
    assert await store.kept_on(path[:1]) == []
    assert await store.kept_on([]) == []


async def test_a_killed_server_leaves_the_prompt(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        await scribe.ask(asked("r1", *said(("user", TEN))))
        scribe.admit(R1)
        scribe.say(R1, "ab")
        await scribe.ask(asked("r2", *said(("user", TEN))))
        await scribe.flush()
    async with opened(data_dir, prefix="later") as store:
        assert await store.settle() == 2
        assert (await store.response(NS, R1)).kv_len == 10
        assert (await store.response(NS, ResponseId("r2"))).kv_len == 0


async def test_deleting_notes_what_has_to_go(store: Store) -> None:
    scribe = await Scribe.begin(store)
    begun = await scribe.answer(asked("r1", *said(("user", TEN))), "abc")
    path = await store.path_to(NS, begun.message_id)
    assert path[-1].chain_key is not None
    after = said(("user", "9876"), under=path[-1].chain_key)
    second = asked(
        "r2", *after, conversation_id=begun.conversation_id, parent_id=begun.message_id, prompt_len=17
    )
    await scribe.answer(second, "de")
    kept = await scribe.answer(asked("r3", *said(("user", TEN), ns=OTHER), ns=OTHER), "x")
    assert await store.purges() == []
    await store.delete(NS, begun.conversation_id)
    [purge] = await store.purges()
    assert (purge.namespace, purge.token_ids) == (NS, ids_of(TEN + "abc" + "9876" + "de"))
    await store.purged([purge.seq])
    assert await store.purges() == []
    await store.delete(OTHER, kept.conversation_id)
    [theirs] = await store.purges()
    assert (theirs.namespace, theirs.token_ids) == (OTHER, ids_of(TEN + "x"))


async def test_histories_that_expire_are_noted_too(data_dir: Path) -> None:
    async with opened(data_dir, hidden_ttl_s=0.0, hidden_keep=1) as store:
        scribe = await Scribe.begin(store)
        for number in range(3):
            await scribe.answer(asked(f"r{number}", *said(("user", TEN)), hidden=True), str(number))
        await store.prune()
        assert [p.token_ids for p in await store.purges()] == [ids_of(TEN + str(n)) for n in range(3)]


async def test_what_never_had_kv_is_not_noted(store: Store) -> None:
    scribe = await Scribe.begin(store)
    begun = await scribe.ask(asked("r1", *said(("user", TEN))))
    ended = EndedRow(R1, ResponseStatus.CANCELLED, "cancelled", 0, (), 2)
    await store.flush(FlushBatch(scribe.run_id, RunCounters(), ended=(ended,)))
    await store.delete(NS, begun.conversation_id)
    assert await store.purges() == []


async def test_pins(store: Store) -> None:
    pin = await store.add_pin("house", NS, "system prompt", (1, 2, 3))
    await store.add_pin("other", OTHER, "conversation c", ())
    assert (pin.token_ids, pin.namespace) == ((1, 2, 3), NS)
    with pytest.raises(Conflict, match="house"):
        await store.add_pin("house", NS, "", (4,))
    assert [one.name for one in await store.pins()] == ["house", "other"]
    assert (await store.pins())[0] == pin
    await store.remove_pin("house")
    with pytest.raises(NotFound, match="house"):
        await store.remove_pin("house")
    assert [one.name for one in await store.pins()] == ["other"]


async def test_whose_a_conversation_is(store: Store) -> None:
    made = await store.create_conversation(OTHER)
    assert await store.owner_of(made.id) == OTHER
    with pytest.raises(NotFound):
        await store.owner_of(ConversationId("nowhere"))
