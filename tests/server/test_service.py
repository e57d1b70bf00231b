"""ChatService over a real store and a real engine thread."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from chatd.engine.messages import Submit
from chatd.engine.plan import StepPlan
from chatd.engine.scheduler import Scheduler
from chatd.engine.stream import Delta, Ended, PrefillEvent, QueuedEvent
from chatd.errors import (
    Conflict,
    ContextTooLong,
    Draining,
    InvalidParameter,
    NotFound,
    NotReady,
    Overloaded,
    PromptTooLarge,
)
from chatd.ids import ConversationId, MessageId, Namespace, ResponseId
from chatd.server import flush
from chatd.server.service import ChatTurn, CreateCommand, ServiceSettings, Started
from chatd.store.flush_batch import FlushBatch
from chatd.store.prices import PriceBook
from chatd.store.records import (
    ROOT_KEY,
    MessageStatus,
    NewMessage,
    NewResponse,
    ResponseStatus,
    chain_key,
)
from chatd.store.store import Store
from tests.support.chat_lab import ME, Answer, ChatLab, chat_lab, read_to_end, saying, until
from tests.support.engines import TURN_END, Gate
from tests.support.patience import NOISE_S

LONG = "The quick brown fox jumps over the lazy dog. " * 3
pytestmark = pytest.mark.usefixtures("blocked_loop")


@pytest.fixture
async def lab(data_dir: Path) -> AsyncIterator[ChatLab]:
    async with chat_lab(data_dir) as lab:
        yield lab


@pytest.fixture
async def parrot(data_dir: Path) -> AsyncIterator[ChatLab]:
    """Always answers with `LONG`."""
    async with chat_lab(data_dir, saying(LONG)) as lab:
        yield lab


def params(**given: object) -> dict[str, Any]:
    """Greedy unless said otherwise, so that answers can be compared."""
    return {"params": {"temperature": 0, **given}}


def slow_steps(lab: ChatLab) -> None:
    """A millisecond a step, as a model would take: an endless answer stays under way for seconds."""
    lab.runner.before_step = lambda plan: time.sleep(0.001)


async def prompt_overhead(lab: ChatLab) -> int:
    """Tokens that the template adds to a single user message (a byte is a token)."""
    return (await lab.ask("x", **params(max_tokens=1))).record.prompt_len - 1


# -- one answer


async def test_an_answer_is_stored_as_it_was_shown(parrot: ChatLab) -> None:
    answer = await parrot.ask("hi")
    assert answer.text == LONG
    message = await parrot.message(answer.started.message_id)
    assert (message.text, message.status) == (LONG, MessageStatus.COMPLETED)
    assert message.token_ids == (*LONG.encode(), TURN_END)
    assert answer.record.status is ResponseStatus.COMPLETED
    assert answer.record.output_tokens == len(LONG) + 1
    timings = answer.record.timings
    assert timings.ttft_ms is not None
    assert timings.queue_ms is not None
    assert timings.total_ms is not None
    assert 0 <= timings.queue_ms <= timings.ttft_ms <= timings.total_ms


async def test_events_come_in_order_and_prefill_ends_whole(lab: ChatLab) -> None:
    gate = Gate()
    lab.runner.before_step = gate
    started = await lab.create("y" * 200, **params(max_tokens=3))
    stream = await lab.service.subscribe(ME, started.response_id)
    gate.open()
    events: list[object] = []
    while not events or not isinstance(events[-1], Ended):
        events.append(await stream.get())
    kinds = [type(event) for event in events]
    assert kinds == sorted(kinds, key=[QueuedEvent, PrefillEvent, Delta, Ended].index)
    last_prefill = next(event for event in reversed(events) if isinstance(event, PrefillEvent))
    assert last_prefill.done == last_prefill.total == last_prefill.computed


async def test_delivered_is_what_a_reader_took(parrot: ChatLab) -> None:
    answer = await parrot.ask()
    delivered = 0
    while delivered < answer.record.output_tokens:  # stored in a moment
        delivered = (await parrot.record(answer.record.id)).delivered
    assert delivered == answer.record.output_tokens


async def test_what_was_delivered_has_no_flush_of_its_own(
    lab: ChatLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece comes later than the tick that would have stored that the one before was taken."""
    monkeypatch.setattr(flush, "DELIVERED_S", 60.0)
    flushed: list[FlushBatch] = []
    store_flush = Store.flush

    async def noted(store: Store, batch: FlushBatch) -> None:
        flushed.append(batch)
        await store_flush(store, batch)

    monkeypatch.setattr(Store, "flush", noted)
    lab.runner.before_step = lambda plan: time.sleep(0.05)
    answer = await lab.ask(**params(max_tokens=8, ignore_eos=True))
    assert answer.record.output_tokens == 8
    assert [batch for batch in flushed if not (batch.admitted or batch.pieces or batch.ended)] == []
    assert any(batch.delivered for batch in flushed)


