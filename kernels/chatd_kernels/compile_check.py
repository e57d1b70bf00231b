"""Compiles every kernel the engine asks for, for GPUs that need not be there, and reads what came out.

    python -m chatd_kernels.compile_check [--target sm_90 ...] [--only TEXT ...] [--json FILE]

Exit status 1: a spill, shared memory over the target's limit, or matrix work without matrix instructions.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chatd_kernels.triton.machine_code import Report
    from chatd_kernels.triton.specialise import Specialisation

TARGETS: dict[str, tuple[int | str, int]] = {
    "sm_80": (80, 108),
    "sm_90": (90, 132),
    "sm_100": (100, 148),
    "gfx942": ("gfx942", 304),
}
"""Architecture and multiprocessors: A100, H200, B200, MI300X."""
MATRIX_KERNELS = ("attend",)


@dataclass(frozen=True, slots=True)
class Result:
    """One kernel on one target; ``faults`` is empty if all is well."""

    target: str
    name: str
    warps: int
    report: "Report"
    faults: tuple[str, ...]


@cache
def listed(target: str) -> "tuple[Specialisation, ...]":
    """What is compiled for ``target``, in a fixed order."""
    from chatd_kernels.triton.launch import Target
    from chatd_kernels.triton.specialise import wanted

    arch, processors = TARGETS[target]
    return tuple(wanted(Target("cuda" if isinstance(arch, int) else "hip", arch, processors)))


def compile_one(target: str, index: int) -> Result:
    """The ``index``-th of `listed`. Runs in a worker."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from chatd_kernels.triton.launch import OPTIONS
    from chatd_kernels.triton.machine_code import LIMITS, report

    arch, _ = TARGETS[target]
    made = listed(target)[index]
    at = {name: i for i, name in enumerate(made.signature)}
    attrs = {(at[name],): [["tt.divisibility", 16]] for name in made.aligned}
    source = ASTSource(made.kernel, made.signature, made.constants, attrs)
    limits = LIMITS[arch]
    kind = "cuda" if isinstance(arch, int) else "hip"
    compiled = triton.compile(
        source,
        target=GPUTarget(kind, arch, limits.warp_size),
        options={"num_warps": made.num_warps, "num_stages": made.num_stages, **OPTIONS},
    )
    found = report(compiled, arch, made.num_warps)
    return Result(target, made.name, made.num_warps, found, faults(made.name, found, limits.program_shared))


def faults(name: str, found: "Report", shared_limit: int) -> tuple[str, ...]:
    """What a build must not have."""
    causes = {
        f"{found.spills} spills": found.spills > 0,
        f"shared memory over {shared_limit}": found.shared > shared_limit,
        "no matrix instruction": name.endswith(MATRIX_KERNELS) and not found.matrix,
    }
    return tuple(cause for cause, there in causes.items() if there)


def check(work: Sequence[tuple[str, int]], processes: int) -> Iterator[Result]:
    """Compile all of ``work`` (target, index); results in its order."""
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        yield from pool.map(compile_one, *zip(*work, strict=True))


def line(result: Result) -> str:
    found = result.report
    matrix = " ".join(f"{name}:{count}" for name, count in sorted(found.matrix.items())) or "-"
    return (
        f"{result.target:7} {result.name:48} {result.warps:5} {found.registers:4} {found.spills:6} "
        f"{found.shared:7} {found.programs:5} {found.occupancy:5.0%}  {matrix}"
        + "".join(f"  FAULT: {fault}" for fault in result.faults)
    )


HEADER = (
    f"{'target':7} {'kernel':48} {'warps':>5} {'regs':>4} {'spills':>6} {'shared':>7} progs  occ.  matrix"
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m chatd_kernels.compile_check", description=__doc__)
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--only", action="append", help="kernels whose name contains one of these")
    parser.add_argument("--json", type=Path, help="write all results there")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args(argv)
    work = [
        (target, i)
        for target in options.target or TARGETS
        for i, made in enumerate(listed(target))
        if options.only is None or any(text in made.name for text in options.only)
    ]
    if not work:
        parser.error(f"no kernel's name contains {options.only!r}")
    began, results = time.monotonic(), []
    print(HEADER)
    for result in check(work, options.processes):
        results.append(result)
        print(line(result), flush=True)
    faulty = sum(bool(result.faults) for result in results)
    print(f"{len(results)} compiled in {time.monotonic() - began:.0f} s, {faulty} with faults")
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
