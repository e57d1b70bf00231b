"""Triton kernels for NVIDIA and AMD GPUs; under TRITON_INTERPRET=1 they run, slowly, on a CPU.

One launch of a few arguments per operation and no state, so that a step can be captured in a graph. Block
shapes come from a fixed table by target (`launch.Target`): an autotuner would need a driver.
"""

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
from chatd_kernels.triton import attention, norms, pages, sampling, store
from chatd_kernels.triton.launch import Launcher, Target, current_target, run


class TritonOps:
    """`chatd_kernels.ops.Ops`. ``launch`` and ``target`` are given by who compiles without a GPU."""

    name = "triton"
    captures = True

    def __init__(self, target: Target | None = None, launch: Launcher = run) -> None:
        self._target = current_target() if target is None else target
        self._launch = launch

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norms.rms_norm(self._launch, x, None, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norms.rms_norm(self._launch, x, residual, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return norms.silu_mul(self._launch, gate_up)

    def rope_store_kv(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv: LayerKV,
        slot_pages: Tensor,
        slot_offsets: Tensor,
    ) -> Tensor:
        return store.rope_store_kv(self._launch, qkv, cos, sin, kv, slot_pages, slot_offsets)

    def plan_decode(self, batch: PagedBatch, kv: LayerKV, spec: AttentionSpec) -> DecodePlan:
        return DecodePlan(attention.Plan(batch, spec, one_query=True))

    def decode_attention(self, q: Tensor, kv: LayerKV, plan: DecodePlan, out: Tensor | None = None) -> Tensor:
        return self._attend(q, kv, plan, out)

    def plan_extend(self, batch: PagedBatch, kv: LayerKV, spec: AttentionSpec) -> ExtendPlan:
        return ExtendPlan(attention.Plan(batch, spec, one_query=False))

    def extend_attention(self, q: Tensor, kv: LayerKV, plan: ExtendPlan, out: Tensor | None = None) -> Tensor:
        return self._attend(q, kv, plan, out)

    def _attend(self, q: Tensor, kv: LayerKV, plan: object, out: Tensor | None) -> Tensor:
        assert isinstance(plan, attention.Plan)
        return attention.attend(self._launch, self._target, q, kv, plan, out)

    def copy_slots(self, pool: Tensor, src: int, dst: int, slots: int, scales: Tensor | None = None) -> None:
        pages.copy_slots(self._launch, pool, src, dst, slots, scales)

    def gather_pages(self, pool: Tensor, pages_: Tensor, out: Tensor | None = None) -> Tensor:
        return pages.gather_pages(self._launch, pool, pages_, out)

    def scatter_pages(self, pool: Tensor, pages_: Tensor, records: Tensor) -> None:
        pages.scatter_pages(self._launch, pool, pages_, records)

    def sample(
        self,
        logits: Tensor,
        params: SampleParams,
        edits: LogitEdits | None,
        logprobs: Tensor | None = None,
    ) -> Tensor:
        return sampling.sample(self._launch, self._target, logits, params, edits, logprobs)
