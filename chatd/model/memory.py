"""How much memory there is, how much of it KV gets, and what to say when it runs out."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from chatd.errors import SetupError
from chatd.model.config import ModelConfig

AUTO_CPU_SHARE = 0.25
AUTO_CPU_BYTES = 2 << 30
GPU_RESERVE_BYTES = 512 << 20
"""For graphs, library workspaces and fragments, besides a step's tensors. Not measured on a card."""


def free_memory(device: torch.device) -> int:
    """Bytes that can be had on ``device`` now, those that torch keeps and nobody uses included."""
    if device.type == "cpu":
        return available_memory()
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])


def available_memory() -> int:
    """Bytes that can be allocated without swapping; 4 GiB where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 4 << 30


def auto_kv_bytes(device: torch.device, share: float, step_bytes: int) -> int:
    """Size of the pool when none is given. Call it after loading the weights.

    On a GPU ``share`` of what is free, or less to leave room for a step's tensors (``step_bytes``), graphs
    and the like.
    """
    free = free_memory(device)
    if device.type == "cpu":
        return min(AUTO_CPU_BYTES, int(AUTO_CPU_SHARE * free))
    return max(0, min(int(share * free), free - step_bytes - GPU_RESERVE_BYTES))


def step_bytes(config: ModelConfig, dtype: torch.dtype, step_tokens: int, max_running: int) -> int:
    """About the most that a step's tensors take: a layer's activations, and sampling over the vocabulary."""
    widths = 5 * config.hidden + 3 * config.ffn + 3 * (config.q_len + 2 * config.kv_len)
    sampling = config.vocab_size * (dtype.itemsize + 2 * 4)
    return step_tokens * (widths * dtype.itemsize + 8 * config.head_dim) + max_running * sampling


@contextmanager
def out_of_memory_says(what: str, device: torch.device, advice: str) -> Iterator[None]:
    """Turn running out of memory while ``what`` into a `SetupError` with figures and ``advice``."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        free = f"{free_memory(device) / 2**20:,.0f} MiB are free"
        raise SetupError(f"Memory ran out on {device} while {what}: {free}. {advice}") from error
