"""Random weights at the shape of a real model, made on the device."""

import torch
from torch import Tensor

from chatd.model.config import ModelConfig, Rope
from chatd.model.linear import Linear, TableEmbedding
from chatd.model.rope import inverse_frequencies
from chatd.model.weights import LayerWeights, Weights
from chatd_kernels.shapes import LLAMA_3_8B, ModelShape

TINY = ModelShape("tiny", 2, 48, 4, 2, 16, 80, 300, tied=True)
SHAPES = {shape.name: shape for shape in (LLAMA_3_8B, TINY)}


def random_weights(
    shape: ModelShape, context_length: int, dtype: torch.dtype, device: torch.device
) -> Weights:
    """Small normal weights and norms of one: activations stay finite, and ids are as good as random."""
    generator = torch.Generator(device).manual_seed(1)

    def normal(*size: int) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device).normal_(0, 0.02, generator=generator)

    def ones() -> Tensor:
        return torch.ones(shape.hidden, dtype=dtype, device=device)

    q, kv = shape.heads * shape.dim, shape.kv_heads * shape.dim
    config = _config(shape, context_length)
    embedding = normal(shape.vocab, shape.hidden)
    layers = tuple(
        LayerWeights(
            attn_norm=ones(),
            qkv=Linear(normal(q + 2 * kv, shape.hidden)),
            attn_output=Linear(normal(shape.hidden, q)),
            ffn_norm=ones(),
            gate_up=Linear(normal(2 * shape.ffn, shape.hidden)),
            down=Linear(normal(shape.hidden, shape.ffn)),
        )
        for _ in range(shape.layers)
    )
    head = Linear(embedding if shape.tied else normal(shape.vocab, shape.hidden))
    frequencies = inverse_frequencies(config.rope, shape.dim).to(device)
    return Weights(config, dtype, device, TableEmbedding(embedding), layers, ones(), head, frequencies)


def _config(shape: ModelShape, context_length: int) -> ModelConfig:
    return ModelConfig(
        name=shape.name,
        architecture="llama",
        vocab_size=shape.vocab,
        context_length=context_length,
        n_layers=shape.layers,
        hidden=shape.hidden,
        ffn=shape.ffn,
        n_heads=shape.heads,
        n_kv_heads=shape.kv_heads,
        head_dim=shape.dim,
        norm_eps=1e-5,
        rope=Rope(500000.0),
        tied_head=shape.tied,
    )
