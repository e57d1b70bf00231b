"""The scheduler over the checksum engine: a wrong page anywhere changes the tokens."""

import random
from dataclasses import replace

import pytest

from chatd.engine.messages import FinishReason, Prefill, Progress, Queued
from chatd.engine.plan import StepRow
from chatd.errors import EngineFailure
from tests.support.engines import END, ChecksumRunner, ScriptRunner, request, toy_scheduler
from tests.support.lab import Lab, counted, prompt, reference


@pytest.mark.parametrize("page_size", [1, 2, 16])
def test_a1_every_cut_point(page_size: int) -> None:
    base = prompt(1, 100)
    for k in range(1, 100):
        tail = prompt(k + 2, 9)
        lab = Lab(toy_scheduler(512, page_size))
        lab.answer(request("warm", base, 1))
        outcome = lab.answer(request("again", base[:k] + tail, 8))
        shared = k + (1 if tail[0] == base[k] else 0)
        while shared - k < 9 and shared < 100 and tail[shared - k] == base[shared]:
            shared += 1
        assert outcome.hit == min(shared, k + 8)
        assert outcome.text == reference(request("cold", base[:k] + tail, 8))


def test_a2_twin_prompts() -> None:
    lab = Lab(toy_scheduler(256, 16, step_tokens=256))
    ids = prompt(3, 200)
    twins = [lab.submit(request(f"twin{i}", ids, 64)) for i in range(2)]
    lab.run()
    expected = reference(request("cold", ids, 64))
    assert [twin.text for twin in twins] == [expected, expected]
    assert twins[0].hit == 0
    assert twins[1].hit >= 192, "the second twin waits for the first one's pages"
    for filler in counted("filler", [prompt(50 + i, 120) for i in range(20)], 8):
        assert lab.answer(filler).text == reference(filler)
    lab.assert_at_rest()


def test_a3_evict_while_in_use() -> None:
    lab = Lab(toy_scheduler(64, 16, step_tokens=64))
    stream = request("stream", prompt(4, 250), 70)
    held = lab.submit(stream)
    for i in range(200):
        flood = request(f"flood{i}", prompt(100 + i, 60), 4)
        lab.submit(flood)
        lab.step()
    lab.run()
    assert held.text == reference(stream)
    for i in range(0, 200, 20):
        assert lab.outcomes[f"flood{i}"].text == reference(request("x", prompt(100 + i, 60), 4))  # type: ignore[index]
    lab.assert_at_rest()


@pytest.mark.parametrize(
    "count", [60, pytest.param(1000, marks=[pytest.mark.full, pytest.mark.timeout(600)])]
)
def test_b1_abort_anywhere(count: int) -> None:
    rnd = random.Random(5)
    lab = Lab(toy_scheduler(96, 16, step_tokens=48, max_running=6))
    for i in range(count):
        lab.submit(request(f"r{i}", prompt(rnd.randrange(8), rnd.randrange(1, 200)), rnd.randrange(1, 40)))
        for _ in range(rnd.randrange(6)):
            if lab.scheduler.has_work:
                lab.step()
        if rnd.random() < 0.9:
            lab.abort(f"r{rnd.randrange(i + 1)}")
    for i in range(count):
        lab.abort(f"r{i}")
    lab.run(2)
    lab.assert_at_rest()
    after = request("after", prompt(3, 150), 20)
    assert lab.answer(after).text == reference(after)


def test_b3_stop_before_first_token() -> None:
    lab = Lab(toy_scheduler(max_running=1))
    lab.submit(request("busy", prompt(1, 100), 50))
    lab.step()
    waiting = lab.submit(request("waiting", prompt(2, 100), 50))
    lab.step()
    lab.abort("waiting")
    lab.step()
    assert waiting.done.reason is FinishReason.CANCELLED
    assert waiting.done.generated == 0
    assert waiting.prefill is None, "a request that never ran has no buckets"
    assert [u for u in waiting.updates if isinstance(u, Queued)] == [Queued(waiting.done.rid, 1)]


def test_time_in_the_queue_is_counted_until_it_is_left_for_the_first_time() -> None:
    scheduler = toy_scheduler(max_running=1)
    runner = ChecksumRunner(scheduler.cache.total_pages, scheduler.cache.page_size)

    def step(now: float) -> list[float]:
        plan = scheduler.schedule(now)
        out = scheduler.commit(plan, runner.launch(plan).wait())
        return [update.queue_s for update in out.updates if isinstance(update, Prefill)]

    scheduler.submit(request("one", prompt(1, 100), 2), 10.0)
    assert step(11.5) == [1.5]
    scheduler.submit(request("two", prompt(2, 100), 2), 12.0)
    assert [step(13.0), step(14.0)] == [[], []], "the first has three steps: two chunks, one more token"
    assert step(20.0) == [8.0]


