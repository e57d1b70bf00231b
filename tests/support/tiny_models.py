"""Random models small enough to build in a test, as the files users have."""

import json
from pathlib import Path
from typing import Any

import torch

TINY: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


GGUF_PARTS = (
    *("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output"),
    *("ffn_norm", "ffn_gate", "ffn_up", "ffn_down"),
)


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Hugging Face's names and shapes."""
    hidden, ffn, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        outs = {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, q)}
        shapes |= {f"{at}self_attn.{name}.weight": shape for name, shape in outs.items()}
        biased = ["q_proj", "k_proj", "v_proj"] if config["model_type"] == "qwen2" else []
        if config.get("attention_bias"):
            biased = list(outs)
        shapes |= {f"{at}self_attn.{name}.bias": outs[name][:1] for name in biased}
        shapes |= {f"{at}mlp.{name}.weight": (ffn, hidden) for name in ("gate_proj", "up_proj")}
        shapes[f"{at}mlp.down_proj.weight"] = (hidden, ffn)
        norms = ("input_layernorm", "post_attention_layernorm")
        shapes |= {f"{at}{name}.weight": (hidden,) for name in norms}
    return shapes


def random_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Norms around 1, the rest large enough that logits are far apart."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.2 * noise if "norm" in name else noise * (0.5 if "bias" in name else 0.15)
    return tensors


def write_folder(folder: Path, shards: int = 1, seed: int = 0, **changes: Any) -> Path:
    """A Hugging Face folder without a tokenizer. ``shards`` > 1: files and an index."""
    from safetensors.torch import save_file

    config = TINY | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = random_tensors(config, seed)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map: dict[str, str] = {}
    for i in range(shards):
        name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[i::shards])
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def write_gguf(path: Path, seed: int = 0, **changes: Any) -> Path:
    """The same model as `write_folder` as a float32 GGUF file, q and k in GGUF's order."""
    from gguf import GGUFWriter

    from chatd.model.names import hf_name

    config = TINY | changes
    tensors = random_tensors(config, seed)
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_token_list([f"token {i}" for i in range(config["vocab_size"])])
    names = ["token_embd.weight", "output_norm.weight"]
    names += [f"blk.{i}.{part}.weight" for i in range(config["num_hidden_layers"]) for part in GGUF_PARTS]
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name in names:
        tensor = tensors[hf_name(name)]
        count = heads.get(name.split(".")[-2], 0)
        if count:
            tensor = tensor.view(count, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
        writer.add_tensor(name, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
