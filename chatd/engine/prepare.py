"""From weights to a runner that is ready to serve: backend, KV pool, graphs, and memory enough for all.

Whoever puts an engine together starts here: the server, and the check of a card.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from chatd.engine.cuda_device import CudaDevice
from chatd.engine.device import Device, InlineDevice
from chatd.engine.plan import StepPlan
from chatd.engine.runner import TorchRunner
from chatd.engine.warm_up import first_steps
from chatd.errors import SetupError
from chatd.model.kv_pool import KVPlan, KVPool, plan_pages
from chatd.model.memory import auto_kv_bytes, free_memory, out_of_memory_says, step_bytes
from chatd.model.weights import Weights
from chatd_kernels import has_fast_cpu_kernels, load_backend
from chatd_kernels.cpu import CpuOps, team
from chatd_kernels.ops import Ops

Progress = Callable[[float, str], None]

LOWER = "Lower --kv-bytes (or --kv-share), --context-length, --step-tokens or --max-running"


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """``kv_bytes`` None: by ``kv_share``. ``kernels`` as in `backend_name`. Lengths in tokens."""

    kv_dtype: torch.dtype
    context_length: int
    step_tokens: int
    max_running: int
    page_size: int = 16
    kv_bytes: int | None = None
    kv_share: float = 0.85
    kernels: str = "auto"
    graphs: bool = True


@dataclass(frozen=True, slots=True)
class Prepared:
    """``graphs``: sizes that were captured, ``graph_bytes`` what they took."""

    runner: TorchRunner
    kv: KVPlan
    kernels: str
    graphs: tuple[int, ...]
    graph_bytes: int


def prepare(weights: Weights, settings: RunnerSettings, progress: Progress) -> Prepared:
    """Everything that takes memory takes it now. Raises SetupError, also where there is too little."""
    where, config = weights.device, weights.config
    ops = backend(settings.kernels, where)
    kv_bytes = settings.kv_bytes
    if kv_bytes is None:
        needed = step_bytes(config, weights.dtype, settings.step_tokens, settings.max_running)
        kv_bytes = auto_kv_bytes(where, settings.kv_share, needed)
    with out_of_memory_says("the KV pool was made", where, f"{LOWER}."):
        plan = plan_pages(config, settings.kv_dtype, settings.page_size, kv_bytes)
        pool = KVPool(config, plan, settings.kv_dtype, where)
        device = device_for(where)
        runner = TorchRunner(weights, pool, ops, device)
    if isinstance(ops, CpuOps):
        team.use_own_threads(weights.bits > 0)
        ops.compile(weights.dtype, pool.layers[0], config.n_heads, progress)
    if not device.overlaps:
        progress(0.9, "running a first step")
        runner.record(settings.max_running, settings.context_length)
        for rows in first_steps(pool.scratch_page, pool.page_size, settings.step_tokens):
            runner.launch(StepPlan([], rows)).wait()
        return Prepared(runner, plan, ops.name, (), 0)
    return _warmed(runner, plan, ops, settings, where, progress)


def _warmed(
    runner: TorchRunner,
    plan: KVPlan,
    ops: Ops,
    settings: RunnerSettings,
    where: torch.device,
    progress: Progress,
) -> Prepared:
    """After the first, largest step and, where the backend allows it, with graphs."""
    progress(0.0, "running a first step")
    with out_of_memory_says("the first step was run", where, f"{LOWER}."):
        runner.warm_up(settings.step_tokens, settings.max_running, settings.context_length)
    if not (settings.graphs and ops.captures):
        return Prepared(runner, plan, ops.name, (), 0)
    before = free_memory(where)
    with out_of_memory_says("decode steps were captured", where, f"{LOWER}, or give --no-graphs."):
        sizes = runner.capture(settings.max_running, settings.context_length, progress)
    return Prepared(runner, plan, ops.name, tuple(sizes), max(0, before - free_memory(where)))


def device_for(where: torch.device) -> Device:
    return InlineDevice() if where.type == "cpu" else CudaDevice(where)


def backend_name(kernels: str, where: torch.device) -> str:
    """Of ``--kernels``: auto is triton on a GPU; on a CPU it is cpu where that is known to be faster, else
    reference. Raises SetupError for triton on a CPU, or cpu elsewhere.
    """
    if kernels == "auto":
        if where.type != "cpu":
            return "triton"
        return "cpu" if has_fast_cpu_kernels() else "reference"
    if kernels == "cpu" and where.type != "cpu":
        raise SetupError(
            f"--kernels is cpu, but the model runs on {where}. Use triton, or auto.", param="kernels"
        )
    if kernels == "triton" and where.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise SetupError(
            "--kernels is triton, but the model runs on a CPU, where Triton does not compile. Use reference, "
            "or auto. (With TRITON_INTERPRET=1 in the environment it interprets: for tests, not for use.)",
            param="kernels",
        )
    return kernels


def backend(kernels: str, where: torch.device) -> Ops:
    """The operations of `backend_name`. Raises SetupError if they cannot be had here."""
    name = backend_name(kernels, where)
    try:
        return load_backend(name)
    except (ImportError, RuntimeError) as error:
        raise SetupError(
            f"The {name} kernels cannot be used here: {error}. --kernels reference needs torch alone.",
            param="kernels",
        ) from error
