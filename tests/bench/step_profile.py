"""Where a decode step's time goes: ``python -m tests.bench.step_profile MODEL``.

The server's own engine runs its own loop, on its own thread, for 1 and for 16 sessions of about 500 tokens,
which are greedy and never end by themselves. Each part's time is without that of the parts inside it: by the
clock, and the engine thread's own CPU time, which says more where other processes run. A replayed step's
kernels are then timed by kind, one call at a time. The floor is weights and KV, read once at the measured
rate, and a multiply-add of each weight and row at the rate of a large product of the same kernels.
"""

import argparse
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from chatd.cli.cores import compute_threads
from chatd.cli.loading import Loaded, load
from chatd.cli.machine import read_rate
from chatd.config import Settings
from chatd.engine.messages import Finished, Piece, Prefill, SamplingParams, StepOutput, Submit
from chatd.ids import Namespace, Rid
from chatd_kernels.cpu.library import shared

CONTEXT = 500
KINDS = {"linear": "linears", "attention": "attention", "norm": "norms and silu", "store": "rope and store"}


class Clock:
    """Time by part, on the one thread that is in it. ``spent[name]``: by the clock, and CPU, in seconds."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._path: list[str] = []
        self._since = 0.0, 0.0

    def timed(self, owner: Any, name: str, part: str) -> None:
        """From now on ``owner.name`` counts as ``part``."""
        function: Callable[..., Any] = getattr(owner, name)

        def run(*args: Any, **named: Any) -> Any:
            self._switch()
            self._path.append(part)
            try:
                return function(*args, **named)
            finally:
                self._switch()
                self._path.pop()

        object.__setattr__(owner, name, run)

    def begin(self) -> None:
        self.spent.clear()
        self._since = time.perf_counter(), time.thread_time()

    def _switch(self) -> None:
        now = time.perf_counter(), time.thread_time()
        part = self.spent[self._path[-1] if self._path else "the loop itself"]
        for i in range(2):
            part[i] += now[i] - self._since[i]
        self._since = now


class Profile:
    """``post`` is called on the engine thread: steps are counted, and the clock begun and read, there."""

    def __init__(self, model: Path) -> None:
        self.clock = Clock()
        self.steps, self.wanted, self.lead = 0, 0, 0
        self.done = threading.Event()
        self.total = 0.0, 0.0
        self._began = 0.0, 0.0
        self._left = self._pending = {Rid("nobody")}
        settings = Settings(model=str(model), disk="off", kv_bytes=1 << 30)
        self.loaded: Loaded = load(settings, self._post, lambda share, what: None)
        engine = self.loaded.engine
        runner: Any = engine._runner
        self.weights = runner._decoder.weights
        self.recordings = runner._recordings
        self.nbytes = self.weights.nbytes  # its layers are wrapped below
        for owner, name, part in (
            (engine, "_post", "posting"),
            (engine, "_drain_inbox", "inbox"),
            (engine._scheduler, "schedule", "schedule"),
            (engine._scheduler, "commit", "commit"),
            (runner, "launch", "launch: batch and parameters"),
            (runner._ops, "sample", "sampling"),
            (self.recordings, "hidden", "inputs of the recording"),
            (self.weights, "head", "head"),
        ):
            self.clock.timed(owner, name, part)
        engine.start()

    def run(self, sessions: int, steps: int) -> None:
        """Measure ``steps`` steps in which all of ``sessions`` decode."""
        for timed in (False, True):  # the first time prompts are computed, and the step is recorded
            self.steps, self.wanted = 0, steps if timed else 2
            self._left = {Rid(f"{sessions}-{timed}-{i}") for i in range(sessions)}
            self._pending = set(self._left)
            self.done.clear()
            for i, rid in enumerate(sorted(self._left)):
                ids = tuple((37 * i + 11 * j) % 40_000 + 100 for j in range(CONTEXT))
                length = 60 + steps if timed else 8 * sessions
                params = SamplingParams(temperature=0)
                self.loaded.engine.submit(Submit(rid, Namespace(f"u{i}"), ids, params, length))
            self.done.wait()
            if not timed:
                calls: Any = self.recordings.calls(sessions)
                if not hasattr(calls, "_timed"):
                    self.clock.timed(calls, "replay", "kernels")
                    calls._timed = True

    def _post(self, out: StepOutput) -> None:
        for update in out.updates:
            if isinstance(update, Piece | Prefill):
                self._pending.discard(update.rid)
            elif isinstance(update, Finished):
                self._left.discard(update.rid)
        if not self._pending:
            self._count()
        if not self._left:
            self.done.set()

    def _count(self) -> None:
        """All have begun: leave some steps to settle, then measure."""
        now = time.perf_counter(), time.thread_time()
        self.steps += 1
        if self.steps == 4:
            self.clock.begin()
            self._began = now
        elif self.steps == 4 + self.wanted:
            self.total = now[0] - self._began[0], now[1] - self._began[1]
            self.kept = {part: list(spent) for part, spent in self.clock.spent.items()}

    def report(self, sessions: int, rates: tuple[float, float]) -> None:
        steps = self.wanted
        wall, cpu = (1e3 * one / steps for one in self.total)
        print(
            f"{sessions} sessions: a step takes {wall:.2f} ms, {cpu:.2f} ms of the engine thread's CPU time"
        )
        named = 0.0
        for part, (by_clock, own) in sorted(self.kept.items(), key=lambda one: -one[1][1]):
            named += own if part != "the loop itself" else 0.0
            print(f"  {part:<30}{1e3 * by_clock / steps:8.3f} ms {1e3 * own / steps:8.3f} ms CPU")
        print(f"  accounted for: {100 * named / self.total[1]:.0f} % of the CPU time")
        for kind, least in self._kinds(sessions).items():
            print(f"    kernels, {kind:<19}{1e3 * least:8.3f} ms (least, one call at a time)")
        context = sessions * (CONTEXT + steps / 2) * self.loaded.kv.bytes_per_token
        read = (self.nbytes + context) / rates[0] / 1e9
        product = 2 * sessions * self._multiplications() / rates[1] / 1e9
        print(f"  floor: {1e3 * read:.2f} ms to read weights and KV, {1e3 * product:.2f} ms of products")

    def _multiplications(self) -> int:
        """Of a row, with all weights."""
        config = self.weights.config
        heads = (2 * config.n_heads + 2 * config.n_kv_heads) * config.head_dim
        layer = config.hidden * (heads + 3 * config.ffn)
        return int(config.n_layers * layer + config.hidden * config.vocab_size)

    def _kinds(self, sessions: int, times: int = 15) -> dict[str, float]:
        calls = self.recordings.calls(sessions)
        least: dict[str, float] = defaultdict(float)
        names = [shared().name_of(body).split("-")[0] for body in calls.bodies]
        for i, name in enumerate(names):
            spent = []
            for _ in range(times):
                began = time.perf_counter()
                calls.replay_one(i)
                spent.append(time.perf_counter() - began)
            least[KINDS.get(name, name)] += min(spent)
        return dict(sorted(least.items(), key=lambda one: -one[1]))

    def product_rate(self) -> float:
        """Billions of operations a second of a layer over many rows."""
        layer, rows, config = self.weights.layers[0].gate_up, 512, self.weights.config
        x = torch.randn(rows, config.hidden)
        spent = []
        for _ in range(20):
            began = time.perf_counter()
            layer(x)
            spent.append(time.perf_counter() - began)
        return float(4 * rows * config.hidden * config.ffn / min(spent) / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--sessions", type=int, nargs="*", default=[1, 16])
    chosen = parser.parse_args()
    torch.set_num_threads(compute_threads())
    profile = Profile(chosen.model)
    rates = max(read_rate(compute_threads()) for _ in range(3)), profile.product_rate()
    print(f"reads {rates[0]:.1f} GB/s, products {rates[1]:.0f} G operations/s")
    for sessions in chosen.sessions:
        profile.run(sessions, chosen.steps)
        profile.report(sessions, rates)
    profile.loaded.engine.stop(5)


if __name__ == "__main__":
    main()
