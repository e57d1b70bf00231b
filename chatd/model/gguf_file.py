"""A GGUF file as a source of configuration and weights."""

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chatd.errors import ModelFileError
from chatd.model import gguf_codes
from chatd.model.config import Fields, ModelConfig, Rope, family
from chatd.model.gguf_header import GgufHeader, TensorInfo
from chatd.text.tokenizer import Tokenizer
from chatd_kernels.cpu.linear import Codes

_ARCHITECTURES = ("llama", "qwen2")
"""Mistral's files say llama."""

_CHUNK_ELEMENTS = 1 << 22
"""Dequantised at a time: 16 MiB of float32, which bounds the peak above the finished weights."""


class GgufFile:
    """Header of one file. Raises ModelFileError for what is malformed or of an unsupported kind."""

    def __init__(self, path: Path) -> None:
        from gguf.constants import GGML_QUANT_SIZES

        self.header = GgufHeader(path, {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()})
        self.config = read_config(self.header)
        self._interleaved = self.config.architecture == "llama"
        _check_kinds(self.header)

    def names(self) -> set[str]:
        return set(self.header.tensors)

    def own_name(self, name: str) -> str:
        return name

    def shape(self, name: str) -> tuple[int, ...] | None:
        info = self.header.tensors.get(name)
        return None if info is None else info.shape

    def read_into(self, name: str, out: Tensor) -> None:
        """See `TensorSource.read_into`. q and k come out in half-split rotary order."""
        rows = out.view(out.shape[0], -1) if out.dim() > 1 else out.view(1, -1)
        step = max(1, _CHUNK_ELEMENTS // rows.shape[1])
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            part.copy_(torch.from_numpy(self._dequantised(self.header.tensors[name], first, len(part))))
        heads = self._permuted_heads(name)
        if heads:
            out.copy_(half_split(out, heads))

    def release(self) -> None:
        """See `TensorSource.release`."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.header.data.madvise(mmap.MADV_DONTNEED)

    def code_bits(self, name: str) -> int:
        info = self.header.tensors.get(name)
        return 0 if info is None else gguf_codes.BITS.get(info.kind, 0)

    def codes(self, name: str) -> Codes | None:
        """See `TensorSource.codes`. q and k come out in half-split rotary order."""
        info = self.header.tensors.get(name)
        if info is None or not self.code_bits(name):
            return None
        raw = np.frombuffer(self.header.data, np.uint8, info.size, info.begin)
        heads = self._permuted_heads(name)
        order = None
        if heads:
            order = half_split(torch.arange(info.shape[0])[:, None], heads)[:, 0].numpy()
        return gguf_codes.codes(info.kind, raw.reshape(info.shape[0], -1), order)

    def extents(self) -> Iterator[tuple[str, Path, int, int]]:
        """Name, file, first byte and bytes of every tensor."""
        for info in self.header.tensors.values():
            yield info.name, self.header.path, info.begin, info.size

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_gguf(self.header.metadata("tokenizer."))

    def chat_template(self) -> tuple[str, str, str]:
        """Source, beginning-of-text and end-of-text strings. Raises ModelFileError if there is none."""
        keys = Fields(self.header.scalars(), "tokenizer.")
        if "chat_template" not in keys:
            raise ModelFileError(
                f"there is no chat template in {self.header.path.name}: an instruct model is needed"
            )
        return keys.text("chat_template"), self._token_text("bos"), self._token_text("eos")

    def _permuted_heads(self, name: str) -> int:
        """Heads of a tensor whose rows are in interleaved rotary order; 0 for all others."""
        heads = {"attn_q": self.config.n_heads, "attn_k": self.config.n_kv_heads}.get(name.split(".")[-2], 0)
        return heads if self._interleaved else 0

    def _token_text(self, which: str) -> str:
        """A special token's text; empty if the file names none."""
        tokens = self.header.metadata("tokenizer.ggml.tokens").get("tokenizer.ggml.tokens")
        index = Fields(self.header.scalars()).integer(f"tokenizer.ggml.{which}_token_id", -1)
        if isinstance(tokens, list) and 0 <= index < len(tokens):
            return str(tokens[index])
        return ""

    def _dequantised(self, info: TensorInfo, first: int, count: int) -> npt.NDArray[np.float32]:
        """Rows ``first`` to ``first + count``, float32 ``[count, row]``."""
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        row_bytes = info.size // ((info.size and int(np.prod(info.shape[:-1]))) or 1)
        raw = np.frombuffer(self.header.data, np.uint8, row_bytes * count, info.begin + row_bytes * first)
        result = dequantize(raw.reshape(count, row_bytes), GGMLQuantizationType(info.kind))
        # A float32 tensor comes back as a read-only view of the file.
        return np.array(result, dtype=np.float32, copy=not result.flags.writeable)


def half_split(rows: Tensor, heads: int) -> Tensor:
    """Undo GGUF's order of q and k rows: per head pairs (0, 1), (2, 3).. become (0, d/2), (1, d/2 + 1).."""
    return rows.view(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def read_config(header: GgufHeader) -> ModelConfig:
    """Raises ModelFileError naming the key that is missing, wrong or unsupported."""
    scalars = header.scalars()
    architecture = family(Fields(scalars).text("general.architecture"), _ARCHITECTURES)
    keys = Fields(scalars, architecture + ".")
    for key in ("expert_count", "attention.sliding_window"):
        if keys.integer(key, 0):
            raise ModelFileError(f"{architecture} models with {key} are not supported")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError("the tensor token_embd.weight is missing")
    heads, hidden = keys.integer("attention.head_count"), keys.integer("embedding_length")
    head_dim = keys.integer("attention.key_length", hidden // max(heads, 1))
    rope_dim = keys.integer("rope.dimension_count", head_dim)
    if rope_dim != head_dim or keys.integer("attention.value_length", head_dim) != head_dim:
        raise ModelFileError("heads that are rotated in part, or differ for K and V, are not supported")
    return ModelConfig(
        name=Fields(scalars).text("general.name", header.path.stem)[:200],
        architecture=architecture,
        vocab_size=embedding.shape[0],
        context_length=keys.integer("context_length"),
        n_layers=keys.integer("block_count"),
        hidden=hidden,
        ffn=keys.integer("feed_forward_length"),
        n_heads=heads,
        n_kv_heads=keys.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope=_rope(keys, header),
        tied_head="output.weight" not in header.tensors,
        qkv_bias="blk.0.attn_q.bias" in header.tensors,
        o_bias="blk.0.attn_output.bias" in header.tensors,
    ).check()


def _rope(keys: Fields, header: GgufHeader) -> Rope:
    base = keys.number("rope.freq_base", 10000.0)
    if "rope_freqs.weight" in header.tensors:
        return Rope(base, "tensor")
    kind = keys.text("rope.scaling.type", "none")
    if kind == "none":
        return Rope(base)
    if kind == "linear":
        return Rope(base, "linear", keys.number("rope.scaling.factor"))
    raise ModelFileError(
        f"rotary scaling of the type {kind[:40]!r} is not supported (none, linear and llama3 are)"
    )


def _check_kinds(header: GgufHeader) -> None:
    """Every type must be one that can be dequantised; found out before gigabytes are read."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    for kind in {info.kind: info for info in header.tensors.values()}:
        quant = GGMLQuantizationType(kind)
        if quant.name in ("I8", "I16", "I32", "I64", "F64"):
            raise ModelFileError(f"weights of the type {quant.name} are not supported")
        block = np.zeros((1, _block_bytes(kind)), np.uint8)
        try:
            dequantize(block, quant)
        except NotImplementedError:
            raise ModelFileError(
                f"{header.path.name}: weights of the type {quant.name} are not supported"
            ) from None


def _block_bytes(kind: int) -> int:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    return int(GGML_QUANT_SIZES[GGMLQuantizationType(kind)][1])
