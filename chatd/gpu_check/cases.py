"""What is measured on an engine, each as one line of the report."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from chatd.cache.block_tier import BLOCK_LEN
from chatd.cache.radix_node import pack
from chatd.gpu_check.bench import NAMESPACE, Bench, Timeline
from chatd_kernels import floors
from chatd_kernels.shapes import ModelShape

SPILL_S = 60.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens, but for ``batches`` (requests at once) and ``repeats``. ``kept_len`` is whole blocks."""

    batches: tuple[int, ...]
    batch_prompt_len: int
    answer_len: int
    prompt_len: int
    kept_len: int
    repeats: int
    context_length: int
    step_tokens: int

    def __post_init__(self) -> None:
        assert self.kept_len % BLOCK_LEN == 0

    @property
    def max_running(self) -> int:
        return max(self.batches)


REAL = Sizes((1, 16, 128), 512, 256, 2048, 1856, 5, 4096, 2048)
SMALL = Sizes((1, 2, 5), 24, 6, 80, 64, 2, 256, 64)


@dataclass(frozen=True, slots=True)
class Case:
    """``run`` gives the figure in ``unit``; ``floor`` in the same, None where none is known."""

    name: str
    unit: str
    run: Callable[[], float]
    floor: float | None = None
    needs_tokens: int = 0


@dataclass
class Prompts:
    """Random ids, never the same twice."""

    vocab: int
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def new(self, length: int) -> list[int]:
        ids: list[int] = self.random.integers(0, self.vocab, length).tolist()
        return ids


def engine_cases(bench: Bench, sizes: Sizes, shape: ModelShape, prompts: Prompts) -> Iterator[Case]:
    for batch in sizes.batches:
        yield _decode_case(bench, sizes, shape, prompts, batch)
    for name, run in (
        ("cold", lambda: _cold(bench, sizes, prompts)),
        ("90 % cached", lambda: _cached(bench, sizes, prompts)),
        ("90 % restored from host", lambda: _restored(bench, sizes, prompts)),
    ):
        yield Case(
            f"TTFT, {sizes.prompt_len:,} tokens {name}", "ms", _median(run, sizes.repeats),
            needs_tokens=sizes.prompt_len + sizes.kept_len,
        )  # fmt: skip


def _decode_case(bench: Bench, sizes: Sizes, shape: ModelShape, prompts: Prompts, batch: int) -> Case:
    def ask(answer_len: int) -> list[Timeline]:
        return bench.ask([prompts.new(sizes.batch_prompt_len) for _ in range(batch)], answer_len)

    def run() -> float:
        ask(3)  # what is compiled at its first use is then
        return decode_rate(ask(sizes.answer_len))

    context = sizes.batch_prompt_len + sizes.answer_len // 2
    step_ms = sum(map(floors.floor_ms, floors.step(shape, batch, 1, context).values()))
    return Case(
        f"decode, batch {batch}, {context} tokens of context",
        "tokens/s",
        run,
        1e3 * batch / step_ms,
        batch * (sizes.batch_prompt_len + sizes.answer_len),
    )


def decode_rate(timelines: list[Timeline]) -> float:
    """Ids a second while all requests decode: from the last one's first id to the first one's last."""
    begin = max(timeline.ids_at[0] for timeline in timelines)
    end = min(timeline.ids_at[-1] for timeline in timelines)
    counted = sum(begin < at <= end for timeline in timelines for at in timeline.ids_at)
    return counted / (end - begin)


def _median(run: Callable[[], float], repeats: int) -> Callable[[], float]:
    return lambda: statistics.median(run() for _ in range(repeats))


def _cold(bench: Bench, sizes: Sizes, prompts: Prompts) -> float:
    return _ttft_ms(bench, prompts.new(sizes.prompt_len), gpu_hit=0, disk_hit=0)


def _cached(bench: Bench, sizes: Sizes, prompts: Prompts) -> float:
    kept = prompts.new(sizes.kept_len)
    bench.ask([kept], 1)
    tail = prompts.new(sizes.prompt_len - sizes.kept_len)
    return _ttft_ms(bench, kept + tail, gpu_hit=sizes.kept_len, disk_hit=0)


def _restored(bench: Bench, sizes: Sizes, prompts: Prompts) -> float:
    kept = prompts.new(sizes.kept_len)
    bench.tier.accepts = True
    bench.ask([kept], 1)
    if not bench.tier.wait_for(bench.tier.chain(pack(kept), NAMESPACE, 0), SPILL_S):
        raise RuntimeError("what was computed did not reach host memory")
    bench.tier.accepts = False
    bench.clear_memory()
    tail = prompts.new(sizes.prompt_len - sizes.kept_len)
    return _ttft_ms(bench, kept + tail, gpu_hit=0, disk_hit=sizes.kept_len)


def _ttft_ms(bench: Bench, ids: list[int], *, gpu_hit: int, disk_hit: int) -> float:
    """Raises RuntimeError if the prompt did not come from where it should: then the time means nothing."""
    (timeline,) = bench.ask([ids], 1)
    prefill = timeline.prefill
    if prefill is None or (prefill.gpu_hit, prefill.disk_hit) != (gpu_hit, disk_hit):
        raise RuntimeError(f"{gpu_hit} tokens should have been cached and {disk_hit} restored: {prefill}")
    return 1e3 * timeline.ttft_s
