"""The decoder's names for its tensors, and the shapes they must have.

GGUF's names, because they are the shorter of the two; `hf_name` gives the Hugging Face name.
"""

from chatd.errors import ModelFileError
from chatd.model.config import ModelConfig
from chatd.model.tensors import TensorSource

_HF_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_HF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hf_name(name: str) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``."""
    if name in _HF_OUTER:
        return _HF_OUTER[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_HF_LAYER[part]}.{kind}"


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the decoder reads."""
    hidden, q, kv, ffn = config.hidden, config.q_len, config.kv_len, config.ffn
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab_size, hidden),
        "output_norm.weight": (hidden,),
    }
    if not config.tied_head:
        shapes["output.weight"] = (config.vocab_size, hidden)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (q, hidden),
        "attn_k.weight": (kv, hidden),
        "attn_v.weight": (kv, hidden),
        "attn_output.weight": (hidden, q),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (ffn, hidden),
        "ffn_up.weight": (ffn, hidden),
        "ffn_down.weight": (hidden, ffn),
    }
    if config.qkv_bias:
        layer |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if config.o_bias:
        layer["attn_output.bias"] = (hidden,)
    if config.rope.kind == "tensor":
        shapes["rope_freqs.weight"] = (config.head_dim // 2,)
    for i in range(config.n_layers):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


_UNREAD = ("lm_head.weight", "rope_freqs.weight", "rotary_emb.inv_freq")
"""Endings of tensors that may be there without being read: they say what the configuration says too."""


def check_shapes(config: ModelConfig, source: TensorSource) -> None:
    """Raises ModelFileError naming the first tensor that is missing, misshapen or not computed with."""
    expected = expected_shapes(config)
    for name in sorted(source.names() - {source.own_name(name) for name in expected}):
        if not name.endswith(_UNREAD):
            raise ModelFileError(f"the tensor {name[:80]} is none of this architecture's")
    for name, shape in expected.items():
        found = source.shape(name)
        if found is None:
            raise ModelFileError(f"the tensor {name} is missing")
        if found != shape:
            raise ModelFileError(f"the tensor {name} has the shape {found}, not {shape}")
