"""Opening and loading files; the real model's numbers."""

import json
import time
from pathlib import Path

import pytest
import torch

from chatd.errors import ModelFileError, SetupError
from chatd.model.load import WeightForm, load_weights, open_model, weight_form
from tests.support.driving import CPU
from tests.support.tiny_models import write_folder, write_gguf


@pytest.mark.model
def test_smollm2_header(model_path: Path) -> None:
    began = time.process_time()
    model = open_model(model_path)
    assert time.process_time() - began < 1
    config = model.config
    assert (config.architecture, config.n_layers, config.hidden, config.ffn) == ("llama", 30, 576, 1536)
    assert (config.n_heads, config.n_kv_heads, config.head_dim, config.vocab_size) == (9, 3, 64, 49152)
    assert (config.context_length, config.rope.base, config.tied_head) == (8192, 100000.0, True)
    assert config.norm_eps == pytest.approx(1e-5)
    assert 2 in model.tokenizer().eos_ids
    source, bos, eos = model.source.chat_template()
    assert "<|im_start|>" in source
    assert (bos, eos) == ("<|im_start|>", "<|im_end|>")
    assert model.chat_template()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_progress_rises_to_one(tmp_path: Path, dtype: torch.dtype) -> None:
    told: list[tuple[float, str]] = []
    weights = load_weights(
        open_model(write_gguf(tmp_path / "m.gguf")),
        dtype=dtype,
        device=CPU,
        progress=lambda share, what: told.append((share, what)),
    )
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert all(what for _, what in told)
    assert weights.embedding.dtype == dtype
    assert weights.nbytes > 0


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K", "F16", "BF16"])
def test_block_types_load_within_their_error(kind: str, tmp_path: Path) -> None:
    """A file of each common type, quantised by the library where it can, else of zeros."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
    from gguf.quants import quant_shape_to_byte_shape, quantize

    plain = write_gguf(tmp_path / "plain.gguf", hidden_size=256, intermediate_size=256, head_dim=64)
    quant, reader = GGMLQuantizationType[kind], GGUFReader(plain)
    writer = GGUFWriter(tmp_path / "q.gguf", "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            sub_type = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type)
    for tensor in reader.tensors:
        if len(tensor.shape) == 1:
            writer.add_tensor(tensor.name, tensor.data)
            continue
        try:
            data = quantize(tensor.data, quant)
        except NotImplementedError:
            data = torch.zeros(quant_shape_to_byte_shape(tensor.data.shape, quant), dtype=torch.uint8).numpy()
        writer.add_tensor(tensor.name, data, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    exact, lossy = (open_model(path).source for path in (plain, tmp_path / "q.gguf"))
    for name in ("blk.1.attn_q.weight", "blk.0.ffn_down.weight", "token_embd.weight"):
        shape = exact.shape(name)
        assert shape is not None
        one, two = torch.empty(shape), torch.empty(shape)
        exact.read_into(name, one)
        lossy.read_into(name, two)
        if kind in ("Q4_K", "Q6_K"):
            assert not two.any()
        else:
            assert (one - two).abs().max() < 0.08


def test_forms_of_weights(tmp_path: Path) -> None:
    file, gpu = open_model(write_gguf(tmp_path / "m.gguf")), torch.device("cuda")
    assert weight_form("fp32", CPU, file) == WeightForm(torch.float32)
    assert weight_form("bf16", CPU, file) == WeightForm(torch.bfloat16)
    assert weight_form("auto", gpu, file) == WeightForm(torch.bfloat16)
    assert weight_form("int4", CPU, file) == WeightForm(torch.float32, 4)
    # A file of floats loses next to nothing in 8 bits, and much in 4.
    assert weight_form("auto", CPU, file).name in ("bfloat16", "float32", "int8")
    for form, where in (("fp64", CPU), ("int4", gpu)):
        with pytest.raises(SetupError, match=form):
            weight_form(form, where, file)


def test_errors_name_the_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path, tmp_path / "x.pkl"):
        with pytest.raises(ModelFileError, match=path.name):
            open_model(path)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"no \.safetensors"):
        open_model(folder)


def test_half_precision_folder(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_folder(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor.half() for name, tensor in tensors.items()}, folder / "model.safetensors")
    out = torch.empty(300, 48)
    open_model(folder).source.read_into("token_embd.weight", out)
    assert torch.equal(out, tensors["model.embed_tokens.weight"].half().float())
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 300
