"""The page pool's tensor, and how many pages it is given."""

import contextlib
import math
import mmap
from dataclasses import dataclass

import torch

from chatd.errors import SetupError
from chatd.model.config import ModelConfig
from chatd_kernels.layout import page_pool, record_bytes, token_bytes

KV_FORMS = {
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


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


def kv_dtype(form: str, weights: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype for ``--kv-dtype``; "auto" follows the weights. Raises SetupError where a device lacks it."""
    if form == "auto":
        return weights
    if form == "fp8" and device.type == "cuda" and torch.version.hip is None:
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < (8, 9):
            raise SetupError(
                f"--kv-dtype is fp8, which this GPU (compute capability {major}.{minor}) does not have: 8.9 "
                "or later is wanted. Use int8, or auto.",
                param="kv_dtype",
            )
    return KV_FORMS[form]


def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """K and V of all layers, scales included."""
    return config.n_layers * token_bytes(config.n_kv_heads, config.head_dim, dtype)


def page_bytes(config: ModelConfig, dtype: torch.dtype, page_size: int) -> int:
    """A page's record."""
    return record_bytes(config.n_layers, config.n_kv_heads, page_size, config.head_dim, dtype)


def plan_pages(config: ModelConfig, dtype: torch.dtype, page_size: int, kv_bytes: int) -> KVPlan:
    """Pages that fit in ``kv_bytes``. Raises SetupError for a bad page size or if not even two fit."""
    if page_size not in (1, 2, 4, 8, 16, 32, 64):
        raise SetupError(f"--page-size is {page_size}, but a power of two from 1 to 64 is wanted.")
    if config.head_dim * dtype.itemsize % 4:
        raise SetupError(
            f"--kv-dtype: 8-bit KV wants a head size that 4 divides, and this model's is {config.head_dim}. "
            "Use bf16.",
            param="kv_dtype",
        )
    record = page_bytes(config, dtype, page_size)
    num_pages = kv_bytes // record
    if num_pages < 2:
        raise SetupError(
            f"{kv_bytes:,} bytes are there for KV (--kv-bytes), but two pages are needed and one of "
            f"{page_size} tokens takes {record:,} bytes."
        )
    return KVPlan(num_pages, page_size, bytes_per_token(config, dtype), config.context_length)


class KVPool:
    """K and V of all pages; page ``i`` of all layers is the record ``raw[i]``, scales included.

    ``planes`` and ``scales`` (int8 only) are views of it: see `chatd_kernels.layout.PagePool`. The last page
    is scratch, for padded rows; nobody's KV is ever in it.
    """

    def __init__(self, config: ModelConfig, plan: KVPlan, dtype: torch.dtype, device: torch.device) -> None:
        self.num_pages = plan.num_pages
        self.page_size = plan.page_size
        self.scratch_page = plan.num_pages
        record = page_bytes(config, dtype, plan.page_size)
        pages = page_pool(
            _zeros((plan.num_pages + 1, record), device),
            config.n_layers,
            config.n_kv_heads,
            plan.page_size,
            config.head_dim,
            dtype,
        )
        self.raw, self.planes, self.scales = pages.raw, pages.planes, pages.scales
        self.layers = tuple(pages.layer(i) for i in range(config.n_layers))

    @property
    def page_bytes(self) -> int:
        """A page's record."""
        return self.raw.shape[1]


def _zeros(shape: tuple[int, int], device: torch.device) -> torch.Tensor:
    """Bytes of zeros. On a CPU they are pages the system maps when they are first written.

    `torch.zeros` writes them all: 0.7 s and 2 GiB of memory for a server that may never need them.
    """
    nbytes = math.prod(shape)
    try:
        if device.type != "cpu":
            return torch.zeros(shape, dtype=torch.uint8, device=device)
        memory = _private(nbytes)
    except (OSError, OverflowError, torch.OutOfMemoryError) as error:
        raise SetupError(
            f"The system does not give {nbytes:,} bytes for the KV pool. Ask for less with --kv-bytes or "
            "--kv-share."
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(shape)


def _private(nbytes: int) -> mmap.mmap:
    """Shared memory, which Python makes by itself, mostly gets no huge pages: with them a step of 16 rows
    with 500 tokens each takes 8 % less CPU time.
    """
    if hasattr(mmap, "MAP_PRIVATE") and hasattr(mmap, "MAP_ANONYMOUS"):
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, nbytes)