async def test_a_seed_is_drawn_and_kept(lab: ChatLab) -> None:
    first = await lab.ask("dice", **params(temperature=1, max_tokens=20))
    others = [await lab.ask("dice", **params(temperature=1, max_tokens=20)) for _ in range(3)]
    assert len({first.text, *(other.text for other in others)}) > 1
    seed = int(first.record.params_json.split('"seed":')[1].split(",")[0])
    again = await lab.ask("dice", **params(temperature=1, max_tokens=20, seed=seed))
    assert again.text == first.text


# -- conversations


async def test_the_next_turn_reuses_every_token_that_has_kv(lab: ChatLab) -> None:
    first = await lab.ask("one", **params(max_tokens=30))
    second = await lab.ask("two", conversation_id=first.started.conversation_id, **params(max_tokens=30))
    assert second.record.gpu_hit == first.record.prompt_len + first.record.output_tokens - 1
    assert second.record.prompt_len > second.record.gpu_hit
    third = await lab.ask("three", conversation_id=first.started.conversation_id, **params(max_tokens=30))
    assert third.record.gpu_hit == second.record.prompt_len + second.record.output_tokens - 1


async def stored_len(lab: ChatLab, answer: Answer) -> int:
    """Ids stored from the root down to an answer: by the law, just what the engine saw."""
    path = await lab.store.path_to(ME, answer.started.message_id)
    return sum(len(message.token_ids or ()) for message in path)


async def test_stored_ids_join_to_what_the_engine_saw(lab: ChatLab) -> None:
    system = await lab.store.create_conversation(ME, system="Be brief.")
    said = ["one"]
    for text in ("two", "three", "four"):
        session = await lab.ask(text, conversation_id=system.id, **params(max_tokens=9))
        stateless = await lab.ask("", messages=history(*said), **params(max_tokens=9))
        said += [stateless.text, text]
        for answer in (session, stateless):
            seen = answer.record.prompt_len + answer.record.output_tokens
            assert await stored_len(lab, answer) == seen
    again = await lab.ask("", kind="continue", target_id=session.started.message_id, **params(max_tokens=9))
    assert await stored_len(lab, again) == again.record.prompt_len + again.record.output_tokens


async def test_edit_and_regenerate_make_siblings(lab: ChatLab) -> None:
    first = await lab.ask("one", **params(max_tokens=8))
    assert first.started.user_message_id is not None
    other = await lab.ask(
        "", kind="regenerate", target_id=first.started.message_id, **params(max_tokens=8, temperature=1)
    )
    edited = await lab.ask(
        "uno", kind="edit", target_id=first.started.user_message_id, **params(max_tokens=8)
    )
    assert other.started.user_message_id is None
    regenerated = await lab.message(other.started.message_id)
    assert regenerated.parent_id == first.started.user_message_id
    assert edited.started.user_message_id is not None
    sibling = await lab.message(edited.started.user_message_id)
    assert (sibling.parent_id, sibling.text) == (None, "uno")
    same = {answer.started.conversation_id for answer in (first, other, edited)}
    assert len(same) == 1


async def test_continue_goes_on_as_if_it_had_never_stopped(lab: ChatLab) -> None:
    whole = await lab.ask("count", **params(max_tokens=20))
    half = await lab.ask("count", **params(max_tokens=8))
    rest = await lab.ask("", kind="continue", target_id=half.started.message_id, **params(max_tokens=12))
    assert rest.started.message_id == half.started.message_id
    assert half.text + rest.text == whole.text
    message = await lab.message(half.started.message_id)
    assert (message.text, message.token_ids) == (whole.text, tuple(whole.text.encode()))
    assert rest.record.gpu_hit == rest.record.prompt_len - 1


