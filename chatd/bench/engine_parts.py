"""Single operations of an engine: decode of so many sequences at once, prefill of so many tokens."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from chatd.bench.answers import Answer
from chatd.bench.figures import Spread, spread
from chatd.bench.on_engine import EngineTarget, Step
from chatd.bench.plan import TextPlan

LEAD = 4
"""Steps in which sequences whose prompts are cached join, before all of them decode."""


@dataclass(frozen=True, slots=True)
class DecodeFigures:
    """``batch`` sequences with ``context_len`` tokens each. ``step`` is a step's time in seconds."""

    batch: int
    context_len: int
    steps: int
    step: Spread
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class PrefillFigures:
    """``seconds`` until the first token of an answer to ``tokens`` new ones: median, and the least of all."""

    tokens: int
    times: int
    seconds: float
    least_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """``steps`` are measured, once all of the ``batch`` decode; ``lead`` steps may pass until they do."""

    batch: int
    context_len: int
    steps: int
    lead: int

    @classmethod
    def of(cls, batch: int, context_len: int, steps: int, step_tokens: int, *, cached: bool) -> "DecodePlan":
        """Without a cache the prompts are computed while the first sequences decode already."""
        prompts = 0 if cached else ceil(batch * context_len / step_tokens)
        return cls(batch, context_len, steps, LEAD + prompts)

    @property
    def kv_len(self) -> int:
        """Tokens that one sequence comes to."""
        return self.context_len + self.steps + self.lead


async def decode(target: EngineTarget, plan: DecodePlan, seed: int) -> DecodeFigures:
    """Prompts go in first, each by itself; what is measured is when all sequences decode side by side."""
    prompts = [
        target.ids(TextPlan(f"{seed}/decode/{plan.batch}/{row}", plan.context_len))
        for row in range(plan.batch)
    ]
    await _answers(target, prompts, 1)
    target.listener.steps.clear()
    answers = await _answers(target, prompts, plan.steps + plan.lead)
    began = max(answer.arrivals[0][0] for answer in answers)
    ended = min(answer.arrivals[-1][0] for answer in answers)
    window = [step for step in target.listener.steps if began <= step.at <= ended]
    return _decoded(plan, window)


def _decoded(plan: DecodePlan, window: Sequence[Step]) -> DecodeFigures:
    gaps = spread(later.at - earlier.at for earlier, later in itertools.pairwise(window))
    assert gaps is not None, "sequences of several tokens overlap"
    first, last = window[0], window[-1]
    tokens = last.counters.generated - first.counters.generated
    return DecodeFigures(plan.batch, plan.context_len, gaps.count, gaps, tokens / (last.at - first.at))


async def _answers(target: EngineTarget, prompts: Sequence[Sequence[int]], output_len: int) -> list[Answer]:
    answers = [Answer(row, 0, output_len, 0.0) for row in range(len(prompts))]
    async with asyncio.TaskGroup() as group:
        for prompt, answer in zip(prompts, answers, strict=True):
            group.create_task(target.answer(prompt, answer))
    return answers


async def prefill(target: EngineTarget, tokens: int, times: int, seed: int) -> PrefillFigures:
    """Other tokens each time."""
    spent = []
    for number in range(times):
        answer = Answer(0, 0, 1, 0.0)
        await target.answer(target.ids(TextPlan(f"{seed}/prefill/{tokens}/{number}", tokens)), answer)
        assert answer.ttft_s is not None
        spent.append(answer.ttft_s)
    return PrefillFigures(tokens, times, median(spent), min(spent))
