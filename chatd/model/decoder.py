"""The one decoder: pre-norm blocks of grouped-query attention and SwiGLU (the llama family)."""

import torch
from torch import Tensor

from chatd.model.forward_batch import ForwardBatch
from chatd.model.kv_pool import KVPool
from chatd.model.rope import rotation
from chatd.model.weights import LayerWeights, Weights
from chatd_kernels.ops import AttentionSpec, DecodePlan, ExtendPlan, LayerKV, Ops

Plans = tuple[DecodePlan | None, ExtendPlan | None]


class Decoder:
    """Stateless but for its weights: a step's result depends on its batch and the pool only."""

    def __init__(self, weights: Weights, ops: Ops) -> None:
        self.weights = weights
        self.config = weights.config
        self.ops = ops
        self._spec = AttentionSpec(scale=self.config.head_dim**-0.5, window=self.config.window)

    def forward(self, batch: ForwardBatch, pool: KVPool) -> Tensor:
        """Store the KV of the batch's tokens in ``pool``; logits ``[s, vocab]`` of ``batch.sample_at``."""
        return self.weights.head(self.hidden(batch, pool))

    def hidden(self, batch: ForwardBatch, pool: KVPool) -> Tensor:
        """As `forward`, up to what the head takes: ``[s, hidden]``."""
        w = self.weights
        rotate = rotation(w.inverse_frequencies, batch.positions)
        residual = w.embedding(batch.tokens)
        x = self.blocks(residual, rotate, batch, pool, self.plan(batch, pool))
        # The last norm and the head, a quarter of the weights, only where a token is wanted.
        return self.last_norm(_lines(x, batch.sample_at), _lines(residual, batch.sample_at))

    def blocks(
        self,
        residual: Tensor,
        rotate: tuple[Tensor, Tensor],
        batch: ForwardBatch,
        pool: KVPool,
        plans: Plans,
    ) -> Tensor:
        """All layers, over embeddings ``residual`` ``[n, hidden]``, which is added to. What it gives is still
        to be added.
        """
        w, ops, eps = self.weights, self.ops, self.config.norm_eps
        x = ops.rms_norm(residual, w.layers[0].attn_norm, eps)
        for i, layer in enumerate(w.layers):
            x = self._attention(x, layer, batch, pool.layers[i], rotate, plans)
            x = ops.add_rms_norm(x, residual, layer.ffn_norm, eps)
            x = layer.down(ops.silu_mul(layer.gate_up(x)))
            if i + 1 < len(w.layers):
                x = ops.add_rms_norm(x, residual, w.layers[i + 1].attn_norm, eps)
        return x

    def last_norm(self, x: Tensor, residual: Tensor) -> Tensor:
        """What the head takes, of what `blocks` gave."""
        return self.ops.add_rms_norm(x, residual, self.weights.output_norm, self.config.norm_eps)

    def plan(self, batch: ForwardBatch, pool: KVPool) -> Plans:
        """How attention of this batch is cut up: the same in all layers."""
        kv = pool.layers[0]
        decode = None if batch.decode is None else self.ops.plan_decode(batch.decode, kv, self._spec)
        extend = None if batch.extend is None else self.ops.plan_extend(batch.extend, kv, self._spec)
        return decode, extend

    def _attention(
        self,
        x: Tensor,
        layer: LayerWeights,
        batch: ForwardBatch,
        kv: LayerKV,
        rotate: tuple[Tensor, Tensor],
        plans: Plans,
    ) -> Tensor:
        q = self.ops.rope_store_kv(layer.qkv(x), *rotate, kv, batch.slot_pages, batch.slot_offsets)
        decode, extend = plans
        if extend is None:
            assert decode is not None
            out = self.ops.decode_attention(q, kv, decode)
        elif decode is None:
            out = self.ops.extend_attention(q, kv, extend)
        else:
            # torch.cat would wake torch's threads in each layer, which takes milliseconds on a busy CPU.
            count = batch.decode_len
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
            self.ops.decode_attention(q[:count], kv, decode, out[:count])
            self.ops.extend_attention(q[count:], kv, extend, out[count:])
        return layer.attn_output(out.view(len(out), -1))


def _lines(x: Tensor, at: Tensor) -> Tensor:
    """``x[at]``. On a CPU by numpy: torch would wake its threads for some 60 lines of 576."""
    if x.device.type != "cpu":
        return x.index_select(0, at)
    bits = torch.int32 if x.itemsize == 4 else torch.int16  # numpy knows no bf16
    return torch.from_numpy(x.view(bits).numpy()[at.numpy()]).view(x.dtype)