async def test_continue_after_an_end_of_text_drops_it(parrot: ChatLab) -> None:
    first = await parrot.ask("hi")
    await parrot.ask("", kind="continue", target_id=first.started.message_id, **params(max_tokens=4))
    message = await parrot.message(first.started.message_id)
    assert message.token_ids is not None
    assert TURN_END not in message.token_ids[: len(LONG)]
    assert bytes(message.token_ids).decode() == message.text


@pytest.mark.parametrize("kind", ["edit", "regenerate", "continue"])
async def test_targets_of_the_wrong_role(lab: ChatLab, kind: Any) -> None:
    first = await lab.ask("one", **params(max_tokens=4))
    wrong = first.started.message_id if kind == "edit" else first.started.user_message_id
    with pytest.raises(InvalidParameter) as caught:
        await lab.create("x", kind=kind, target_id=wrong)
    assert caught.value.param == kind
    with pytest.raises(InvalidParameter):
        await lab.create("x", kind=kind)
    with pytest.raises(NotFound):
        await lab.create("x", kind=kind, target_id=MessageId("nobody's"))


async def test_other_peoples_ids_are_unknown_ids(lab: ChatLab) -> None:
    mine = await lab.create("one", **params(max_tokens=4))
    you = Namespace("you")
    for ask in (
        lab.create("x", ns=you, conversation_id=mine.conversation_id),
        lab.create("x", ns=you, parent_id=mine.message_id),
        lab.create("", ns=you, kind="regenerate", target_id=mine.message_id),
        lab.service.subscribe(you, mine.response_id),
        lab.service.cancel(you, mine.response_id),
    ):
        with pytest.raises(NotFound):
            await ask
    await lab.read(mine)
    for late in (lab.service.subscribe(you, mine.response_id), lab.service.cancel(you, mine.response_id)):
        with pytest.raises(NotFound):
            await late


async def test_under_a_message_of_another_conversation(lab: ChatLab) -> None:
    one, two = await lab.ask("one", **params(max_tokens=2)), await lab.ask("two", **params(max_tokens=2))
    with pytest.raises(NotFound):
        await lab.create("x", conversation_id=one.started.conversation_id, parent_id=two.started.message_id)


async def test_nothing_goes_under_an_answer_being_written(lab: ChatLab) -> None:
    gate = Gate()
    lab.runner.before_step = gate
    running = await lab.create("one", **params(max_tokens=4))
    with pytest.raises(Conflict):
        await lab.create("two", conversation_id=running.conversation_id)
    gate.open()
    await lab.read(running)
    await lab.ask("two", conversation_id=running.conversation_id, **params(max_tokens=4))


async def test_p3_two_tabs_append(lab: ChatLab) -> None:
    """Both write to one conversation; who is told to wait tries again. One line, nothing lost."""
    first = await lab.ask("start", **params(max_tokens=2))
    conversation_id, rounds = first.started.conversation_id, 20

    async def tab(name: str) -> list[str]:
        sent: list[str] = []
        while len(sent) < rounds:
            try:
                await lab.ask(f"{name}{len(sent)}", conversation_id=conversation_id, **params(max_tokens=2))
            except Conflict:
                await asyncio.sleep(0)
            else:
                sent.append(f"{name}{len(sent)}")
        return sent

    both = await asyncio.gather(tab("a"), tab("b"))
    view = await lab.store.conversation(ME, conversation_id)
    messages = [entry.message for entry in view.messages]
    for parent, message in zip([None, *messages], messages, strict=False):
        assert message.parent_id == (parent.id if parent else None)
    said = [message.text for message in messages if message.role == "user"]
    assert sorted(said) == sorted(["start", *both[0], *both[1]])


# -- lengths


