"""Kernels for CPUs, compiled by numba for the very machine, on threads of their own or torch's.

What a kernel does not know (fp8 KV, heads that are no multiple of 16, fp16) `reference` computes.
"""

import torch
from torch import Tensor

from chatd_kernels.cpu import attention, crew, norms, sampling, store
from chatd_kernels.cpu.forms import DTYPES
from chatd_kernels.cpu.library import Library, Progress, shared
from chatd_kernels.ops import (
    AttentionSpec,
    DecodePlan,
    ExtendPlan,
    LayerKV,
    LogitEdits,
    PagedBatch,
    SampleParams,
)
from chatd_kernels.reference import ReferenceOps


class CpuOps(ReferenceOps):
    """`chatd_kernels.ops.Ops` over tensors on the CPU. Raises ImportError without numba."""

    name = "cpu"

    def __init__(self, library: Library | None = None) -> None:
        self.library = shared() if library is None else library

    def compile(self, dtype: torch.dtype, kv: LayerKV, heads: int, progress: Progress) -> None:
        """Whatever a model of these forms and ``heads`` query heads takes and this machine never compiled, in
        some seconds. ``progress`` is not called if that is nothing.

        Without it kernels are compiled when they are first wanted.
        """
        if dtype not in DTYPES or not attention.fits(kv):
            return
        spec = AttentionSpec(1.0)
        self.library.compile(
            [
                *(crew.SPECS if crew.can_help() else ()),
                *norms.specs(dtype),
                store.spec(kv, dtype),
                sampling.spec(dtype),
                attention.decode_spec(kv, dtype, heads, spec),
                attention.extend_spec(kv, dtype, heads, spec),
            ],
            progress,
        )

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if not norms.fits(x, weight):
            return super().rms_norm(x, weight, eps)
        return norms.rms_norm(self.library, x, None, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        if not norms.fits(x, residual, weight):
            return super().add_rms_norm(x, residual, weight, eps)
        return norms.rms_norm(self.library, x, residual, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        if not norms.fits(gate_up):
            return super().silu_mul(gate_up)
        return norms.silu_mul(self.library, gate_up)

    def rope_store_kv(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv: LayerKV,
        slot_pages: Tensor,
        slot_offsets: Tensor,
    ) -> Tensor:
        if not store.fits(kv, qkv):
            return super().rope_store_kv(qkv, cos, sin, kv, slot_pages, slot_offsets)
        return store.rope_store(self.library, qkv, cos, sin, kv, slot_pages, slot_offsets)

    def plan_decode(self, batch: PagedBatch, kv: LayerKV, spec: AttentionSpec) -> DecodePlan:
        if not attention.fits(kv):
            return super().plan_decode(batch, kv, spec)
        return DecodePlan(attention.Plan(batch, spec))

    def decode_attention(self, q: Tensor, kv: LayerKV, plan: DecodePlan, out: Tensor | None = None) -> Tensor:
        if isinstance(plan, attention.Plan) and q.dtype in DTYPES:
            return attention.decode(self.library, q.contiguous(), kv, plan, out)
        return super().decode_attention(q, kv, plan, out)

    def plan_extend(self, batch: PagedBatch, kv: LayerKV, spec: AttentionSpec) -> ExtendPlan:
        if not attention.fits(kv):
            return super().plan_extend(batch, kv, spec)
        return ExtendPlan(attention.Plan(batch, spec))

    def extend_attention(self, q: Tensor, kv: LayerKV, plan: ExtendPlan, out: Tensor | None = None) -> Tensor:
        if isinstance(plan, attention.Plan) and q.dtype in DTYPES:
            return attention.extend(self.library, q.contiguous(), kv, plan, out)
        return super().extend_attention(q, kv, plan, out)

    def sample(
        self,
        logits: Tensor,
        params: SampleParams,
        edits: LogitEdits | None,
        logprobs: Tensor | None = None,
    ) -> Tensor:
        if not sampling.fits(logits):
            return super().sample(logits, params, edits, logprobs)
        return sampling.sample(self.library, logits, params, edits, logprobs)
