"""What this machine is, as far as it decides how a model runs on it."""

import os
import platform
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from chatd.cli.cores import CGROUP_LIMIT, CPUS, compute_threads, physical_cores, quota_cores
from chatd.model.linear import multiplies_bf16
from chatd.model.memory import available_memory
from chatd.model.quant import quant_refusal
from chatd_kernels.cpu.isa import Isa
from chatd_kernels.cpu.library import shared

CPUINFO = Path("/proc/cpuinfo")
READ_BYTES = 256 << 20
"""More than caches hold."""
READ_TIMES = 5


@dataclass(frozen=True)
class Cpu:
    """``name`` as the system says it, ``llvm`` as the compiler does. ``cores`` are physical and allowed here;
    ``quota_cores`` what a container's share of CPU time comes to, None without one. ``read_gb_s``:
    memory read by all threads, best of some tries.
    """

    name: str
    architecture: str
    cpus: int
    cores: int
    quota_cores: int | None
    threads: int
    llvm: str
    avx512: bool
    byte_products: bool
    bf16_products: bool
    matrix_unit: bool
    memory_free: int
    read_gb_s: float


@dataclass(frozen=True)
class Gpu:
    name: str
    memory: int
    capability: str


@dataclass(frozen=True)
class Machine:
    """``packages`` are versions by name; ``no_kernels`` says why the kernels for CPUs cannot run, if so."""

    cpu: Cpu
    gpus: tuple[Gpu, ...]
    packages: dict[str, str]
    no_kernels: str


def look() -> Machine:
    """Takes about half a second, most of it measuring."""
    return Machine(_cpu(), tuple(_gpus()), _packages(), quant_refusal())


def _cpu() -> Cpu:
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    quota = quota_cores(CGROUP_LIMIT)
    threads = compute_threads()
    isa = Isa.generic() if quant_refusal() else shared().isa
    return Cpu(
        name=_name(),
        architecture=platform.machine(),
        cpus=len(allowed),
        cores=physical_cores(allowed, CPUS),
        quota_cores=quota if quota < len(allowed) else None,
        threads=threads,
        llvm=isa.name,
        avx512=isa.wide,
        byte_products=isa.bytes,
        bf16_products=multiplies_bf16(),
        matrix_unit="amx_bf16" in _flags(),
        memory_free=available_memory(),
        read_gb_s=read_rate(threads),
    )


def read_rate(threads: int) -> float:
    """GB read from memory in a second."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        data, best = torch.ones(READ_BYTES // 4), float("inf")
        for _ in range(READ_TIMES):
            began = time.perf_counter()
            data.sum()
            best = min(best, time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)
    return READ_BYTES / best / 1e9


def _gpus() -> list[Gpu]:
    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [Gpu(one.name, int(one.total_memory), f"{one.major}.{one.minor}") for one in found]


def _packages() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("torch", "triton", "numba", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def _name() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _flags() -> set[str]:
    return set(_cpuinfo("flags").split())


def _cpuinfo(key: str) -> str:
    """Of the first CPU; empty where the system does not say."""
    try:
        for line in CPUINFO.read_text("utf-8", "replace").splitlines():
            if line.split(":")[0].strip() == key:
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""