async def test_l2_around_the_context_limit(data_dir: Path) -> None:
    async with chat_lab(data_dir, context_length=200) as lab:
        fixed = await prompt_overhead(lab)
        last = await lab.ask("x" * (199 - fixed))
        assert (last.record.output_tokens, last.record.finish_reason) == (1, "length")
        for over in (200, 201, 2000):
            with pytest.raises(ContextTooLong) as caught:
                await lab.create("x" * (over - fixed))
            assert f"{over} tokens" in caught.value.message
            assert "200" in caught.value.message


async def test_l2_truncation_drops_whole_turns_and_says_so(data_dir: Path) -> None:
    async with chat_lab(data_dir, saying("ok"), context_length=300) as lab:
        conversation = await lab.store.create_conversation(ME, system="Be brief.")
        at, auto = conversation.id, params(truncation="auto", max_tokens=20)
        for turn in range(4):
            await lab.ask(f"{turn}" * 40, conversation_id=at, **auto)
        with pytest.raises(ContextTooLong):
            await lab.create("9" * 40, conversation_id=at, **params(max_tokens=20))
        answer = await lab.ask("9" * 40, conversation_id=at, **auto)
        assert answer.started.dropped_turns >= 1
        assert f'"dropped_turns":{answer.started.dropped_turns}' in answer.record.params_json
        asked = {"conversation_id": at, "idempotency_key": "k", **auto}
        first, replay = [await lab.create("9" * 40, **asked) for _ in range(2)]
        assert replay.replay
        assert replay.dropped_turns == first.dropped_turns >= 1
        await lab.read(first)
        assert answer.record.prompt_len < 300
        again = await lab.ask("8" * 40, conversation_id=at, **auto)
        assert again.started.dropped_turns > answer.started.dropped_turns
        with pytest.raises(ContextTooLong):
            await lab.create("z" * 400, conversation_id=at, **auto)


async def test_l3_max_tokens(data_dir: Path) -> None:
    async with chat_lab(data_dir, context_length=200) as lab:
        one = await lab.ask("one", **params(max_tokens=1))
        assert (one.record.output_tokens, len(one.text)) == (1, 1)
        rest = await lab.ask("all", **params(max_tokens=None))
        assert rest.record.prompt_len + rest.record.output_tokens == 200
        assert rest.record.output_tokens == len(rest.text)
        clamped = await lab.ask("all", **params(max_tokens=2**31 - 1))
        assert clamped.text == rest.text
        with pytest.raises(InvalidParameter):
            await lab.create("none", **params(max_tokens=0))


async def test_d1_too_big_for_the_pool(data_dir: Path) -> None:
    async with chat_lab(data_dir, num_pages=8, context_length=4096) as lab:
        capacity = lab.engine.capacity_len
        began = time.thread_time()
        with pytest.raises(PromptTooLarge) as caught:
            await lab.create("x" * 200)
        assert time.thread_time() - began < 0.1
        assert str(capacity) in caught.value.message
        with pytest.raises(PromptTooLarge):
            await lab.create("x", **params(max_tokens=capacity))
        whole = await lab.ask("x")
        assert whole.record.prompt_len + whole.record.output_tokens == capacity