def test_d1_too_big_for_the_pool() -> None:
    lab = Lab(toy_scheduler(8, 16))
    other = lab.submit(request("other", prompt(1, 40), 8))
    big = lab.submit(request("big", prompt(2, 200), 8))
    lab.step()
    assert big.done.reason is FinishReason.FAILED
    assert big.done.error_code == "exceeds_kv_pool"
    assert "200" in big.done.error
    assert str(lab.scheduler.capacity_len) in big.done.error
    lab.run()
    assert other.done.reason is FinishReason.LENGTH
    assert not lab.scheduler.has_work


def test_a_request_of_exactly_the_capacity_runs_warm_and_cold() -> None:
    lab = Lab(toy_scheduler(8, 16))
    capacity = lab.scheduler.capacity_len
    ids = prompt(9, capacity - 5)
    cold = lab.answer(request("cold", ids, 5))
    warm = lab.answer(request("warm", [*ids[:70], *prompt(10, capacity - 75)], 5))
    assert cold.text == reference(request("x", ids, 5))
    assert warm.done.reason is FinishReason.LENGTH
    lab.assert_at_rest()


def test_context_edge() -> None:
    lab = Lab(toy_scheduler(context_length=100))
    one = lab.answer(request("one", prompt(1, 99), 50))
    assert (one.done.reason, one.done.generated) == (FinishReason.LENGTH, 1)
    none = lab.answer(request("none", prompt(1, 100), 50))
    assert none.done.error_code == "context_length_exceeded"
    assert none.done.error.count("100") == 2


def test_d2_preemption_storm() -> None:
    submits = [request(f"r{i}", prompt(i, 16), 40 * 16 - 16) for i in range(8)]
    lab = Lab(toy_scheduler(64, 16, step_tokens=64, max_running=8))
    outcomes = [lab.submit(submit) for submit in submits]
    lab.run()
    assert sum(outcome.done.preemptions for outcome in outcomes) > 0
    for submit, outcome in zip(submits, outcomes, strict=True):
        assert outcome.done.preemptions <= 8
        assert outcome.done.generated == 624
        assert outcome.text == reference(submit)
    lab.assert_at_rest()


def test_q3_preemption_never_rebills() -> None:
    lab = Lab(toy_scheduler(24, 16, step_tokens=64, max_running=4))
    for i in range(4):
        lab.submit(request(f"r{i}", prompt(i, 100), 150))
    lab.run()
    outcomes = list(lab.outcomes.values())
    assert any(outcome.done.preemptions for outcome in outcomes)
    for outcome in outcomes:
        assert replace(outcome.prefilled, queue_s=0.0) == Prefill(outcome.done.rid, 100, 0, 0, 100)
    counters = lab.last.counters
    assert counters.prompt_tokens == counters.computed == 400
    assert counters.generated == sum(outcome.done.generated for outcome in outcomes)
    assert counters.recomputed == sum(outcome.done.recomputed for outcome in outcomes)
    assert counters.preemptions == sum(outcome.done.preemptions for outcome in outcomes)
    assert counters.finished == counters.submitted == 4


def test_chunked_prefill_shares_the_step_with_decodes() -> None:
    lab = Lab(toy_scheduler(256, 16, step_tokens=32))
    short = lab.submit(request("short", prompt(1, 10), 30))
    lab.step()
    long = lab.submit(request("long", prompt(2, 310), 4))
    before = len(short.text)
    for _ in range(10):
        lab.step()
    assert len(short.text) == before + 10, "a decode runs in every step beside a prefill"
    done = [u.done for u in long.updates if isinstance(u, Progress)]
    assert done == [31 * i for i in range(1, 10)]
    lab.run()
    assert long.text == reference(request("x", prompt(2, 310), 4))


@pytest.mark.parametrize("neighbours", [0, 1, 7, 15])
def test_j1_neighbours_change_nothing(neighbours: int) -> None:
    target = request("target", prompt(11, 77), 24, seed=42, temperature=0.8)
    expected = reference(target)
    lab = Lab(toy_scheduler(512, 16, step_tokens=64))
    for i in range(neighbours):
        lab.submit(request(f"n{i}", prompt(i % 5, 20 + 9 * i), 30, seed=i, temperature=1.0))
        if i % 3 == 0:
            lab.step()
    outcome = lab.submit(target)
    lab.run()
    assert outcome.text == expected


