"""The decoder against transformers, on random models of every family it claims to compute."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.driving import Driver, weights_of
from tests.support.tiny_models import write_folder, write_gguf

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-one-kv-head": {"num_key_value_heads": 1, "num_attention_heads": 5, "hidden_size": 80},
    "llama-no-gqa": {"num_key_value_heads": 4, "tie_word_embeddings": False},
    "llama-biases": {"attention_bias": True},
    "llama-linear-rope": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3-rope": {"rope_scaling": LLAMA3},
    "mistral-window": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 7},
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 1},
}
IDS = [(7 * i * i + 3) % 300 for i in range(41)]


def transformers_logits(folder: Path, ids: list[int]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        return torch.as_tensor(model(torch.tensor([ids])).logits[0])


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", **MODELS[name])
    driver = Driver(weights_of(folder), 1, 64)
    ours, theirs = driver.logits(0, IDS, 0, len(IDS)), transformers_logits(folder, IDS)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert theirs.std() > 0.1


@pytest.mark.parametrize("page_size", [1, 2, 16])
@pytest.mark.parametrize("name", ["llama", "llama-one-kv-head", "mistral-window"])
def test_chunks_and_decode_equal_one_shot(name: str, page_size: int, tmp_path: Path) -> None:
    weights = weights_of(write_folder(tmp_path / "model", **MODELS[name]))
    whole = Driver(weights, 1, 64, page_size).logits(0, IDS, 0, len(IDS))
    for chunk in (1, 3, 16, 17):
        driver = Driver(weights, 1, 64, page_size)
        steps = [(at, min(chunk, len(IDS) - at)) for at in range(0, len(IDS), chunk)]
        parts = torch.cat([driver.logits(0, IDS, at, size) for at, size in steps])
        torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)


def test_gguf_and_folder_of_one_model_are_equal(tmp_path: Path) -> None:
    """The permutation of q and k rows is undone, the names map to each other."""
    folder, file = write_folder(tmp_path / "model"), write_gguf(tmp_path / "model.gguf")
    ours = [Driver(weights_of(path), 1, 64).logits(0, IDS, 0, len(IDS)) for path in (folder, file)]
    torch.testing.assert_close(*ours, atol=1e-5, rtol=1e-5)


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    one, three = write_folder(tmp_path / "one"), write_folder(tmp_path / "three", shards=3)
    ours = [Driver(weights_of(path), 1, 64).logits(0, IDS, 0, len(IDS)) for path in (one, three)]
    assert torch.equal(*ours)


def test_long_rope_factors_of_a_gguf_are_used(tmp_path: Path) -> None:
    """llama3 scaling comes to GGUF as a tensor of divisors."""
    from chatd.model.config import Rope
    from chatd.model.rope import inverse_frequencies

    plain = inverse_frequencies(Rope(10000.0), 16)
    llama3 = inverse_frequencies(Rope(10000.0, "llama3", 8.0, 1.0, 4.0, 64), 16)
    divided = inverse_frequencies(Rope(10000.0, "tensor"), 16, plain / llama3)
    torch.testing.assert_close(divided, llama3)
    assert not torch.equal(plain, llama3)