@pytest.mark.parametrize("text", ["", " \n\t", "\ud800"])
async def test_l1_no_text(lab: ChatLab, text: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        await lab.create(text)
    assert caught.value.param == "input"


async def test_a_long_text_is_planned_off_the_loop(data_dir: Path) -> None:
    async with chat_lab(data_dir, num_pages=4096, context_length=50_000, step_tokens=4096) as lab:
        answer = await lab.ask("x" * 40_000, **params(max_tokens=1))
        assert answer.record.prompt_len > 40_000


# -- endings


async def test_q1_all_endings(data_dir: Path) -> None:
    """One terminal row each; what is billed is what the engine generated; explicit 0 stays 0."""
    async with chat_lab(data_dir, saying("abcdefghij"), max_running=4) as lab:
        end = await lab.ask("1")
        stop = await lab.ask("2", **params(stop="def"))
        limit = await lab.ask("3", **params(max_tokens=4))
        slow_steps(lab)
        endless = await lab.create("4", **params(ignore_eos=True))
        stream = await lab.service.subscribe(ME, endless.response_id)
        while not isinstance(await stream.get(), Delta):
            pass
        await lab.service.cancel(ME, endless.response_id)
        _, cancelled = await read_to_end(stream)
        lab.runner.bad = lambda row: len(row.ids) - row.prompt_len == 5
        failed = await lab.ask("5")
        lab.runner.bad = lambda row: False
        assert [
            (a.text, a.record.finish_reason, a.record.output_tokens) for a in (end, stop, limit, failed)
        ] == [
            ("abcdefghij", "end", 11),
            ("abc", "stop", 6),
            ("abcd", "length", 4),
            ("abcde", "failed", 5),
        ]
        assert failed.record.error_code == "bad_logits"
        assert cancelled.status is ResponseStatus.CANCELLED
        assert cancelled.output_tokens >= 1
        counters = lab.service.counters
        records = [a.record for a in (end, stop, limit, failed)] + [cancelled]
        assert counters.generated == sum(record.output_tokens for record in records)
        assert counters.prompt_tokens == sum(record.prompt_tokens for record in records)
        for record in records:
            assert record.prompt_tokens == record.gpu_hit + record.computed == record.prompt_len


async def test_b3_stop_before_the_first_token(data_dir: Path) -> None:
    async with chat_lab(data_dir, max_running=1) as lab:
        slow_steps(lab)
        running = await lab.create("one", **params(ignore_eos=True))
        waiting = await lab.create("two")
        stream = await lab.service.subscribe(ME, waiting.response_id)
        assert await stream.get() == QueuedEvent(1)
        began = time.monotonic()
        await lab.service.cancel(ME, waiting.response_id)
        deltas, record = await read_to_end(stream)
        assert time.monotonic() - began <= 0.1 + NOISE_S  # the one before it goes on for 4 s
        assert lab.service.engine_state.waiting == 0
        assert (deltas, record.finish_reason) == ([], "cancelled")
        assert (record.output_tokens, record.prompt_tokens, record.cost.total_nano) == (0, 0, 0)
        await lab.service.cancel(ME, running.response_id)
        await lab.service.cancel(ME, waiting.response_id)  # over: no error


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.full)])
async def test_b1_abort_anywhere(data_dir: Path, count: int) -> None:
    """Stopped or left by its reader at any moment: nothing is held, all is billed once."""
    dice = random.Random(count)

    async def one(lab: ChatLab, number: int) -> None:
        text = "x" * dice.randrange(1, 200)
        given = {"max_tokens": dice.randrange(1, 40), "seed": number}
        started = await lab.create(text, grace_s=0, params=given)
        stream = await lab.service.subscribe(ME, started.response_id)
        for _ in range(dice.randrange(6)):
            if isinstance(await stream.get(), Ended):
                return
        if dice.random() < 0.5:
            await lab.service.cancel(ME, started.response_id)
        stream.close()

    async with chat_lab(data_dir, num_pages=64, max_running=4) as lab:
        for first in range(0, count, 20):
            await asyncio.gather(*(one(lab, number) for number in range(first, first + 20)))
        await until(lambda: lab.service.open_count == 0)
        state = lab.service.engine_state
        assert (state.running, state.waiting) == (0, 0)
        assert state.free_pages + state.evictable_pages == state.total_pages
        reference = await lab.ask("x" * 100, **params(max_tokens=20))
        again = await lab.ask("x" * 100, ns=Namespace("cold"), **params(max_tokens=20))
        assert reference.text == again.text


async def test_cancel_while_the_row_is_being_opened(lab: ChatLab) -> None:
    """The id is known to nobody yet, but a drain cancels it all the same: it must not be lost."""
    slow_steps(lab)
    opening = asyncio.ensure_future(lab.create("one", **params(ignore_eos=True)))
    await until(lambda: lab.service.open_count > 0)
    await lab.service.drain(0)
    started = await opening
    assert (await lab.record(started.response_id)).status is ResponseStatus.CANCELLED


