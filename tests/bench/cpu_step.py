"""Steps of the runner on a CPU, without a server: ``python -m tests.bench.cpu_step --model FILE``.

Prefill in chunks, decode of 1, 16 and 64 rows with 500 tokens of context, 16 rows that extend 480 cached
tokens by 20: medians and, since others may use the machine, minima. ``--profile`` says where a step's time
goes, on one thread, by its own CPU time. A floor is weights and KV read once, at the measured rate.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from chatd.cli.machine import read_rate
from chatd.engine.messages import SamplingParams
from chatd.engine.plan import StepPlan, StepRow
from chatd.engine.runner import TorchRunner
from chatd.ids import Rid
from chatd.model.kv_pool import KV_FORMS, KVPool, bytes_per_token, plan_pages
from chatd.model.load import load_weights, open_model, weight_form
from chatd.model.weights import Weights
from chatd_kernels import load_backend
from chatd_kernels.cpu import team
from chatd_kernels.ops import Ops

CPU = torch.device("cpu")
PAGE_SIZE, CONTEXT = 16, 500
OPERATIONS = (
    "rms_norm",
    "add_rms_norm",
    "silu_mul",
    "rope_store_kv",
    "plan_decode",
    "decode_attention",
    "plan_extend",
    "extend_attention",
    "sample",
)
LINEARS = ("qkv", "attn_output", "gate_up", "down")
Answer = TypeVar("Answer")


class Bench:
    def __init__(
        self, weights: Weights, ops: Ops, kv: torch.dtype, params: SamplingParams, record: bool
    ) -> None:
        self.weights, self.kv, self._params = weights, kv, params
        plan = plan_pages(weights.config, kv, PAGE_SIZE, 1 << 30)
        self._runner = TorchRunner(weights, KVPool(weights.config, plan, kv, CPU), ops)
        team.use_own_threads(weights.bits > 0)
        if record:
            self._runner.record(64, 1024)

    def row(self, i: int, start: int, count: int, *, sample: bool = True) -> StepRow:
        """Row ``i`` has pages of its own, for 640 tokens; row 0 alone may have more."""
        ids = [(37 * j) % 49_000 for j in range(start + count)]
        pages = list(range(40 * i, 40 * i + -(-(start + count) // PAGE_SIZE)))
        return StepRow(Rid(str(i)), ids, start, count, pages, sample, start + count, self._params)

    def step(self, rows: Sequence[StepRow]) -> None:
        self._runner.launch(StepPlan([], list(rows))).wait()

    def prefill(self, total: int, chunk: int) -> None:
        for start in range(0, total, chunk):
            self.step([self.row(0, start, min(chunk, total - start), sample=start + chunk >= total)])

    def decode(self, rows: int) -> Callable[[], None]:
        return lambda: self.step([self.row(i, CONTEXT, 1) for i in range(rows)])

    def floor_s(self, rows: int, rate: float) -> float:
        """Weights and KV read once at ``rate`` GB/s."""
        context = rows * CONTEXT * bytes_per_token(self.weights.config, self.kv)
        return (self.weights.nbytes + context) / rate / 1e9


def show(name: str, work: Callable[[], None], times: int, tokens: int, floor_s: float = 0.0) -> None:
    work()
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    median, least = statistics.median(spent), min(spent)
    floor = f", floor {floor_s * 1e3:.1f} ms" if floor_s else ""
    print(
        f"{name:<24}{median * 1e3:8.1f} ms (least {least * 1e3:.1f}){floor}; {tokens / median:7.0f} tokens/s",
        flush=True,
    )


class Clock:
    """CPU time of this thread by operation."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)

    def timed(self, name: str, function: Callable[..., Answer]) -> Callable[..., Answer]:
        def run(*args: Any, **named: Any) -> Answer:
            began = time.thread_time()
            answer = function(*args, **named)
            self.spent[name] += time.thread_time() - began
            return answer

        return run

    def ranked(self) -> list[tuple[str, float]]:
        """Most first."""
        return sorted(self.spent.items(), key=lambda one: -one[1])

    def watch(self, ops: Ops, weights: Weights) -> None:
        for name in OPERATIONS:
            setattr(ops, name, self.timed(name, getattr(ops, name)))
        for layer in weights.layers:
            for name in LINEARS:
                object.__setattr__(layer, name, self.timed(name, getattr(layer, name)))
        for name in ("head", "embedding"):
            object.__setattr__(weights, name, self.timed(name, getattr(weights, name)))


def profile(bench: Bench, clock: Clock, rows: int, times: int = 10) -> None:
    work = bench.decode(rows)
    work()
    clock.spent.clear()
    began = time.thread_time()
    for _ in range(times):
        work()
    whole = (time.thread_time() - began) / times
    known = sum(clock.spent.values()) / times
    parts = ", ".join(f"{name} {spent / times * 1e3:.2f}" for name, spent in clock.ranked())
    rest = f"between operations {(whole - known) * 1e3:.2f}"
    print(f"one thread, {rows} rows: {whole * 1e3:.2f} ms of CPU: {parts}, {rest}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--kernels", default="cpu")
    parser.add_argument("--kv-dtype", default="bf16", choices=list(KV_FORMS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--sampling", action="store_true", help="temperature 0.8 and top_p 0.95, not greedy")
    parser.add_argument("--eager", action="store_true", help="no recordings of decode steps")
    parser.add_argument("--decode", action="store_true", help="decode alone")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1 if options.profile else options.threads)
    file = open_model(options.model)
    form = weight_form(options.weights, CPU, file)
    weights = load_weights(file, dtype=form.dtype, bits=form.bits, device=CPU)
    params = (
        SamplingParams(temperature=0.8, top_p=0.95) if options.sampling else SamplingParams(temperature=0)
    )
    ops, clock = load_backend(options.kernels), Clock()
    if options.profile:
        clock.watch(ops, weights)
    bench = Bench(weights, ops, KV_FORMS[options.kv_dtype], params, not (options.profile or options.eager))
    print(f"{form.name} weights, {options.kernels} kernels, KV in {options.kv_dtype}")
    if options.profile:
        for rows in (1, 16, 64):
            profile(bench, clock, rows)
        return
    rate = read_rate(options.threads)
    for total in () if options.decode else (128, 512, 2000):
        show(f"prefill {total}", lambda total=total: bench.prefill(total, 128), 5, total)  # type: ignore[misc]
    for rows in (1, 16, 64):
        show(f"decode {rows} rows", bench.decode(rows), options.times, rows, bench.floor_s(rows, rate))
    if options.decode:
        return
    extending = [bench.row(i, 480, 20) for i in range(16)]
    show("extend 16 x 20 on 480", lambda: bench.step(extending), 5, 320)


if __name__ == "__main__":
    main()
