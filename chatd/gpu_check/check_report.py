"""What was found, as one JSON object and as a short table. Without a card there is no figure in either."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
import triton

from chatd import __version__
from chatd.gpu_check.cases import Sizes
from chatd_kernels.check import Report
from chatd_kernels.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class Result:
    """``value`` in ``unit``; None where nothing is measured, and where ``note`` says why not."""

    name: str
    graphs: bool
    unit: str
    value: float | None
    floor: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """What an engine was made with: sizes of decode steps that were ``captured``, and the bytes that took."""

    graphs: bool
    kernels: str
    kv_tokens: int
    seconds: float
    captured: tuple[int, ...]
    capture_bytes: int


@dataclass(frozen=True, slots=True)
class CheckReport:
    """``measured``: on a card. ``kernels`` is None elsewhere."""

    measured: bool
    device: str
    shape: ModelShape
    sizes: Sizes
    kernels: Report | None
    starts: Sequence[Start]
    results: Sequence[Result]

    def json(self) -> str:
        return json.dumps(
            {
                "measured": self.measured,
                "device": self.device,
                "versions": {"chatd": __version__, "torch": torch.__version__, "triton": triton.__version__},
                "model": asdict(self.shape) | {"weights": "random"},
                "sizes": asdict(self.sizes),
                "kernels": None if self.kernels is None else asdict(self.kernels),
                "starts": [asdict(start) for start in self.starts] if self.measured else [],
                "engine": [asdict(result) for result in self.results],
            }
        )

    def table(self) -> Iterator[str]:
        versions = f"torch {torch.__version__}, triton {triton.__version__}"
        yield f"\n{self.device} ({versions}); {self.shape.name}, random weights"
        if self.kernels is not None:
            yield _kernels_line(self.kernels)
        if self.measured:
            yield from map(_start_line, self.starts)
        yield from map(line, self.results)


def line(result: Result) -> str:
    how = "graphs" if result.graphs else "kernel by kernel"
    if result.value is None:
        return f"{result.name:46} {how:16} {result.note}"
    floor = "" if result.floor is None else f"  (at an H200's floor: {result.floor:,.0f})"
    return f"{result.name:46} {how:16} {result.value:10,.1f} {result.unit}{floor}"


def _kernels_line(report: Report) -> str:
    wrong = ", ".join(outcome.name for outcome in report.kernels if not outcome.right)
    left_out = "; some left out, no time" if report.left_out else ""
    return f"kernels: {len(report.kernels)} cases, wrong: {wrong or 'none'}{left_out}"


def _start_line(start: Start) -> str:
    captured = f", {len(start.captured)} graphs in {start.capture_bytes:,} bytes" if start.captured else ""
    kv = f"{start.kv_tokens:,} tokens of KV"
    return f"start: {start.seconds:.1f} s, {start.kernels} kernels, {kv}{captured}"