async def test_a_cancelled_create_leaves_nothing_or_a_response(lab: ChatLab) -> None:
    """Wherever the caller is cut off: the key finds what there is, and the ledger is right."""
    dice = random.Random(7)
    for attempt in range(60):
        command = CreateCommand(
            input=f"n{attempt}", idempotency_key=f"k{attempt}", params={"max_tokens": 3}, grace_s=0
        )
        call = asyncio.ensure_future(lab.service.create(ME, command))
        for _ in range(dice.randrange(40)):
            await asyncio.sleep(0)
        if dice.random() < 0.5:
            await asyncio.sleep(dice.random() * 0.003)
        call.cancel()
        await asyncio.wait([call])
    await until(lambda: lab.service.open_count == 0)
    for attempt in range(60):
        started = await lab.create(
            f"n{attempt}", idempotency_key=f"k{attempt}", params={"max_tokens": 3}, grace_s=0
        )
        answer = await lab.read(started)
        assert answer.record.status in (ResponseStatus.INCOMPLETE, ResponseStatus.CANCELLED)
    await lab.check()


# -- readers


@pytest.mark.parametrize("is_live", [True, False])
async def test_o1_cut_at_every_token(parrot: ChatLab, is_live: bool) -> None:
    """Read some, leave, come back with the last seq: each delta exactly once, joined = stored."""
    for cut in range(51):
        started = await parrot.create("hi", **params(max_tokens=60))
        stream = await parrot.service.subscribe(ME, started.response_id)
        deltas: list[Delta] = []
        while stream.cursor < cut:
            event = await stream.get()
            if isinstance(event, Delta):
                deltas.append(event)
        stream.close()
        if not is_live:
            await parrot.read(started)
        seq = stream.cursor
        rest = await parrot.read(started, after_seq=seq)
        joined = "".join(delta.text for delta in deltas) + rest.text
        assert joined == LONG[:60] == (await parrot.message(started.message_id)).text


async def test_o1_every_seq_can_be_resumed_from(parrot: ChatLab) -> None:
    answer = await parrot.ask("hi", **params(max_tokens=50))
    assert answer.record.last_seq == 50
    for seq in range(51):
        assert (await parrot.read(answer.started, after_seq=seq)).text == LONG[seq:50]
    with pytest.raises(InvalidParameter) as caught:
        await parrot.service.subscribe(ME, answer.started.response_id, 51)
    assert caught.value.param == "after_seq"


async def test_o2_never_come_back(data_dir: Path) -> None:
    """The policy: generation goes on for the grace, then is cancelled; the text so far is stored once."""
    async with chat_lab(data_dir, settings=ServiceSettings(grace_s=0.2)) as lab:
        slow_steps(lab)
        started = await lab.create("hi", **params(ignore_eos=True))
        stream = await lab.service.subscribe(ME, started.response_id)
        while not isinstance(await stream.get(), Delta):
            pass
        left_at, left_after = time.monotonic(), stream.cursor
        stream.close()
        await until(lambda: lab.service.open_count == 0)
        assert time.monotonic() - left_at >= 0.15
        answer = await lab.read(started)
        assert answer.record.status is ResponseStatus.CANCELLED
        assert answer.record.last_seq > left_after
        assert (await lab.message(started.message_id)).text == answer.text


async def test_o2_back_in_time(data_dir: Path) -> None:
    async with chat_lab(data_dir, settings=ServiceSettings(grace_s=0.2)) as lab:
        gate = Gate()
        lab.runner.before_step = gate
        started = await lab.create("hi", **params(max_tokens=50))
        (await lab.service.subscribe(ME, started.response_id)).close()
        stream = await lab.service.subscribe(ME, started.response_id)
        await asyncio.sleep(0.3)
        gate.open()
        _, record = await read_to_end(stream)
        assert record.status is ResponseStatus.INCOMPLETE


async def test_no_grace_ends_with_the_last_reader(lab: ChatLab) -> None:
    slow_steps(lab)
    started = await lab.create("hi", grace_s=0, **params(ignore_eos=True))
    one = await lab.service.subscribe(ME, started.response_id)
    two = await lab.service.subscribe(ME, started.response_id)
    one.close()
    while not isinstance(await two.get(), Delta):
        pass
    began = time.monotonic()
    two.close()
    await until(lambda: lab.service.open_count == 0)
    assert time.monotonic() - began < 1 + NOISE_S
    assert (await lab.record(started.response_id)).status is ResponseStatus.CANCELLED


# -- idempotency


