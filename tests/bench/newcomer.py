"""How long a new session waits for its first token while others stream:
``python -m tests.bench.newcomer MODEL``.

The server's own engine; 16 sessions decode all the time, and one after the other newcomers come with a
prompt that nobody had before. Prints their time to the first token, the same with nobody else there, and what
the streams' steps took meanwhile.
"""

import argparse
import itertools
import statistics
import threading
import time
from pathlib import Path

import torch

from chatd.cli.cores import compute_threads
from chatd.cli.loading import load
from chatd.config import Settings
from chatd.engine.messages import Finished, Piece, SamplingParams, StepOutput, Submit
from chatd.ids import Namespace, Rid


class Bench:
    """``post`` is called on the engine thread: ``streams`` never end, each that does is begun again."""

    def __init__(self, model: Path, step_tokens: int | None) -> None:
        self.gaps: list[float] = []
        self._numbers = itertools.count(1)
        self._waits_for: Rid | None = None
        self._first = threading.Event()
        self._streams: set[Rid] = set()
        self._last = 0.0
        settings = Settings(model=str(model), disk="off", kv_bytes=1 << 30)
        if step_tokens is not None:
            settings = Settings(model=str(model), disk="off", kv_bytes=1 << 30, step_tokens=step_tokens)
        self.engine = load(settings, self._post, lambda share, what: None).engine
        self.engine.start()

    def stream(self, prompt_len: int) -> None:
        self._streams.add(self._submit(prompt_len, 4000))

    def newcomer(self, prompt_len: int) -> float:
        """Seconds to its first token."""
        self._first.clear()
        self._waits_for = Rid(str(next(self._numbers)))
        began = time.perf_counter()
        self._submit(prompt_len, 1, self._waits_for)
        self._first.wait()
        return time.perf_counter() - began

    def _submit(self, prompt_len: int, tokens: int, rid: Rid | None = None) -> Rid:
        number = next(self._numbers)
        rid = Rid(str(number)) if rid is None else rid
        ids = tuple((number * 7919 + 31 * j) % 40_000 + 100 for j in range(prompt_len))
        self.engine.submit(Submit(rid, Namespace(str(number)), ids, SamplingParams(temperature=0), tokens))
        return rid

    def _post(self, out: StepOutput) -> None:
        now = time.perf_counter()
        if any(isinstance(update, Piece) and update.rid in self._streams for update in out.updates):
            self.gaps.append(now - self._last)
            self._last = now
        if any(isinstance(update, Finished) and update.rid == self._waits_for for update in out.updates):
            self._first.set()


def show(name: str, seconds: list[float]) -> None:
    ranked = sorted(seconds)
    p95 = ranked[int(0.95 * (len(ranked) - 1))]
    print(
        f"{name:<34} median {1e3 * statistics.median(ranked):.0f} ms, p95 {1e3 * p95:.0f} ms, "
        f"least {1e3 * ranked[0]:.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=400)
    parser.add_argument("--times", type=int, default=12)
    parser.add_argument("--step-tokens", type=int)
    chosen = parser.parse_args()
    torch.set_num_threads(compute_threads())
    bench = Bench(chosen.model, chosen.step_tokens)
    bench.newcomer(chosen.prompt)
    show("alone: first token", [bench.newcomer(chosen.prompt) for _ in range(chosen.times)])
    for _ in range(chosen.streams):
        bench.stream(100)
    while len(bench.gaps) < 30:  # all have their prompts
        time.sleep(0.1)
    bench.gaps.clear()
    time.sleep(3)
    quiet, bench.gaps = bench.gaps[1:], []
    among = [bench.newcomer(chosen.prompt) for _ in range(chosen.times)]
    show(f"beside {chosen.streams} streams: first token", among)
    show("the streams' steps, nobody coming", quiet)
    show("the streams' steps meanwhile", bench.gaps[1:])
    bench.engine.stop(5)


if __name__ == "__main__":
    main()
