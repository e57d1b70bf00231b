"""Drives planned sessions against whatever answers them, and notes what comes back."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from chatd.bench.answers import Answer, Refused, Run
from chatd.bench.plan import SessionPlan, TurnPlan

TURN_TIMEOUT_S = 600.0
TIMEOUT_CODE = "timeout"


class Talk(Protocol):
    """One session with a server. One turn at a time."""

    async def ask(self, turn: TurnPlan, answer: Answer) -> None:
        """Send the turn, note in ``answer`` what comes, and return once it is over. Sets ``asked_at`` when
        the request goes out. Raises `Refused` for any answer but a whole one."""
        ...


class Target(Protocol):
    async def talk(self, session: SessionPlan) -> Talk:
        """Connected, with the session's system prompt said. Raises `Refused`."""
        ...


async def open_talks(plan: Sequence[SessionPlan], target: Target) -> list[Talk]:
    """All of them before the clock runs: what is measured are turns. Raises `Refused`."""
    return [await target.talk(session) for session in plan]


def run_of(plan: Sequence[SessionPlan]) -> Run:
    return Run(planned=sum(len(session.turns) for session in plan))


async def drive(
    plan: Sequence[SessionPlan],
    talks: Sequence[Talk],
    run: Run,
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """All sessions, each in a task of its own, with what they see in ``run``.

    A turn that fails ends its session. Cancelled, it leaves in ``run`` what was seen so far.
    """
    run.began = clock()
    try:
        async with asyncio.TaskGroup() as group:
            for session, talk in zip(plan, talks, strict=True):
                group.create_task(_session(session, talk, run, clock, sleep))
    finally:
        run.ended = clock()


async def _session(
    session: SessionPlan,
    talk: Talk,
    run: Run,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    await sleep(session.starts_at_s)
    for turn in session.turns:
        if turn.think_s:
            await sleep(turn.think_s)
        answer = Answer(session.number, turn.number, turn.output_len, clock())
        run.answers.append(answer)
        try:
            await _ask(talk, turn, answer)
        except Refused as refused:
            run.refuse(answer, refused, clock(), len(session.turns) - turn.number - 1)
            return
        answer.ended_at = clock()


async def _ask(talk: Talk, turn: TurnPlan, answer: Answer) -> None:
    try:
        async with asyncio.timeout(TURN_TIMEOUT_S):
            await talk.ask(turn, answer)
    except TimeoutError:
        raise Refused(TIMEOUT_CODE, f"no whole answer within {TURN_TIMEOUT_S:g} s") from None
