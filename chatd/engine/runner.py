"""Runs step plans on a model: the only part of the engine that touches tensors."""

import torch

from chatd.engine.batch import build_batch
from chatd.engine.plan import Done, HostBuffer, StepPlan
from chatd.engine.sampling import logit_edits, sample_params
from chatd.model.decoder import Decoder
from chatd.model.kv_pool import KVPool
from chatd.model.weights import Weights
from chatd_kernels.ops import Ops


class TorchRunner:
    """`chatd.engine.plan.Runner` on any torch device. Keeps no state of requests: it is all in the plan."""

    def __init__(self, weights: Weights, pool: KVPool, ops: Ops) -> None:
        self.vocab_size = weights.config.vocab_size
        self.pool = pool
        self._ops = ops
        self._decoder = Decoder(weights, ops)
        self._device = weights.device

    overlaps = False

    def launch(self, plan: StepPlan) -> Done:
        """See `Runner.launch`. Copies, then one forward pass, then one draw."""
        with torch.inference_mode():
            for copy in plan.copies:
                self._ops.copy_slots(self.pool.tensor, copy.src, copy.dst, copy.slots)
            return Done(self._forward(plan) if plan.rows else [])

    def copies_done(self, *, wait: bool) -> list[int]:
        return []

    def take_buffer(self) -> HostBuffer | None:
        return None

    def _forward(self, plan: StepPlan) -> list[int]:
        batch, order = build_batch(plan.rows, self.pool.page_size, self._device)
        logits = self._decoder.forward(batch, self.pool)
        if not order:
            return []
        rows = [plan.rows[i] for i in order]
        edits = logit_edits(rows, self.vocab_size, self._device)
        ids = self._ops.sample(logits, sample_params(rows, self._device), edits).tolist()
        if order == sorted(order):
            return ids
        return [token for _, token in sorted(zip(order, ids, strict=True))]
