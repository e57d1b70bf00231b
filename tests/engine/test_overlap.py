"""One step flies while the next is scheduled: what is kept back, what is thrown away, what is never wrong."""

from dataclasses import replace

import pytest

from chatd.engine.messages import FinishReason
from chatd.engine.plan import StepPlan
from tests.support.engines import ChecksumRunner, request, toy_scheduler
from tests.support.lab import Lab, prompt, reference

ME = request("a", [1], 1).namespace


class Watched(ChecksumRunner):
    """Keeps the plans it was given."""

    def __init__(self, num_pages: int = 64) -> None:
        super().__init__(num_pages, 16, overlaps=True)
        self.plans: list[StepPlan] = []
        self.before_step = self.plans.append

    def rows(self, rid: str) -> int:
        return sum(row.rid == rid for plan in self.plans for row in plan.rows)


def overlapping(num_pages: int = 64, *, step_tokens: int = 64, max_running: int = 16) -> tuple[Lab, Watched]:
    runner = Watched(num_pages)
    scheduler = toy_scheduler(num_pages, step_tokens=step_tokens, max_running=max_running)
    return Lab(scheduler, runner), runner


def test_a_decode_takes_its_input_from_the_step_that_flies() -> None:
    lab, runner = overlapping()
    outcome = lab.answer(request("a", prompt(1, 40), 12))
    assert outcome.text == reference(request("a", prompt(1, 40), 12))
    assert sum(row.pending for plan in runner.plans for row in plan.rows) == 11
    lab.assert_at_rest()


def test_no_step_is_spent_beyond_a_length_that_is_known() -> None:
    lab, runner = overlapping()
    lab.answer(request("a", prompt(1, 40), 5))
    assert runner.rows("a") == 5
    lab.answer(request("b", prompt(2, 40), 1))
    assert runner.rows("b") == 1


def test_what_comes_after_a_stop_is_neither_billed_nor_cached() -> None:
    plain = Lab().answer(request("a", prompt(1, 40), 12)).text
    lab, runner = overlapping()
    outcome = lab.answer(request("a", prompt(1, 40), 12, stop=(plain[5:8],)))
    assert outcome.done.reason is FinishReason.STOP
    assert outcome.text == plain[:5]
    assert outcome.done.generated == 8
    assert runner.rows("a") == 9, "one token more was computed than was kept"
    assert lab.last.counters.generated == 8
    assert lab.scheduler.cache.match_len([*prompt(1, 40), *plain[:12].encode()], ME) <= 48
    lab.assert_at_rest()


def test_penalties_wait_for_the_ids_they_count() -> None:
    lab, runner = overlapping()
    one = request("a", prompt(1, 40), 6)
    lab.answer(replace(one, params=replace(one.params, repetition_penalty=1.3)))
    assert not any(row.pending for plan in runner.plans for row in plan.rows)


@pytest.mark.parametrize("pages", [24, 32])
def test_d2_preemption_while_a_step_flies(pages: int) -> None:
    lab, _ = overlapping(pages, step_tokens=48, max_running=6)
    submits = [request(f"r{i}", prompt(i, 30 + 7 * i), 120) for i in range(6)]
    outcomes = [lab.submit(one) for one in submits]
    lab.run()
    assert lab.last.counters.preemptions > 0
    for one, outcome in zip(submits, outcomes, strict=True):
        assert outcome.text == reference(one)
        assert outcome.done.generated == 120
        assert outcome.done.preemptions <= 8
    lab.assert_at_rest()


def test_an_abort_takes_effect_although_a_step_flies() -> None:
    lab, _ = overlapping()
    outcome = lab.submit(request("a", prompt(1, 40), 50))
    for _ in range(6):
        lab.step()
    known = lab.last.counters.generated
    lab.abort("a")
    lab.run()
    assert outcome.done.reason is FinishReason.CANCELLED
    assert outcome.done.generated == known == lab.last.counters.generated
    lab.assert_at_rest()


def test_k1_a_bad_row_ends_alone_although_its_next_step_flies() -> None:
    lab, runner = overlapping()
    runner.bad = lambda row: row.rid == "bad" and row.start + row.extend_len == 44
    others = [request(f"r{i}", prompt(i, 40), 12) for i in range(3)]
    outcomes = [lab.submit(one) for one in others]
    bad = lab.submit(request("bad", prompt(9, 40), 12))
    lab.run()
    assert (bad.done.reason, bad.done.generated) == (FinishReason.FAILED, 4)
    for one, outcome in zip(others, outcomes, strict=True):
        assert outcome.text == reference(one)
    assert lab.scheduler.cache.match_len(prompt(9, 40), ME) == 0
    lab.assert_at_rest()
