"""What the engine asks Triton to compile, recorded from the very calls it makes, without running them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chatd_kernels.layout import page_pool, record_bytes
from chatd_kernels.ops import AttentionSpec, LogitEdits, PagedBatch, SampleParams
from chatd_kernels.shapes import GEMMA_2_2B, LLAMA_3_8B, PHI_2, PHI_3_MINI, SMOLLM2_135M, ModelShape
from chatd_kernels.triton import TritonOps
from chatd_kernels.triton.launch import Target

FP8 = torch.float8_e4m3fn
PAGE_SIZE = 16
CONTEXT_LEN = 4096
_TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    FP8: "*fp8e4nv",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
STEPS = ((1, 1), (128, 1), (4, 512), (1, 16))
"""Rows and queries of each: decode alone and in a crowd, chunks of prompts, a short turn."""
META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class Specialisation:
    """One thing to compile. ``signature``: a type per argument; ``aligned``: arguments divisible by 16."""

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, object]
    aligned: tuple[str, ...]
    num_warps: int
    num_stages: int

    @property
    def key(self) -> tuple[object, ...]:
        parts = (sorted(self.signature.items()), sorted(self.constants.items()), self.aligned)
        return (self.kernel.__name__, self.num_warps, self.num_stages, *map(str, parts))


class Recorder:
    """In the place of `launch.run`: notes each launch under the current ``name``."""

    def __init__(self) -> None:
        self.name = ""
        self.found: dict[tuple[object, ...], Specialisation] = {}

    def __call__(
        self, kernel: Any, grid: tuple[int, ...], *, num_warps: int, num_stages: int = 2, **args: object
    ) -> None:
        assert len(grid) <= 3
        name = f"{self.name}: {kernel.__name__.removesuffix('_kernel')}"
        made = specialise(name, kernel, args, num_warps, num_stages)
        self.found.setdefault(made.key, made)


def specialise(
    name: str, kernel: Any, args: dict[str, object], num_warps: int, num_stages: int
) -> Specialisation:
    """As `triton.jit` does it: 1 becomes a constant, what 16 divides is said to be so."""
    signature: dict[str, str] = {}
    constants: dict[str, object] = {}
    aligned = []
    for param in kernel.params:
        value = args[param.name]
        if param.is_constexpr:
            signature[param.name], constants[param.name] = "constexpr", value
        elif isinstance(value, Tensor):
            signature[param.name] = _TYPES[value.dtype]
            aligned.append(param.name)
        elif isinstance(value, float):
            signature[param.name] = "fp32"
        elif isinstance(value, int):
            if value == 1 and not param.do_not_specialize:
                signature[param.name], constants[param.name] = "constexpr", 1
                continue
            signature[param.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and not param.do_not_specialize:
                aligned.append(param.name)
        else:
            raise TypeError(f"{param.name} of {kernel.__name__} is a {type(value).__name__}")
    return Specialisation(name, kernel, signature, constants, tuple(aligned), num_warps, num_stages)


def wanted(target: Target) -> list[Specialisation]:
    """The named list for one target, each specialisation once, in a fixed order."""
    recorder = Recorder()
    ops = TritonOps(target, recorder)
    bf16, fp8 = torch.bfloat16, () if target.arch == 80 else (FP8,)
    for shape, dtype, kv_dtypes, steps in (
        (LLAMA_3_8B, bf16, (bf16, torch.int8, *fp8), STEPS),
        (SMOLLM2_135M, bf16, (bf16,), STEPS),
        (SMOLLM2_135M, torch.float16, (torch.float16,), STEPS[1:3]),
        (PHI_2, bf16, (bf16,), STEPS[1:3]),
        (PHI_3_MINI, bf16, (bf16,), STEPS[1:3]),
        (GEMMA_2_2B, bf16, (bf16,), STEPS[1:3]),
    ):
        for kv_dtype in kv_dtypes:
            label = f"{shape.name} {_short(dtype)}" + ("" if kv_dtype == dtype else f" kv {_short(kv_dtype)}")
            name = _namer(recorder, label)
            # Sizes alone tell other models' dense kernels from these two's.
            if shape in (LLAMA_3_8B, SMOLLM2_135M) and kv_dtype == bf16:
                _record_dense(ops, name, shape, dtype)
            _record_paged(ops, name, shape, (dtype, kv_dtype), steps)
    return list(recorder.found.values())


def _short(dtype: torch.dtype) -> str:
    return {torch.bfloat16: "bf16", torch.float16: "fp16", FP8: "fp8", torch.int8: "int8"}[dtype]


def _namer(recorder: Recorder, label: str) -> Callable[[str], None]:
    def name(what: str) -> None:
        recorder.name = f"{label} {what}"

    return name


def _record_paged(
    ops: TritonOps,
    name: Callable[[str], None],
    shape: ModelShape,
    dtypes: tuple[torch.dtype, torch.dtype],
    steps: tuple[tuple[int, int], ...],
) -> None:
    """What goes through the page table, with activations and KV of ``dtypes``."""
    dtype, kv_dtype = dtypes
    size = record_bytes(shape.layers, shape.kv_heads, PAGE_SIZE, shape.dim, kv_dtype)
    raw = torch.empty(1 << 12, size, dtype=torch.uint8, device=META)
    pool = page_pool(raw, shape.layers, shape.kv_heads, PAGE_SIZE, shape.dim, kv_dtype)
    kv = pool.layer(0)
    heads = shape.heads + 2 * shape.kv_heads
    slots = _meta(4, dtype=torch.int64)
    cos = _meta(4, shape.dim)
    name("rope")
    ops.rope_store_kv(_meta(4, heads * shape.dim, dtype=dtype), cos, cos, kv, slots, slots)
    spec = AttentionSpec(shape.dim**-0.5, shape.window, shape.softcap)
    for rows, q_len in steps:
        q = _meta(rows * q_len, shape.heads, shape.dim, dtype=dtype)
        batch = _batch(rows, q_len)
        if q_len == 1:
            name(f"decode x{rows}")
            ops.decode_attention(q, kv, ops.plan_decode(batch, kv, spec))
        else:
            name(f"extend {rows}x{q_len}")
            ops.extend_attention(q, kv, ops.plan_extend(batch, kv, spec))
    name("pages")
    ops.copy_slots(pool.planes, 3, 5, 7, pool.scales)
    pages = _meta(4, dtype=torch.int64)
    ops.scatter_pages(pool.raw, pages, ops.gather_pages(pool.raw, pages))


def _record_dense(ops: TritonOps, name: Callable[[str], None], shape: ModelShape, dtype: torch.dtype) -> None:
    """Norms, the MLP's product and draws."""
    x, weight = _meta(4, shape.hidden, dtype=dtype), _meta(shape.hidden, dtype=dtype)
    name("norm")
    ops.rms_norm(x, weight, 1e-5)
    name("add norm")
    ops.add_rms_norm(x, x, weight, 1e-5)
    name("mlp")
    ops.silu_mul(_meta(4, 2 * shape.ffn, dtype=dtype))
    logits = _meta(4, shape.vocab, dtype=dtype)
    many = _meta(64, dtype=torch.int64)
    edits = LogitEdits(many, many, _meta(64), _meta(64))
    name("greedy")
    ops.sample(logits, _params(greedy=True), None)
    name("draw")
    ops.sample(logits, _params(), edits)
    name("draw, logprobs")
    ops.sample(logits, _params(), edits, _meta(4))


def _batch(rows: int, q_len: int) -> PagedBatch:
    int32 = torch.int32
    table = _meta(rows, CONTEXT_LEN // PAGE_SIZE, dtype=int32)
    return PagedBatch(table, _meta(rows, dtype=int32), _meta(rows + 1, dtype=int32), CONTEXT_LEN, q_len)


def _params(*, greedy: bool = False) -> SampleParams:
    real, whole = _meta(4), _meta(4, dtype=torch.int64)
    return SampleParams(real, whole, real, real, whole, whole, all_greedy=greedy, any_filter=True)


def _meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device=META)
