"""The page pool's tensor, and how large it is made."""

import contextlib
import math
import mmap
from dataclasses import dataclass

import torch

from chatd.errors import SetupError
from chatd.model.config import ModelConfig
from chatd_kernels.ops import LayerKV

AUTO_CPU_SHARE = 0.25
AUTO_CPU_BYTES = 2 << 30
AUTO_GPU_SHARE = 0.85
"""Of the memory that is free once the weights are loaded."""


@dataclass(frozen=True, slots=True)
class KVPlan:
    """How many pages of ``page_size`` slots fit. Everything is derived from the model and ``num_pages``."""

    num_pages: int
    page_size: int
    bytes_per_token: int
    context_length: int

    @property
    def tokens(self) -> int:
        return self.num_pages * self.page_size

    @property
    def nbytes(self) -> int:
        """Without the scratch page."""
        return self.tokens * self.bytes_per_token

    def summary(self) -> str:
        """One line for the log at start-up."""
        sessions = self.tokens / self.context_length
        return (
            f"KV pool: {self.nbytes / 2**20:,.0f} MiB, {self.bytes_per_token:,} bytes a token, "
            f"{self.tokens:,} tokens in {self.num_pages:,} pages of {self.page_size}: "
            f"{sessions:.1f} sessions of {self.context_length:,} tokens"
        )


def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """K and V of all layers."""
    return 2 * config.n_layers * config.n_kv_heads * config.head_dim * dtype.itemsize


def plan_pages(config: ModelConfig, dtype: torch.dtype, page_size: int, kv_bytes: int) -> KVPlan:
    """Pages that fit in ``kv_bytes``. Raises SetupError for a bad page size or if not even two fit."""
    if page_size not in (1, 2, 4, 8, 16, 32, 64):
        raise SetupError(f"--page-size is {page_size}, but a power of two from 1 to 64 is wanted.")
    per_token = bytes_per_token(config, dtype)
    num_pages = kv_bytes // (per_token * page_size)
    if num_pages < 2:
        raise SetupError(
            f"--kv-bytes is {kv_bytes:,}, but two pages are needed and one of {page_size} tokens takes "
            f"{per_token * page_size:,} bytes."
        )
    return KVPlan(num_pages, page_size, per_token, config.context_length)


def auto_kv_bytes(device: torch.device) -> int:
    """Size of the pool when none is given: see the constants above. Call it after loading the weights."""
    free = free_memory(device)
    return (
        min(AUTO_CPU_BYTES, int(AUTO_CPU_SHARE * free))
        if device.type == "cpu"
        else int(AUTO_GPU_SHARE * free)
    )


def free_memory(device: torch.device) -> int:
    """Bytes that can be had on ``device`` now."""
    return available_memory() if device.type == "cpu" else int(torch.cuda.mem_get_info(device)[0])


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


class KVPool:
    """K and V of all pages: one tensor ``[num_pages + 1, layers, 2, kv_heads, page_size, head_dim]``.

    Page first, so that a page of all layers is one contiguous record. The last page is scratch, for
    padded rows; nobody's KV is ever in it.
    """

    def __init__(self, config: ModelConfig, plan: KVPlan, dtype: torch.dtype, device: torch.device) -> None:
        self.num_pages = plan.num_pages
        self.page_size = plan.page_size
        self.scratch_page = plan.num_pages
        shape = (plan.num_pages + 1, config.n_layers, 2, config.n_kv_heads, plan.page_size, config.head_dim)
        self.tensor = _zeros(shape, dtype, device)
        self.layers = tuple(
            LayerKV(self.tensor[:, i, 0], self.tensor[:, i, 1]) for i in range(config.n_layers)
        )


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros. On a CPU they are pages the system maps when they are first written.

    `torch.zeros` writes them all: 0.7 s and 2 GiB of memory for a server that may never need them.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    try:
        if device.type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=device)
        memory = mmap.mmap(-1, nbytes)
    except (OSError, OverflowError, torch.OutOfMemoryError) as error:
        raise SetupError(
            f"The system does not give {nbytes:,} bytes for the KV pool. Ask for less with --kv-bytes."
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
