"""A benchmark of the engine alone: what a step costs, without sockets, texts and the store."""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from chatd.bench.answers import Run
from chatd.bench.drive import drive, open_talks, run_of
from chatd.bench.engine_parts import DecodeFigures, DecodePlan, PrefillFigures, decode, prefill
from chatd.bench.figures import Figures, figures
from chatd.bench.load import Load
from chatd.bench.on_engine import EngineTarget, Listener, ordinary_ids
from chatd.bench.plan import SessionPlan, plan, warm_up_plan
from chatd.bench.trial import interruptible
from chatd.cli.bench_facts import memory_facts
from chatd.cli.bench_options import PARTS
from chatd.cli.bench_screen import BenchScreen
from chatd.cli.cores import compute_threads
from chatd.cli.loading import Loaded, Progress, choose_device, step_tokens
from chatd.cli.own_thread import in_own_thread
from chatd.config import Settings
from chatd.engine.messages import StepOutput
from chatd.errors import SetupError

Loader = Callable[[Settings, Callable[[StepOutput], None], Progress], Loaded]

DECODE, PREFILL, TURNS = PARTS
STOP_S = 5.0
WARM_UP_LEN = 64


@dataclass(frozen=True, slots=True)
class Parts:
    """What is measured: ``names`` of `PARTS`. ``decode_len`` steps are, of each batch."""

    names: Sequence[str]
    batches: Sequence[int]
    decode_context: int
    decode_len: int
    prefills: Sequence[int]
    repeat: int


@dataclass(slots=True)
class EngineOutcome:
    """Grows while it is measured; ``run`` is None before its turn came."""

    decoded: list[DecodeFigures] = field(default_factory=list)
    prefilled: list[PrefillFigures] = field(default_factory=list)
    run: Run | None = None
    interrupted: bool = False
    model: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def turns(self) -> Figures | None:
        return figures(self.run) if self.run is not None and self.run.answers else None


async def bench(
    settings: Settings, load: Load, parts: Parts, screen: BenchScreen, loader: Loader
) -> EngineOutcome:
    """Load the model and measure it. `SetupError` for what does not fit. Ctrl-C ends it early."""
    torch.set_num_threads(compute_threads())
    listener = Listener(asyncio.get_running_loop())
    settings = replace(settings, disk="off")
    with screen.waiting("loading the model") as said:

        def progress(share: float, what: str) -> None:
            said(f"{what} {round(100 * share)} %")

        loaded = await in_own_thread(lambda: loader(settings, listener.post, progress), "chatd-load")
    backend = loaded.backend
    plans = _decode_plans(settings, parts)
    _check_fit(loaded, load, parts, plans)
    vocab = ordinary_ids(backend.vocab_size, backend.tokenizer.special_ids)
    target = EngineTarget(loaded.engine, listener, vocab)
    outcome = EngineOutcome(model=_model_facts(loaded))
    loaded.engine.start()
    try:
        outcome.interrupted = await interruptible(_measure(target, load, parts, plans, outcome, screen))
    finally:
        await asyncio.to_thread(loaded.engine.stop, STOP_S)
    if outcome.run is not None:
        outcome.run.interrupted = outcome.interrupted
    outcome.memory = memory_facts(os.getpid(), loaded.kv.nbytes)
    return outcome


def _decode_plans(settings: Settings, parts: Parts) -> list[DecodePlan]:
    tokens = step_tokens(settings, choose_device(settings.device))
    cached = not settings.no_prefix_cache
    return [
        DecodePlan.of(batch, parts.decode_context, parts.decode_len, tokens, cached=cached)
        for batch in parts.batches
    ]


def _check_fit(loaded: Loaded, load: Load, parts: Parts, plans: Sequence[DecodePlan]) -> None:
    most = loaded.engine.capacity_len
    longest = {
        DECODE: max((one.kv_len for one in plans), default=0),
        PREFILL: 1 + max(parts.prefills, default=0),
        TURNS: load.longest,
    }
    for name in parts.names:
        if longest[name] > most:
            raise SetupError(
                f"The part {name} wants {longest[name]:,} tokens of context, but this model and its KV pool "
                f"have {most:,}. Take shorter ones, or leave it out with --only."
            )
    held = max((one.batch * one.kv_len for one in plans), default=0)
    if DECODE in parts.names and held > loaded.kv.tokens:
        raise SetupError(
            f"Decoding at these batch sizes wants KV of {held:,} tokens, but the pool holds "
            f"{loaded.kv.tokens:,}. Take smaller --batches, a shorter --decode-context, or more --kv-bytes."
        )


async def _measure(
    target: EngineTarget,
    load: Load,
    parts: Parts,
    plans: Sequence[DecodePlan],
    outcome: EngineOutcome,
    screen: BenchScreen,
) -> None:
    with screen.waiting("warming up") as said:
        await prefill(target, WARM_UP_LEN, 1, load.seed)
        if DECODE in parts.names:
            for one in plans:
                said(f"decode at {one.batch}")
                outcome.decoded.append(await decode(target, one, load.seed))
        if PREFILL in parts.names:
            for tokens in parts.prefills:
                said(f"prefill of {tokens:,} tokens")
                outcome.prefilled.append(await prefill(target, tokens, parts.repeat, load.seed))
        if TURNS in parts.names and load.warm_up:
            said("warming up")
            await _drive(target, warm_up_plan(load), Run(0))
    if TURNS in parts.names:
        sessions = plan(load)
        outcome.run = run_of(sessions)
        async with screen.running("turns", outcome.run):
            await _drive(target, sessions, outcome.run)


async def _drive(target: EngineTarget, sessions: Sequence[SessionPlan], run: Run) -> None:
    await drive(sessions, await open_talks(sessions, target), run)


def _model_facts(loaded: Loaded) -> dict[str, Any]:
    backend = loaded.backend
    return {
        "name": backend.model_name,
        "context_length": backend.context_length,
        "device": loaded.device,
        "weights": loaded.weights,
        "kernels": loaded.kernels,
        "kv_dtype": loaded.kv_dtype,
        "kv_bytes": loaded.kv.nbytes,
        "page_size": loaded.kv.page_size,
        "cache_on": backend.cache_on,
    }


def as_json(load: Load, outcome: EngineOutcome) -> dict[str, Any]:
    """The part of the document that was measured."""
    turns = outcome.turns
    return {
        "load": load.as_json(),
        "model": outcome.model,
        "interrupted": outcome.interrupted,
        "memory": outcome.memory,
        "decode": [asdict(one) for one in outcome.decoded],
        "prefill": [asdict(one) | {"tokens_per_s": one.tokens_per_s} for one in outcome.prefilled],
        "turns": None if turns is None else turns.as_json(),
    }
