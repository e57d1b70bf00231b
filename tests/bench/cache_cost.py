"""What the prefix cache costs where nothing is ever found in it: ``python -m tests.bench.cache_cost MODEL``.

Two of the server's own engines, one with the cache and one without, take turns at the same load: 8 sessions
with prompts that no other ever had. CPU time of the whole process is compared, pair by pair; beside it
the engine thread's CPU time outside the runner (scheduler, tree, detokeniser), which other processes
disturb less.
"""

import argparse
import itertools
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import torch

from chatd.cli.cores import compute_threads
from chatd.cli.loading import load
from chatd.config import Settings
from chatd.engine.messages import Finished, SamplingParams, StepOutput, Submit
from chatd.engine.plan import Flight, StepPlan
from chatd.ids import Namespace, Rid

SESSIONS, PROMPT, TOKENS = 8, 300, 64
KV_BYTES, WARMING = 96 << 20, 3
"""The pool is full after so many rounds: before, each page's first use makes the system find memory for it,
which is no cost of the cache but comes once to a pool, the sooner the less is used again.
"""


class Side:
    """An engine, and what a round of the load costs it."""

    def __init__(self, model: Path, *, cache: bool, disk: str) -> None:
        settings = Settings(model=str(model), disk=disk, kv_bytes=KV_BYTES, no_prefix_cache=not cache)
        self._left = 0
        self._done = threading.Event()
        self._loaded = load(settings, self._post, lambda share, what: None)
        self._engine: Any = self._loaded.engine
        self._in_runner = 0.0
        runner: Any = self._engine._runner
        self._launch = runner.launch
        runner.launch = self._timed
        self._main = 0.0
        self._engine.start()

    def _timed(self, plan: StepPlan) -> Flight:
        began = time.thread_time()
        flight: Flight = self._launch(plan)
        self._in_runner += time.thread_time() - began
        return flight

    def _post(self, out: StepOutput) -> None:
        self._main = time.thread_time() - self._in_runner
        self._left -= sum(isinstance(update, Finished) for update in out.updates)
        if self._left == 0:
            self._done.set()

    def round(self, numbers: "itertools.count[int]") -> tuple[float, float]:
        """CPU milliseconds a generated token: of the process, and of the engine thread outside the runner."""
        submits = [self._submit(next(numbers)) for _ in range(SESSIONS)]
        self._left = SESSIONS
        self._done.clear()
        whole, own = time.process_time(), self._main
        for submit in submits:
            self._engine.submit(submit)
        self._done.wait()
        whole, own = time.process_time() - whole, self._main - own
        return tuple(1e3 * one / (SESSIONS * TOKENS) for one in (whole, own))  # type: ignore[return-value]

    def _submit(self, number: int) -> Submit:
        ids = tuple((number * 7919 + 31 * j * (1 + number % 13)) % 40_000 + 100 for j in range(PROMPT))
        return Submit(Rid(str(number)), Namespace("one"), ids, SamplingParams(temperature=0), TOKENS)

    def stop(self) -> None:
        self._engine.stop(5)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", type=int, default=8)
    chosen = parser.parse_args()
    torch.set_num_threads(compute_threads())
    numbers = itertools.count(1)
    sides = {name: Side(chosen.model, cache=name == "on", disk="off") for name in ("off", "on")}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for pair in range(chosen.pairs + WARMING):
        order = ("off", "on") if pair % 2 else ("on", "off")
        for name in order:
            cost = sides[name].round(numbers)
            found[name] += [cost] if pair >= WARMING else []
    for side in sides.values():
        side.stop()
    for i, what in enumerate(("whole process", "scheduler, tree and text")):
        on, off = ([cost[i] for cost in found[name]] for name in ("on", "off"))
        ratios = [a / b for a, b in zip(on, off, strict=True)]
        print(
            f"{what}: cache on {statistics.median(on):.3f} ms of CPU a token, "
            f"off {statistics.median(off):.3f}; "
            f"ratio {statistics.median(ratios):.3f} (least {min(on):.3f} / {min(off):.3f})"
        )


if __name__ == "__main__":
    main()
