"""How many threads the model gets."""

import os
from collections.abc import Iterable, MutableMapping
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def compute_threads() -> int:
    """``OMP_NUM_THREADS`` if that is set, but no more than the CPUs this process may use: an environment made
    for a larger machine would have threads wait for each other. Else its physical cores, no more than its
    container's share of CPU time comes to.

    Two threads on one core take turns at its vector units, so hyperthreads gain a matrix
    product nothing.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    if (asked := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        return min(max(1, int(asked)), len(allowed))
    return min(physical_cores(allowed, CPUS), quota_cores(CGROUP_LIMIT))


SPINS = "2000"


def wait_briefly(environment: MutableMapping[str, str]) -> None:
    """Let libgomp's threads give up their cores soon, unless the user said how they are to wait. Before torch
    is imported.

    By itself it spins for milliseconds at the end of each operation until the last thread comes, which may
    have lost its core to another process: with four busy ones on two cores a step of SmolLM2 in bf16 took
    97 to 1,170 ms, and 37 to 96 like this.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & environment.keys():
        environment["GOMP_SPINCOUNT"] = SPINS


def physical_cores(cpus: Iterable[int], root: Path) -> int:
    """Different cores among ``cpus``; a CPU whose siblings are unknown counts as a core."""
    cores = set()
    for cpu in cpus:
        siblings = root / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        try:
            cores.add(siblings.read_text("ascii").strip())
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def quota_cores(limit: Path) -> int:
    """Whole cores a container's CPU quota comes to; many where there is none."""
    try:
        quota, period = limit.read_text("ascii").split()
        return max(1, round(int(quota) / int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return 1 << 16
