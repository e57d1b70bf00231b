"""``python -m chatd.gpu_check``: see the package."""

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from chatd.engine.prepare import RunnerSettings
from chatd.errors import ChatdError
from chatd.gpu_check import __doc__ as PURPOSE
from chatd.gpu_check.bench import Bench
from chatd.gpu_check.cases import REAL, SMALL, Case, Prompts, Sizes, engine_cases
from chatd.gpu_check.check_report import CheckReport, Result, Start, line
from chatd.gpu_check.random_model import SHAPES, random_weights
from chatd.model.kv_pool import KV_FORMS, kv_dtype
from chatd.model.memory import out_of_memory_says
from chatd.model.weights import Weights
from chatd_kernels.check import check_all
from chatd_kernels.shapes import ModelShape

NO_DEVICE = 2
KERNELS_SHARE = 0.4
"""Of the time, at most, for the kernels."""
NOT_A_CARD = "a CPU: NOTHING WAS MEASURED, this only shows that the program runs"
NO_CARD = (
    "There is no CUDA device here, so nothing can be checked or measured. To see the program itself run, "
    "with a tiny model and without any figure: --device cpu --shape tiny"
)


class Check:
    """``until``: when the time is up, on the clock of `time.monotonic`."""

    def __init__(self, options: argparse.Namespace, where: torch.device, until: float) -> None:
        self.shape: ModelShape = SHAPES[options.shape]
        self.sizes: Sizes = REAL if options.shape == "llama-3-8b" else SMALL
        self.measures = where.type != "cpu"
        self._where = where
        self._options = options
        self._until = until
        self.starts: list[Start] = []
        self.results: list[Result] = []

    def in_time(self) -> bool:
        return time.monotonic() < self._until

    def engines(self) -> None:
        dtype = torch.bfloat16 if self.measures else torch.float32
        with out_of_memory_says("weights were made", self._where, "The card is too small for this shape."):
            weights = random_weights(self.shape, self.sizes.context_length, dtype, self._where)
        for graphs in (False, True):
            if self.in_time():
                self._engine(weights, graphs)
            gc.collect()  # the pool of the one before
            if self.measures:
                torch.cuda.empty_cache()

    def _engine(self, weights: Weights, graphs: bool) -> None:
        began = time.monotonic()
        bench = Bench(weights, self._settings(weights, graphs))
        prepared = bench.prepared
        seconds = time.monotonic() - began
        kv_tokens, taken = prepared.kv.tokens, (prepared.graphs, prepared.graph_bytes)
        self.starts.append(Start(graphs, prepared.kernels, kv_tokens, seconds, *taken))
        try:
            for case in engine_cases(bench, self.sizes, self.shape, Prompts(self.shape.vocab)):
                self.results.append(self._run(case, graphs, kv_tokens))
                print(line(self.results[-1]), flush=True)
        finally:
            bench.close()

    def _settings(self, weights: Weights, graphs: bool) -> RunnerSettings:
        return RunnerSettings(
            kv_dtype=kv_dtype(self._options.kv_dtype, weights.dtype, self._where),
            context_length=self.sizes.context_length,
            step_tokens=self.sizes.step_tokens,
            max_running=self.sizes.max_running,
            kv_bytes=None if self.measures else 1 << 22,
            kernels=self._options.kernels,
            graphs=graphs,
        )

    def _run(self, case: Case, graphs: bool, kv_tokens: int) -> Result:
        def result(value: float | None, note: str) -> Result:
            return Result(case.name, graphs, case.unit, value, case.floor if self.measures else None, note)

        if not self.in_time():
            return result(None, "left out: no time")
        if case.needs_tokens > kv_tokens:
            return result(None, f"left out: {case.needs_tokens:,} tokens of KV are needed, {kv_tokens:,} fit")
        value = case.run()
        return result(value, "") if self.measures else result(None, "ran, not measured")


def options_from(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m chatd.gpu_check",
        description=PURPOSE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="begin nothing new after so long")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="llama-3-8b")
    parser.add_argument("--kernels", choices=("auto", "triton", "reference"), default="auto")
    parser.add_argument("--kv-dtype", choices=("auto", *KV_FORMS), default="auto")
    parser.add_argument("--json", type=Path, help="write everything there, as one JSON object")
    options = parser.parse_args(argv)
    if options.device == "cpu" and options.shape != "tiny":
        parser.error("--device cpu runs --shape tiny only: it measures nothing")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """0: all that ran is right; 1: a kernel or the engine is not; 2: there is no card."""
    options = options_from(argv)
    on_card = options.device == "cuda"
    if on_card and not torch.cuda.is_available():
        print(NO_CARD, file=sys.stderr)
        return NO_DEVICE
    began, seconds = time.monotonic(), 60 * options.minutes
    card = torch.cuda.get_device_name() if on_card else NOT_A_CARD
    kernels = None
    if on_card:
        kernels = check_all(small=False, more=lambda: time.monotonic() < began + KERNELS_SHARE * seconds)
    check = Check(options, torch.device(options.device), began + seconds)
    try:
        check.engines()
    except (ChatdError, RuntimeError) as error:
        print(f"The engine could not be checked to the end: {error}", file=sys.stderr)
        return 1
    finally:
        report = CheckReport(
            check.measures, card, check.shape, check.sizes, kernels, check.starts, check.results
        )
        if options.json:
            options.json.write_text(report.json())
        print("\n".join(report.table()))
    return 0 if kernels is None or kernels.right else 1


if __name__ == "__main__":
    sys.exit(main())