async def test_q2_one_key_one_charge_one_reply(parrot: ChatLab) -> None:
    ask = {"idempotency_key": "k", **params(max_tokens=20)}
    started = await asyncio.gather(*(parrot.create("hi", **ask) for _ in range(10)))
    assert len({one.response_id for one in started}) == 1
    assert sorted(one.replay for one in started) == [False] + [True] * 9
    answers = await asyncio.gather(*(parrot.read(one) for one in started))
    assert {answer.text for answer in answers} == {LONG[:20]}
    later = await parrot.ask("hi", **ask)  # after a time-out
    assert later.started.replay
    assert later.text == LONG[:20]
    assert parrot.service.counters.generated == 20
    report = await parrot.store.sessions_report(ME)
    assert [row.turns for row in report.sessions] == [1]


async def test_q2_another_request_under_the_same_key(lab: ChatLab) -> None:
    await lab.ask("hi", idempotency_key="k", **params(max_tokens=2))
    for other in (params(max_tokens=3), {"kind": "edit", "target_id": MessageId("m")}):
        with pytest.raises(Conflict):
            await lab.create("hi", idempotency_key="k", **other)
    await lab.ask("hi", ns=Namespace("you"), idempotency_key="k", **params(max_tokens=3))


async def test_q2_a_replay_does_not_ask_whether_it_would_still_be_right(data_dir: Path) -> None:
    """The conversation has moved on and the server is full: the same request is still the same reply."""
    async with chat_lab(data_dir, settings=ServiceSettings(max_open=1)) as lab:
        first = await lab.ask("one", **params(max_tokens=2))
        ask: dict[str, Any] = {
            "conversation_id": first.started.conversation_id,
            "idempotency_key": "k",
            **params(max_tokens=2),
        }
        second = await lab.ask("two", **ask)
        gate = Gate()
        lab.runner.before_step = gate
        await lab.create("three", conversation_id=first.started.conversation_id)
        with pytest.raises(Overloaded):
            await lab.create("four")
        again = await lab.ask("two", **ask)
        assert (again.started.replay, again.text) == (True, second.text)
        gate.open()


# -- histories as text


def history(*texts: str, system: str = "Be brief.") -> tuple[ChatTurn, ...]:
    """A system prompt, then user and assistant in turn."""
    roles = ["user", "assistant"] * len(texts)
    turns = (ChatTurn(role, text) for role, text in zip(roles, texts, strict=False))
    return (ChatTurn("system", system), *turns)


async def test_a_history_as_text_hits_like_a_session(lab: ChatLab) -> None:
    said = ["one"]
    before = None
    for text in ("two", "three", "four"):
        answer = await lab.ask("", messages=history(*said), **params(max_tokens=30))
        if before is not None:
            assert answer.record.gpu_hit == before.record.prompt_len + before.record.output_tokens - 1
            assert answer.started.conversation_id == before.started.conversation_id
        before = answer
        said += [answer.text, text]
    report = await lab.store.sessions_report(ME)
    assert [row.turns for row in report.sessions] == [3]
    page = await lab.store.list_conversations(ME)
    assert page.conversations == ()


async def test_an_answer_that_is_not_ours_is_text(lab: ChatLab) -> None:
    foreign = history("one", "I never said this", "two")
    first = await lab.ask("", messages=foreign, **params(max_tokens=10))
    assert first.record.gpu_hit == 0
    longer = history("one", "I never said this", "two", first.text, "three")
    second = await lab.ask("", messages=longer, **params(max_tokens=10))
    assert second.record.gpu_hit == first.record.prompt_len + first.record.output_tokens - 1
    fork = history("one", "I never said this", "deux")
    forked = await lab.ask("", messages=fork, **params(max_tokens=10))
    alone = await lab.ask("", ns=Namespace("you"), messages=fork, **params(max_tokens=10))
    assert forked.text == alone.text
    assert forked.record.prompt_len == alone.record.prompt_len


async def test_histories_of_two_accounts_never_meet(lab: ChatLab) -> None:
    first = await lab.ask("", messages=history("one"), **params(max_tokens=10))
    longer = history("one", first.text, "two")
    other = await lab.ask("", ns=Namespace("you"), messages=longer, **params(max_tokens=10))
    assert other.record.gpu_hit == 0
    assert other.started.conversation_id != first.started.conversation_id


