"""The engine thread: what comes in goes out, in order, and a stall or a fault shows."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from chatd.engine.messages import EngineState, Finished, FinishReason, Piece, StepOutput, Update
from chatd.engine.plan import StepPlan
from chatd.ids import Rid
from tests.support.engines import ChecksumRunner, Gate, request, toy_engine
from tests.support.lab import prompt, reference


class Outbox:
    """Collects what the engine posts and waits for endings."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[StepOutput] = SimpleQueue()
        self.updates: list[Update] = []

    def __call__(self, out: StepOutput) -> None:
        self._queue.put(out)

    def first(self) -> StepOutput:
        return self._queue.get(timeout=20)

    def until_finished(self, rid: str) -> Finished:
        found = self.until(lambda update: isinstance(update, Finished) and update.rid == rid)
        assert isinstance(found, Finished)
        return found

    def until(self, wanted: Callable[[Update], bool]) -> Update:
        while True:
            for update in self.updates:
                if wanted(update):
                    return update
            self.updates.extend(self._queue.get(timeout=20).updates)


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


def test_answers_and_sleeps(outbox: Outbox) -> None:
    engine = toy_engine(outbox)
    engine.start()
    engine.submit(request("a", prompt(1, 30), 10))
    assert outbox.until_finished("a").reason is FinishReason.LENGTH
    assert engine.capacity_len == 1023 * 16
    engine.stop(5)
    assert engine.stalled_for() == 0.0


def test_b3_abort_of_an_unknown_request_is_no_error(outbox: Outbox) -> None:
    engine = toy_engine(outbox)
    engine.start()
    engine.abort(Rid("nobody"))
    engine.submit(request("a", prompt(1, 30), 3))
    outbox.until_finished("a")
    engine.abort(Rid("a"))
    engine.stop(5)


def test_abort_while_a_step_runs(outbox: Outbox) -> None:
    gate = Gate()
    runner = ChecksumRunner(1024, 16)
    runner.before_step = gate
    engine = toy_engine(outbox, runner)
    engine.start()
    engine.submit(request("a", prompt(1, 30), 1000))
    assert gate.entered.wait(20)
    engine.abort(Rid("a"))
    gate.open()
    finished = outbox.until_finished("a")
    assert (finished.reason, finished.generated) == (FinishReason.CANCELLED, 1)
    engine.stop(5)


def test_the_pages_are_known_before_any_work(outbox: Outbox) -> None:
    engine = toy_engine(outbox, num_pages=64)
    engine.start()
    assert outbox.first().state == EngineState(free_pages=64, total_pages=64)
    engine.stop(5)


def test_d6_a_stall_shows_and_passes(outbox: Outbox) -> None:
    gate = Gate()
    runner = ChecksumRunner(1024, 16)
    runner.before_step = gate
    now = [100.0]
    engine = toy_engine(outbox, runner)
    engine._clock = lambda: now[0]
    engine.start()
    engine.submit(request("a", prompt(1, 30), 2))
    assert gate.entered.wait(20)
    now[0] += 25.0
    assert engine.stalled_for() == 25.0
    gate.open()
    outbox.until_finished("a")
    engine.stop(5)
    assert engine.stalled_for() == 0.0


def test_a_step_that_raises_ends_its_requests_not_the_engine(outbox: Outbox) -> None:
    runner = ChecksumRunner(1024, 16)
    broken = threading.Event()
    broken.set()

    def fault(plan: StepPlan) -> None:
        if broken.is_set():
            raise MemoryError("out of device memory")

    runner.before_step = fault
    engine = toy_engine(outbox, runner)
    engine.start()
    engine.submit(request("a", prompt(1, 30), 2))
    failed = outbox.until_finished("a")
    assert (failed.reason, failed.error_code) == (FinishReason.FAILED, "engine_failure")
    assert "MemoryError" in failed.error
    broken.clear()
    engine.submit(request("b", prompt(1, 30), 2))
    assert outbox.until_finished("b").reason is FinishReason.LENGTH
    text = "".join(u.text for u in outbox.updates if isinstance(u, Piece) and u.rid == "b")
    assert text == reference(request("b", prompt(1, 30), 2))
    engine.stop(5)


def test_a_broken_invariant_ends_everything_and_says_so(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = toy_engine(outbox)

    def leak(now: float) -> StepPlan:
        raise RuntimeError("pages have leaked")

    monkeypatch.setattr(engine._scheduler, "schedule", leak)
    engine.start()
    engine.submit(request("a", prompt(1, 30), 2))
    finished = outbox.until_finished("a")
    assert (finished.reason, finished.error_code) == (FinishReason.FAILED, "engine_failure")
    engine.stop(5)
    assert isinstance(engine.failure, RuntimeError)
    assert engine.stalled_for() == float("inf")
