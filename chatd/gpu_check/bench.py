"""The engine as it serves, but for text: prompts of ids in, the times of ids out."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from queue import SimpleQueue

from chatd.cache.prefix_cache import PrefixCache
from chatd.cache.tiering import Tiering
from chatd.engine.engine import Engine
from chatd.engine.messages import (
    CacheDone,
    ClearCache,
    Finished,
    FinishReason,
    Piece,
    Prefill,
    SamplingParams,
    StepOutput,
    Submit,
    Update,
)
from chatd.engine.prepare import Prepared, RunnerSettings, prepare
from chatd.engine.scheduler import Scheduler, SchedulerLimits
from chatd.gpu_check.host_tier import AlwaysLoad, HostTier
from chatd.ids import Namespace, Rid
from chatd.model.weights import Weights

PATIENCE_S = 120.0
"""For one update of the engine: compiling a kernel takes seconds."""
NAMESPACE = Namespace("check")


class RawAnswer:
    """`chatd.engine.request.Answer` without text: a space stands for each id."""

    def __init__(self) -> None:
        self._ids: list[int] = []

    def push(self, token_id: int) -> tuple[str, tuple[int, ...], bool]:
        self._ids.append(token_id)
        return " ", (token_id,), False

    def finish(self) -> tuple[str, tuple[int, ...]]:
        return "", ()

    def answer_ids(self) -> tuple[int, ...]:
        return tuple(self._ids)


@dataclass(slots=True)
class Timeline:
    """One request: when it was asked for, and when each of its ids came. Seconds of `time.perf_counter`."""

    asked_at: float
    ids_at: list[float] = field(default_factory=list)
    prefill: Prefill | None = None
    finished: Finished | None = None

    @property
    def ttft_s(self) -> float:
        return self.ids_at[0] - self.asked_at

    def take(self, update: Update, now: float) -> None:
        match update:
            case Piece():
                self.ids_at.append(now)
            case Prefill():
                self.prefill = update
            case Finished():
                self.finished = update


class Bench:
    """Owns an engine and its thread: `close` it."""

    def __init__(self, weights: Weights, settings: RunnerSettings) -> None:
        self.prepared: Prepared = prepare(weights, settings, lambda share, what: None)
        runner, plan = self.prepared.runner, self.prepared.kv
        if settings.graphs and not runner.overlaps:
            # On a CPU nothing is captured at a start; here the padded steps are to run all the same.
            runner.capture(settings.max_running, settings.context_length, lambda share, what: None)
        self.tier = HostTier(runner.block_bytes)
        cache = PrefixCache(plan.num_pages, plan.page_size)
        tiering = Tiering(cache, self.tier, runner.take_buffer, AlwaysLoad())
        cache.on_evict = tiering.spiller.on_evict
        limits = SchedulerLimits(settings.step_tokens, settings.max_running, settings.context_length)
        scheduler = Scheduler(cache, limits, lambda stop: RawAnswer(), frozenset(), tiering)
        self._posted: SimpleQueue[tuple[float, StepOutput]] = SimpleQueue()
        self._engine = Engine(scheduler, runner, lambda out: self._posted.put((time.perf_counter(), out)))
        self._names = count()
        self._engine.start()

    def close(self) -> None:
        self._engine.stop(PATIENCE_S)
        self.tier.close()

    def ask(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Timeline]:
        """All at once, greedily; returns when all have ended. Raises RuntimeError if one fails."""
        timelines: dict[Rid, Timeline] = {}
        for ids in prompts:
            rid = Rid(f"check-{next(self._names)}")
            submit = Submit(rid, NAMESPACE, tuple(ids), SamplingParams(temperature=0.0), max_tokens)
            timelines[rid] = Timeline(time.perf_counter())
            self._engine.submit(submit)
        while any(timeline.finished is None for timeline in timelines.values()):
            now, out = self._posted.get(timeout=PATIENCE_S)
            for update in out.updates:
                if update.rid in timelines:
                    timelines[update.rid].take(update, now)
        for timeline in timelines.values():
            ended = timeline.finished
            if ended is None or ended.reason is not FinishReason.LENGTH:
                raise RuntimeError(f"a request did not run to its end: {ended}")
        return list(timelines.values())

    def clear_memory(self) -> None:
        """Every cached page goes; what the tier has stays."""
        rid = Rid(f"check-{next(self._names)}")
        self._engine.send(ClearCache(rid, disk=False))
        done = False
        while not done:
            _, out = self._posted.get(timeout=PATIENCE_S)
            done = any(isinstance(update, CacheDone) and update.rid == rid for update in out.updates)
