"""Weights as codes: a file's own go in as they are; a model of codes answers as the one it stands for."""

from pathlib import Path

import numpy as np
import pytest
import torch

from chatd.model.gguf_codes import BITS, Q4_0, Q4_1, Q8_0, codes
from chatd.model.load import load_weights, open_model, weight_form
from chatd.model.quant import QuantLinear, natural_bits
from tests.bench.numerics import measure
from tests.kernels.cpu.test_linear import weights_of
from tests.support.driving import CPU
from tests.support.tiny_models import write_gguf


@pytest.mark.parametrize("kind", [Q4_0, Q4_1, Q8_0])
def test_a_files_codes_are_its_weights(kind: int) -> None:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    quant = GGMLQuantizationType(kind)
    raw = quantize(np.random.default_rng(0).standard_normal((48, 160)).astype(np.float32), quant)
    order = np.random.default_rng(1).permutation(48)
    want = torch.from_numpy(dequantize(raw, quant))
    assert torch.equal(weights_of(codes(kind, raw, None)), want)
    assert torch.equal(weights_of(codes(kind, raw, order)), want[order])
    assert codes(kind, raw, None).bits == BITS[kind]


@pytest.mark.model
def test_smollm2_is_not_rounded_again(model_path: Path) -> None:
    source = open_model(model_path).source
    assert natural_bits(source) == 4
    for name in ("blk.3.attn_q.weight", "blk.29.attn_k.weight", "blk.7.ffn_down.weight", "token_embd.weight"):
        found, shape = source.codes(name), source.shape(name)
        assert found is not None
        assert shape is not None
        want = torch.empty(shape)
        source.read_into(name, want)
        assert torch.equal(weights_of(found), want)


@pytest.mark.model
@pytest.mark.parametrize("kv", ["bf16", pytest.param("int8", marks=pytest.mark.full)])
def test_smollm2_in_codes_is_nearly_itself(model_path: Path, kv: str) -> None:
    """The whole measure, over 10,000 positions, is in the full run."""
    cost = measure(model_path, "int4", "cpu", kv, positions=400, length=200)
    assert cost.positions >= 400
    assert 0 < cost.divergence < 0.01
    assert abs(cost.perplexity - 1) < 0.02


@pytest.mark.full
@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", ["int4", "int8"])
def test_smollm2_over_many_positions(model_path: Path, form: str) -> None:
    cost = measure(model_path, form, "cpu", "bf16", positions=10_000)
    assert cost.divergence < 0.01
    assert abs(cost.perplexity - 1) < 0.01


@pytest.mark.parametrize("form", ["int4", "int8"])
def test_a_file_of_floats_is_rounded(tmp_path: Path, form: str) -> None:
    file = open_model(write_gguf(tmp_path / "m.gguf", hidden_size=64, intermediate_size=96))
    made = weight_form(form, CPU, file)
    plain = load_weights(file, dtype=torch.float32, device=CPU)
    coded = load_weights(file, dtype=made.dtype, bits=made.bits, device=CPU)
    assert isinstance(coded.layers[0].qkv, QuantLinear)
    assert coded.nbytes < plain.nbytes
    x = torch.randn(5, 64)
    one, two = plain.layers[1].gate_up(x), coded.layers[1].gate_up(x)
    assert one.shape == two.shape
    off = float((one - two).norm() / one.norm())
    assert off < (0.15 if form == "int4" else 0.02)
    ids = torch.tensor([0, 5, 299])
    torch.testing.assert_close(coded.embedding(ids), plain.embedding(ids), atol=0.01, rtol=0.02)