def test_j2_first_run_equals_later_runs() -> None:
    lab = Lab()
    texts = {lab.answer(request(f"r{i}", prompt(12, 90), 40)).text for i in range(5)}
    assert len(texts) == 1


def test_k1_one_bad_row() -> None:
    lab = Lab(toy_scheduler(256, 16, step_tokens=512))
    submits = counted("r", [prompt(i, 64 + i) for i in range(4)], 30)
    outcomes = [lab.submit(submit) for submit in submits]

    def bad(row: StepRow) -> bool:
        return row.rid == "r2" and row.start + row.extend_len - row.prompt_len == 4

    lab.runner.bad = bad
    lab.run()
    assert outcomes[2].done.reason is FinishReason.FAILED
    assert outcomes[2].done.error_code == "bad_logits"
    assert outcomes[2].done.generated == 4
    for i in (0, 1, 3):
        assert outcomes[i].text == reference(submits[i])
    again = lab.answer(request("again", prompt(2, 66), 4))
    assert again.hit == 0, "nothing the bad request inserted can be matched"
    lab.assert_at_rest()


def test_a_failed_step_ends_its_own_requests_only() -> None:
    lab = Lab(toy_scheduler(step_tokens=64, max_running=1))
    first, second = (lab.submit(request(f"r{i}", prompt(i, 20), 8)) for i in range(2))
    plan = lab.scheduler.schedule()
    for update in lab.scheduler.fail(plan, EngineFailure("device lost")).updates:
        lab.outcomes[update.rid].take(update)
    assert first.done.error_code == "engine_failure"
    lab.run()
    assert second.text == reference(request("x", prompt(1, 20), 8))
    lab.assert_at_rest()


def test_no_prefix_cache_never_hits_and_never_waits() -> None:
    lab = Lab(toy_scheduler(256, 16, step_tokens=512, enabled=False))
    outcomes = [lab.submit(request(f"r{i}", prompt(1, 100), 8)) for i in range(2)]
    lab.step()
    assert all(outcome.text for outcome in outcomes), "both prefilled in the first step"
    lab.run()
    assert [outcome.hit for outcome in outcomes] == [0, 0]
    assert outcomes[0].text == outcomes[1].text == reference(request("x", prompt(1, 100), 8))
    lab.assert_at_rest()


def test_namespaces_do_not_share() -> None:
    lab = Lab()
    lab.answer(request("mine", prompt(1, 100), 4, namespace="a"))
    assert lab.answer(request("theirs", prompt(1, 100), 4, namespace="b")).hit == 0
    assert lab.answer(request("mine again", prompt(1, 100), 4, namespace="a")).hit == 99


def test_endings() -> None:
    script = [*b"abc DEF GHI", END]
    lab = Lab(runner=ScriptRunner(64, 16, lambda prompt_ids: script))
    end = lab.answer(request("end", prompt(1, 10), 50))
    assert (end.text, end.done.reason, end.done.generated) == ("abc DEF GHI", FinishReason.END, 12)
    assert end.done.token_ids == tuple(script)
    stop = lab.answer(request("stop", prompt(2, 10), 50, stop=("DEF G",)))
    assert (stop.text, stop.done.reason, stop.done.generated) == ("abc ", FinishReason.STOP, 9)
    assert bytes(stop.done.token_ids) == b"abc "
    length = lab.answer(request("length", prompt(3, 10), 5, stop=("DEF",)))
    assert (length.text, length.done.reason) == ("abc D", FinishReason.LENGTH)
    by_id = lab.answer(request("by id", prompt(4, 10), 50, stop_ids=frozenset({ord("F")})))
    assert (by_id.text, by_id.done.reason) == ("abc DE", FinishReason.END)
    assert bytes(by_id.done.token_ids) == b"abc DE", "a stop id's text is not part of the answer"
    lab.assert_at_rest()


def test_a_turn_hits_all_of_the_turn_before() -> None:
    lab = Lab(toy_scheduler(256, 16))
    ids = prompt(1, 50)
    for turn in range(4):
        outcome = lab.answer(request(f"turn{turn}", ids, 20))
        assert outcome.hit == (len(ids) - 31 if turn else 0)
        ids = [*ids, *outcome.done.token_ids, *prompt(20 + turn, 30)]


def test_max_running_may_not_exceed_the_budget() -> None:
    with pytest.raises(ValueError, match="step_tokens"):
        toy_scheduler(step_tokens=8, max_running=9)
