"""What a folder's JSON files may say, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from chatd.errors import ModelFileError
from chatd.model.load import open_model
from tests.support.tiny_models import write_folder

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"model_type": "gemma3"}, "'gemma3'"),
    "architecture of no type": ({"model_type": 3}, "model_type"),
    "activation": ({"hidden_act": "gelu"}, "'gelu'"),
    "mlp bias": ({"mlp_bias": True}, "biases"),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantised"),
    "yarn": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
    "partial rotary": ({"partial_rotary_factor": 0.5}, "rotated in part"),
    "some windows": ({"model_type": "qwen2", "use_sliding_window": True}, "sliding windows"),
    "heads": ({"num_key_value_heads": 3}, "cannot share"),
    "layers as text": ({"num_hidden_layers": "2"}, "num_hidden_layers"),
    "billions of layers": ({"num_hidden_layers": 10**9}, "n_layers"),
    "no layers": ({"num_hidden_layers": 0}, "n_layers"),
    "more layers than tensors": ({"num_hidden_layers": 3}, "blk.2"),
    "negative context": ({"max_position_embeddings": -1}, "context_length"),
    "odd heads": ({"head_dim": 15}, "odd"),
    "epsilon": ({"rms_norm_eps": 1e300}, "epsilon"),
    "true as a number": ({"hidden_size": True}, "hidden_size"),
    "another vocabulary": ({"vocab_size": 301}, "token_embd"),
    "another width": ({"intermediate_size": 81}, "ffn"),
}


def change(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.mark.parametrize("name", REFUSED)
def test_config_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    changes, reason = REFUSED[name]
    with pytest.raises(ModelFileError, match=reason):
        open_model(change(write_folder(tmp_path / "model"), **changes))


def test_an_empty_config_names_the_file_and_the_key(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelFileError, match=r"model: config\.json: model_type is missing, but a string"):
        open_model(folder)
    with pytest.raises(ModelFileError, match="give the folder that holds it"):
        open_model(folder / "config.json")


@pytest.mark.parametrize("text", ["", "[]", "nonsense", "[" * 100_000, '{"model_type": "llama"'])
def test_config_that_is_no_json_object(text: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelFileError, match=r"config\.json"):
        open_model(folder)


def test_config_of_4_mib_is_not_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    (folder / "config.json").write_text(" " * (5 << 20))
    with pytest.raises(ModelFileError, match="too large"):
        open_model(folder)


V1_NAMES = [
    "../model-00001-of-00002.safetensors",
    "/etc/passwd",
    "/etc/x.safetensors",
    "%2e%2e%2fx.safetensors",
    "..\\x.safetensors",
    "x\0.safetensors",
    "..",
    "",
    ".hidden.safetensors",
    "a" * 300 + ".safetensors",
    "‥/x.safetensors",
    "x.bin",
    "C:x.safetensors",
]


@pytest.mark.parametrize("name", V1_NAMES)
def test_v1_names_in_the_index_stay_in_the_folder(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a" / "model", shards=2)
    (tmp_path / "a" / "model-00001-of-00002.safetensors").symlink_to(
        folder / "model-00001-of-00002.safetensors"
    )
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.norm.weight"] = name
    path.write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="not the name of a weight file"):
        open_model(folder)


@pytest.mark.parametrize("name", ["nowhere.gguf", "../nowhere", "a" * 300, "a\0b", "%2e%2e", "．．/x.gguf"])
def test_v1_model_paths_that_are_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        open_model(tmp_path / name)


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "{"])
def test_index_of_the_wrong_form(index: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", shards=2)
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelFileError, match=r"index\.json"):
        open_model(folder)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelFileError, match="model-00002-of-00002"):
        open_model(folder)


def test_a_tensor_that_would_be_ignored_is_refused(tmp_path: Path) -> None:
    """Leaving out what a model computes with gives answers that only look right."""
    from safetensors.torch import load_file, save_file

    path = write_folder(tmp_path / "model") / "model.safetensors"
    tensors = load_file(path)
    norm = tensors["model.norm.weight"].clone()
    save_file(tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": norm[:8].clone()}, path)
    open_model(path.parent)
    save_file(tensors | {"model.layers.0.self_attn.q_norm.weight": norm}, path)
    with pytest.raises(ModelFileError, match=r"q_norm\.weight is none of"):
        open_model(path.parent)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    (folder / "more.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(ModelFileError, match="two files"):
        open_model(folder)


def test_fingerprint_follows_the_weights_not_the_name(tmp_path: Path) -> None:
    one = open_model(write_folder(tmp_path / "one")).fingerprint
    assert one == open_model(write_folder(tmp_path / "same")).fingerprint
    assert one != open_model(write_folder(tmp_path / "other", seed=1)).fingerprint
    assert one != open_model(write_folder(tmp_path / "rope", rope_theta=20000.0)).fingerprint


def test_chat_template_from_the_tokenizer_settings(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    with pytest.raises(ModelFileError, match="no chat template"):
        open_model(folder).chat_template()
    settings = {"chat_template": [{"name": "default", "template": "T"}], "bos_token": {"content": "<s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    source = open_model(folder).source
    assert source.chat_template() == ("T", "<s>", "")
    (folder / "chat_template.jinja").write_text("J")
    assert source.chat_template() == ("J", "<s>", "")
