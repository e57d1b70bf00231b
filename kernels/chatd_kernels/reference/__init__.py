"""Plain torch: the specification of every operation, and good enough to serve from a CPU."""

import torch
from torch import Tensor

from chatd_kernels.ops import (
    AttentionSpec,
    DecodePlan,
    ExtendPlan,
    LayerKV,
    LogitEdits,
    PagedBatch,
    SampleParams,
)
from chatd_kernels.reference import decode, extend, norms, pages, sampling


class ReferenceOps:
    """`chatd_kernels.ops.Ops` on any torch device."""

    name = "reference"
    captures = False

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norms.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norms.rms_norm(residual.add_(x), weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return norms.silu_mul(gate_up)

    def rope_store_kv(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv: LayerKV,
        slot_pages: Tensor,
        slot_offsets: Tensor,
    ) -> Tensor:
        return pages.rope_store_kv(qkv, cos, sin, kv, slot_pages, slot_offsets)

    def plan_decode(self, batch: PagedBatch, kv: LayerKV, spec: AttentionSpec) -> DecodePlan:
        return DecodePlan(decode.make_plan(batch, kv, spec))

    def decode_attention(self, q: Tensor, kv: LayerKV, plan: DecodePlan, out: Tensor | None = None) -> Tensor:
        assert isinstance(plan, decode.Plan)
        made = decode.attention(q, kv, plan)
        return made if out is None else out.copy_(made)

    def plan_extend(self, batch: PagedBatch, kv: LayerKV, spec: AttentionSpec) -> ExtendPlan:
        return ExtendPlan(extend.make_plan(batch, kv, spec))

    def extend_attention(self, q: Tensor, kv: LayerKV, plan: ExtendPlan, out: Tensor | None = None) -> Tensor:
        assert isinstance(plan, extend.Plan)
        made = extend.attention(q, kv, plan)
        return made if out is None else out.copy_(made)

    def copy_slots(self, pool: Tensor, src: int, dst: int, slots: int, scales: Tensor | None = None) -> None:
        pages.copy_slots(pool, src, dst, slots, scales)

    def gather_pages(self, pool: Tensor, pages_: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.index_select(pool, 0, pages_, out=out)

    def scatter_pages(self, pool: Tensor, pages_: Tensor, records: Tensor) -> None:
        pool.index_copy_(0, pages_, records)

    def sample(
        self,
        logits: Tensor,
        params: SampleParams,
        edits: LogitEdits | None,
        logprobs: Tensor | None = None,
    ) -> Tensor:
        return sampling.sample(logits, params, edits, logprobs)
