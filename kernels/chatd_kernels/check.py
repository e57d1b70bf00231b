"""Every kernel against reference, and timed against its floor: run it first on a new card.

    python -m chatd_kernels.check [--small] [--json FILE]

Needs torch, triton and numpy only. Under TRITON_INTERPRET=1 it compares small shapes on a CPU and times
nothing. Exit status 1 if anything differs. The floors are those of `floors`, for an H200; the card's own copy
bandwidth is measured and printed beside them.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from chatd_kernels import load_backend
from chatd_kernels.check_cases import Case, Size, all_cases

TOLERANCE = 0.02
"""Norm of the difference over the norm of what reference gives in float32: bf16 stays under 0.01."""
REPLAYS = 30


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times in microseconds, None where nothing is timed."""

    name: str
    error: float
    time_us: float | None
    floor_us: float

    @property
    def right(self) -> bool:
        return self.error <= TOLERANCE  # NaN is not


def compare(case: Case) -> float:
    """Relative error of the worst set of inputs; ids and bytes count those that differ."""
    worst = 0.0
    for i in range(case.sets):
        got, want = case.run(i), case.expect(i)
        if got.dtype.is_floating_point:
            got, want = got.double(), want.double()
            error = float((got - want).norm() / want.norm())
        else:
            error = float((got != want).double().mean())
        worst = max(worst, error) if error == error else error
        if worst != worst:
            break
    return worst


def median_us(run: Callable[[int], object], sets: int) -> float:
    """One launch, of a graph that goes through all sets of inputs: launches cost the host nothing then."""
    for i in range(sets):
        run(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(sets):
            run(i)
    times: list[float] = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / sets)
    return statistics.median(times[3:])


def copy_bytes_per_s() -> float:
    """Of a large copy on the device, read plus written."""
    source = torch.randint(0, 255, (1 << 30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (1e-6 * median_us(lambda _: target.copy_(source), 1))


def measure(case: Case, timed: bool) -> Outcome:
    error = compare(case)
    time_us = median_us(case.run, case.sets) if timed else None
    return Outcome(case.name, error, time_us, 1e6 * case.work.floor_s)


def line(outcome: Outcome) -> str:
    time = (
        "" if outcome.time_us is None else f"{outcome.time_us:9.1f} {outcome.floor_us / outcome.time_us:6.0%}"
    )
    verdict = "ok" if outcome.right else "WRONG"
    return f"{outcome.name:44} {outcome.error:9.2e} {verdict:5} {outcome.floor_us:9.1f} {time}"


@dataclass(frozen=True, slots=True)
class Report:
    """``bytes_per_s`` of a large copy, None where nothing is timed; ``left_out``: some cases were not run."""

    card: str
    bytes_per_s: float | None
    kernels: tuple[Outcome, ...]
    left_out: bool

    @property
    def right(self) -> bool:
        return all(outcome.right for outcome in self.kernels)


def check_all(
    *, small: bool, say: Callable[[str], None] = print, more: Callable[[], bool] = lambda: True
) -> Report:
    """Run every case while ``more()``, a line for each. Raises RuntimeError where there is no GPU."""
    ops, reference = load_backend("triton"), load_backend("reference")
    timed = torch.cuda.is_available() and not small
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    card = torch.cuda.get_device_name() if timed else "no card: small shapes, nothing timed"
    bandwidth = copy_bytes_per_s() if timed else None
    say(card + ("" if bandwidth is None else f", copies at {bandwidth / 1e12:.2f} TB/s"))
    say(f"{'kernel':44} {'error':>9} {'':5} {'floor us':>9} {'us':>9} share")
    outcomes: list[Outcome] = []
    for case in all_cases(ops, reference, device, Size.full() if timed else Size.small()):
        if not more():
            return Report(card, bandwidth, tuple(outcomes), left_out=True)
        outcomes.append(measure(case, timed))
        say(line(outcomes[-1]))
    return Report(card, bandwidth, tuple(outcomes), left_out=False)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m chatd_kernels.check", description=__doc__)
    parser.add_argument("--small", action="store_true", help="tiny shapes, nothing is timed")
    parser.add_argument("--json", type=Path, help="write the results there")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        print("no CUDA device here: nothing was checked, nothing was measured", file=sys.stderr)
        return 2
    report = check_all(small=options.small, say=partial(print, flush=True))
    if options.json:
        options.json.write_text(json.dumps(asdict(report)))
    return 0 if report.right else 1


if __name__ == "__main__":
    sys.exit(main())