async def test_no_messages(lab: ChatLab) -> None:
    with pytest.raises(InvalidParameter):
        await lab.create("", messages=())
    answer = await lab.ask("", messages=history(), **params(max_tokens=2))  # a system prompt alone
    assert answer.record.output_tokens == 2


# -- life


async def test_draining_refuses_and_ends_what_is_open(lab: ChatLab) -> None:
    slow_steps(lab)
    started = await lab.create("one", **params(ignore_eos=True))
    short = await lab.create("two", **params(max_tokens=2))
    stream = await lab.service.subscribe(ME, started.response_id)
    began = time.monotonic()
    await lab.service.drain(0.5)
    assert 0.45 <= time.monotonic() - began < 0.5 + NOISE_S
    _, record = await read_to_end(stream)
    assert record.status is ResponseStatus.CANCELLED
    assert (await lab.record(short.response_id)).status is ResponseStatus.INCOMPLETE
    with pytest.raises(Draining):
        await lab.create("three")


async def test_an_engine_that_does_not_answer_cannot_keep_the_server_up(data_dir: Path) -> None:
    gate = Gate()
    async with chat_lab(data_dir) as lab:
        lab.runner.before_step = gate
        started = await lab.create("one")
        stream = await lab.service.subscribe(ME, started.response_id)
        await lab.service.drain(0)
        _, record = await read_to_end(stream)
        assert (record.status, record.output_tokens) == (ResponseStatus.CANCELLED, 0)
        gate.open()


async def test_what_a_dead_run_left_is_settled_at_start(data_dir: Path) -> None:
    store = await Store.open(data_dir, prices=PriceBook(), clock=time.time, new_id=iter("abcd").__next__)
    await store.begin_run()
    await store.begin_response(orphan())
    await store.close()
    async with chat_lab(data_dir) as lab:
        answer = await lab.read(Started(ResponseId("r"), ConversationId("a"), None, MessageId("b"), False))
        assert (answer.record.status, answer.record.error_code) == (ResponseStatus.FAILED, "server_died")


def orphan() -> NewResponse:
    message = NewMessage("user", "hi", (), chain_key(ME, ROOT_KEY, "user", "hi"))
    return NewResponse(
        response_id=ResponseId("r"),
        namespace=ME,
        idempotency_key=None,
        request_hash=b"",
        conversation_id=None,
        hidden=False,
        parent_id=None,
        new_messages=(message,),
        continues=None,
        model="toy",
        params_json="{}",
        prompt_len=2,
    )


async def test_an_engine_that_stopped_is_not_asked(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(scheduler: Scheduler) -> StepPlan:
        raise KeyError("an invariant is broken")

    monkeypatch.setattr(Scheduler, "schedule", broken)
    async with chat_lab(data_dir) as lab:
        answer = await lab.ask("one")
        assert answer.record.error_code == "engine_failure"
        with pytest.raises(NotReady):
            await lab.create("two")


async def test_an_engine_that_stops_as_it_is_asked(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with chat_lab(data_dir, by_hand=True) as lab:

        def last_words(submit: Submit) -> None:
            lab.hand.failure = RuntimeError("gone, with this request in its inbox")

        monkeypatch.setattr(lab.hand, "submit", last_words)
        answer = await lab.ask("one")
        assert (answer.record.status, answer.record.error_code) == (ResponseStatus.FAILED, "engine_failure")


async def test_listeners_hear_of_conversations_after_the_ending(lab: ChatLab) -> None:
    heard: list[tuple[str, str]] = []
    stop = lab.service.listen(lambda ns, conversation: heard.append((ns, conversation.title)))
    await lab.ask("Title line\nand more", **params(max_tokens=2))
    await lab.ask("", messages=history("hidden"), **params(max_tokens=2))
    await until(lambda: bool(heard))
    stop()
    await lab.ask("Not heard", **params(max_tokens=2))
    assert heard == [(ME, "Title line")]


async def test_subscribing_to_nothing(lab: ChatLab) -> None:
    with pytest.raises(NotFound):
        await lab.service.subscribe(ME, ResponseId("nobody's"))
