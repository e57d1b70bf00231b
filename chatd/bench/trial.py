"""One server on trial: what its words come to, a warm-up, a run that Ctrl-C ends early but not in vain."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from chatd.bench.answers import Answer, Refused, Run
from chatd.bench.drive import Target, drive, open_talks
from chatd.bench.plan import SessionPlan, TextPlan, TurnPlan
from chatd.bench.words import PROBES, Wording


class ClosingTarget(Target, Protocol):
    async def close(self) -> None:
        """Leave nothing behind on the server that can be taken back."""
        ...


MakeTarget = Callable[[Wording], ClosingTarget]


async def learn(make: MakeTarget) -> Wording:
    """How many tokens the server makes of words. `Refused` if it does not answer as it should."""
    counts = [await _count(make(Wording()), words) for words in PROBES]
    try:
        return Wording.learnt(*counts)
    except ValueError as error:
        raise Refused("usage", f"its usage cannot be right: {error}") from None


async def _count(target: ClosingTarget, words: int) -> int:
    turn = TurnPlan(0, 0.0, (TextPlan(f"probe-{words}", words),), 1)
    answer = Answer(0, 0, 1, 0.0)
    try:
        talk = await target.talk(SessionPlan(0, 0.0, TextPlan("", 0), (turn,)))
        await talk.ask(turn, answer)
    finally:
        await target.close()
    assert answer.prompt_tokens is not None
    return answer.prompt_tokens


async def warm_up(plan: Sequence[SessionPlan], target: ClosingTarget) -> None:
    """`Refused` with the first turn that fails."""
    run = Run(0)
    try:
        await drive(plan, await open_talks(plan, target), run)
    finally:
        await target.close()
    for code, message in run.messages.items():
        raise Refused(code, message)


async def measure(plan: Sequence[SessionPlan], target: ClosingTarget, run: Run) -> None:
    """Drive ``plan`` with what is seen in ``run``. Ctrl-C ends it early, and `Run.interrupted` says so."""
    try:
        run.interrupted = await interruptible(drive(plan, await open_talks(plan, target), run))
    finally:
        await target.close()


async def interruptible(work: Coroutine[Any, Any, None]) -> bool:
    """Do ``work``; whether Ctrl-C cancelled it before it was done. A second Ctrl-C ends the program."""
    loop, interrupted = asyncio.get_running_loop(), False
    task = asyncio.create_task(work)

    def stop() -> None:
        nonlocal interrupted
        interrupted = True
        loop.remove_signal_handler(signal.SIGINT)
        task.cancel()

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not (interrupted and task.cancelled()):
            task.cancel()
            raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    return interrupted
