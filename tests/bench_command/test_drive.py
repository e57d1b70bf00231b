"""Sessions keep their times, and one that fails ends alone."""

import asyncio
import heapq
import itertools
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from chatd.bench.answers import Answer, Refused
from chatd.bench.drive import drive, open_talks, run_of
from chatd.bench.load import Load, Range
from chatd.bench.plan import SessionPlan, TurnPlan, plan
from chatd.bench.trial import interruptible

ROUNDS = 10
"""Turns of the loop in which everybody who is awake has gone to sleep again."""
LOAD = Load(sessions=3, turns=3, think_time=Range(5, 5), request_rate=0.1, seed=3)


class Hours:
    """A clock that stands still until everybody sleeps, and then goes to the first who wakes."""

    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self.now + seconds, next(self._numbers), woken))
        await woken

    async def pass_by(self, work: Coroutine[Any, Any, None]) -> None:
        """Until ``work`` is done."""
        task = asyncio.create_task(work)
        while not task.done():
            for _ in range(ROUNDS):
                await asyncio.sleep(0)
            if self._waiting:
                self.now, _, woken = heapq.heappop(self._waiting)
                woken.set_result(None)
        await task


class Echo:
    """Answers at once; the turn ``fails`` does not."""

    def __init__(self, hours: Hours, fails: tuple[int, int] | None = None) -> None:
        self._hours, self._fails = hours, fails
        self.session = 0

    async def talk(self, session: SessionPlan) -> "Echo":
        made = Echo(self._hours, self._fails)
        made.session = session.number
        return made

    async def ask(self, turn: TurnPlan, answer: Answer) -> None:
        if (self.session, turn.number) == self._fails:
            raise Refused("overloaded", "Too much is waiting.")
        answer.arrivals.append((self._hours(), turn.output_len))


async def test_sessions_arrive_and_think_as_planned() -> None:
    hours = Hours()
    sessions = plan(LOAD)
    run = run_of(sessions)
    talks = await open_talks(sessions, Echo(hours))
    await hours.pass_by(drive(sessions, talks, run, clock=hours, sleep=hours.sleep))
    for session in sessions:
        asked = [one.asked_at for one in run.answers if one.session == session.number]
        assert asked == pytest.approx([session.starts_at_s + 5 * k for k in range(3)])
    assert (run.over, run.planned, len(run.good)) == (9, 9, 9)


async def test_a_turn_that_fails_ends_its_session_alone() -> None:
    hours = Hours()
    sessions = plan(replace(LOAD, request_rate=float("inf")))
    run, talks = run_of(sessions), await open_talks(sessions, Echo(hours, fails=(1, 1)))
    await hours.pass_by(drive(sessions, talks, run, clock=hours, sleep=hours.sleep))
    assert (len(run.good), dict(run.errors), run.skipped) == (7, {"overloaded": 1}, 1)
    assert run.over == run.planned


async def test_work_that_is_done_was_not_interrupted_and_its_error_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("x")

    assert await interruptible(asyncio.sleep(0)) is False
    with pytest.raises(ValueError, match="x"):
        await interruptible(fail())


async def test_who_cancels_it_from_outside_cancels_the_work_too() -> None:
    began, work_cancelled = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            work_cancelled.set()

    outer = asyncio.create_task(interruptible(work()))
    await began.wait()
    outer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outer
    await work_cancelled.wait()
