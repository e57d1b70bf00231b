"""A load on an engine alone: no sockets, no texts, no store. Prompts are ids, so that lengths are exact."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from chatd.bench.answers import Answer, Refused
from chatd.bench.plan import SessionPlan, TextPlan, TurnPlan
from chatd.engine.messages import (
    EngineCounters,
    Finished,
    FinishReason,
    Held,
    Piece,
    Prefill,
    SamplingParams,
    StepOutput,
    Submit,
    Update,
)
from chatd.ids import Namespace, Rid

NAMESPACE = Namespace("bench")
GREEDY = SamplingParams(temperature=0.0)


class Engine(Protocol):
    def submit(self, submit: Submit) -> None: ...
    def abort(self, rid: Rid) -> None: ...


@dataclass(frozen=True, slots=True)
class Step:
    """When a step was over, and the engine's counters then."""

    at: float
    counters: EngineCounters


class Listener:
    """Brings what an engine says to those who asked. ``post`` is for the engine; the rest for the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queues: dict[Rid, asyncio.Queue[tuple[float, Update]]] = {}
        self.steps: list[Step] = []

    def post(self, out: StepOutput) -> None:
        """On the engine's thread: the time is that of the step, not of the loop that hears of it."""
        self._loop.call_soon_threadsafe(self._take, time.perf_counter(), out)

    def _take(self, at: float, out: StepOutput) -> None:
        self.steps.append(Step(at, out.counters))
        for update in out.updates:
            if (queue := self._queues.get(update.rid)) is not None:
                queue.put_nowait((at, update))

    @contextlib.contextmanager
    def told_of(self, rid: Rid) -> Iterator[asyncio.Queue[tuple[float, Update]]]:
        """All that is said of ``rid`` from now on, with the time it was said."""
        queue = self._queues[rid] = asyncio.Queue()
        try:
            yield queue
        finally:
            del self._queues[rid]


class EngineTarget:
    """``vocab`` are the ids that prompts are made of."""

    def __init__(self, engine: Engine, listener: Listener, vocab: Sequence[int]) -> None:
        self.engine = engine
        self.listener = listener
        self._vocab = vocab
        self._rids = itertools.count()

    def ids(self, text: TextPlan) -> list[int]:
        return Random(text.seed).choices(self._vocab, k=text.tokens)

    async def talk(self, session: SessionPlan) -> "EngineTalk":
        return EngineTalk(self, self.ids(session.system))

    async def answer(self, prompt: Sequence[int], answer: Answer) -> tuple[int, ...]:
        """Have ``prompt`` answered; the answer's ids. `Refused` if it fails; cancelled, it is aborted."""
        rid = Rid(f"bench-{next(self._rids)}")
        with self.listener.told_of(rid) as heard:
            answer.asked_at = time.perf_counter()
            self.engine.submit(Submit(rid, NAMESPACE, tuple(prompt), GREEDY, answer.output_len))
            try:
                while True:
                    at, update = await heard.get()
                    if isinstance(update, Finished):
                        return _ended(update, at, answer)
                    _note(update, at, answer)
            except asyncio.CancelledError:
                self.engine.abort(rid)
                raise


def _note(update: Update, at: float, answer: Answer) -> None:
    match update:
        case Prefill():
            answer.prompt_tokens = update.prompt_tokens
            answer.gpu_hit, answer.disk_hit = update.gpu_hit, update.disk_hit
            answer.reused = update.gpu_hit + update.disk_hit
        case Piece() | Held() if update.generated > (seen := answer.seen_tokens):
            answer.arrivals.append((at, update.generated - seen))


def _ended(finished: Finished, at: float, answer: Answer) -> tuple[int, ...]:
    if finished.reason in (FinishReason.CANCELLED, FinishReason.FAILED):
        raise Refused(finished.error_code or finished.reason.value, finished.error)
    if finished.generated > (seen := answer.seen_tokens):
        answer.arrivals.append((at, finished.generated - seen))
    answer.output_tokens = finished.generated
    return finished.token_ids


class EngineTalk:
    """The history is what the engine saw."""

    def __init__(self, target: EngineTarget, system: Sequence[int]) -> None:
        self._target = target
        self._ids = list(system)

    async def ask(self, turn: TurnPlan, answer: Answer) -> None:
        for text in turn.texts:
            self._ids += self._target.ids(text)
        self._ids += await self._target.answer(self._ids, answer)


def ordinary_ids(vocab_size: int, special: frozenset[int]) -> list[int]:
    """All ids that stand for text."""
    return [token for token in range(vocab_size) if token not in special]
