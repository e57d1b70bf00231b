"""A model's weights in memory, q/k/v and gate/up fused."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from chatd.model.config import ModelConfig
from chatd.model.linear import Embedding, Layer, Linear, TableEmbedding
from chatd.model.quant import HEAD_BITS, TiedEmbedding, quant_linear
from chatd.model.rope import inverse_frequencies
from chatd.model.tensors import TensorSource

Progress = Callable[[float, str], None]
"""Told the share that is done, 0 to 1, and what is being done."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One block. Norms ``[hidden]``; qkv ``[(h + 2 kvh) d, hidden]``; gate_up ``[2 ffn, hidden]``."""

    attn_norm: Tensor
    qkv: Layer
    attn_output: Layer
    ffn_norm: Tensor
    gate_up: Layer
    down: Layer

    @property
    def nbytes(self) -> int:
        """Of the linears; the norms are nothing beside them."""
        return self.qkv.nbytes + self.attn_output.nbytes + self.gate_up.nbytes + self.down.nbytes


@dataclass(frozen=True, slots=True)
class Weights:
    """inverse_frequencies float32 ``[d / 2]``. ``dtype`` is that of the activations, and of all tensors here;
    ``bits``, 4 or 8, of the layers' weights if they are codes, else 0. ``embedding`` turns ids into
    rows ``[n, hidden]``.
    """

    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    embedding: Embedding
    layers: tuple[LayerWeights, ...]
    output_norm: Tensor
    head: Layer
    inverse_frequencies: Tensor
    bits: int = 0

    @property
    def nbytes(self) -> int:
        """What the weights take up."""
        return self.embedding.nbytes + self.head.nbytes + sum(layer.nbytes for layer in self.layers)


def read_weights(
    config: ModelConfig,
    source: TensorSource,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
    bits: int = 0,
) -> Weights:
    """Read and convert everything; little more memory than the result needs. Blocks are read by threads.

    With ``bits``, 4 or 8, the linear layers are codes, see `chatd.model.quant`; ``dtype`` is float32 then.
    """
    reader = _Reader(config, source, dtype, device, bits)
    layers: list[LayerWeights] = []
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        ends = pool.submit(reader.ends)
        for layer in pool.map(reader.layer, range(config.n_layers)):
            layers.append(layer)
            progress(0.9 * len(layers) / config.n_layers, f"layer {len(layers)} of {config.n_layers}")
        embedding, head = ends.result()
    progress(1.0, "weights are loaded")
    return Weights(
        config=config,
        dtype=dtype,
        device=device,
        embedding=embedding,
        layers=tuple(layers),
        output_norm=reader.tensor("output_norm.weight"),
        head=head,
        inverse_frequencies=reader.frequencies(),
        bits=bits,
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    config: ModelConfig
    source: TensorSource
    dtype: torch.dtype
    device: torch.device
    bits: int

    def ends(self) -> tuple[Embedding, Layer]:
        """The embedding and the head, which may be the same weights."""
        if self.bits and self.config.tied_head:
            tied = quant_linear(self.source, ["token_embd.weight"], HEAD_BITS)
            if tied is not None:
                return TiedEmbedding(tied), tied
        table = self.tensor("token_embd.weight")
        if self.config.tied_head:
            return TableEmbedding(table), Linear(table)
        head = quant_linear(self.source, ["output.weight"], HEAD_BITS) if self.bits else None
        return TableEmbedding(table), head or Linear(self.tensor("output.weight"))

    def tensor(self, *names: str) -> Tensor:
        """One tensor, or several below each other."""
        shapes = [self._shape(name) for name in names]
        rows = [shape[0] for shape in shapes]
        whole = torch.empty((sum(rows), *shapes[0][1:]), dtype=self.dtype)
        for name, part in zip(names, torch.split(whole, rows), strict=True):
            self.source.read_into(name, part)
        return whole.to(self.device)

    def layer(self, i: int) -> LayerWeights:
        return LayerWeights(
            attn_norm=self.tensor(f"blk.{i}.attn_norm.weight"),
            qkv=self._linear(i, "attn_q", "attn_k", "attn_v"),
            attn_output=self._linear(i, "attn_output"),
            ffn_norm=self.tensor(f"blk.{i}.ffn_norm.weight"),
            gate_up=self._linear(i, "ffn_gate", "ffn_up"),
            down=self._linear(i, "ffn_down"),
        )

    def frequencies(self) -> Tensor:
        config, divisors = self.config, None
        if config.rope.kind == "tensor":
            divisors = torch.empty(self._shape("rope_freqs.weight"))
            self.source.read_into("rope_freqs.weight", divisors)
        return inverse_frequencies(config.rope, config.head_dim, divisors).to(self.device)

    def _linear(self, i: int, *parts: str) -> Layer:
        biases = list(self._biases(i, parts))
        bias = self.tensor(*biases) if biases else None
        names = [f"blk.{i}.{part}.weight" for part in parts]
        coded = quant_linear(self.source, names, self.bits, bias) if self.bits else None
        return coded or Linear(self.tensor(*names), bias)

    def _biases(self, i: int, parts: tuple[str, ...]) -> Iterator[str]:
        for part in parts:
            wanted = self.config.o_bias if part == "attn_output" else self.config.qkv_bias
            if part.startswith("attn") and wanted:
                yield f"blk.{i}.{part}.bias"

    def _shape(self, name: str) -> tuple[int, ...]:
        shape = self.source.shape(name)
        assert shape is not None, name  # names.check_shapes has been through
        return shape
