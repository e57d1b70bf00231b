"""A Hugging Face folder (config.json, safetensors, tokenizer.json): its configuration and weights."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from chatd.errors import ModelFileError
from chatd.model.config import Fields, ModelConfig, Rope, family
from chatd.model.names import hf_name
from chatd.model.safetensors_header import StTensor, read_header
from chatd.text.tokenizer import Tokenizer

_MAX_JSON_BYTES = 4 << 20
CONFIG_NAME = "config.json"
ARCHITECTURES = ("llama", "mistral", "qwen2")

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


class HfFolder:
    """Headers of a folder's files. Raises ModelFileError for what is malformed or unsupported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Path] = {}
        self._tensors: dict[str, StTensor] = {}
        config = read_json(folder / CONFIG_NAME)
        with _naming_config():
            family(Fields(config).text("model_type"), ARCHITECTURES)
        for path in weight_files(folder):
            for name, tensor in read_header(path).items():
                if name in self._tensors:
                    raise ModelFileError(f"the tensor {name[:80]!r} is in two files")
                self._tensors[name], self._files[name] = tensor, path
        with _naming_config():
            self.config = read_config(config, folder.name, self._tensors)

    def names(self) -> set[str]:
        return set(self._tensors)

    def own_name(self, name: str) -> str:
        return hf_name(name)

    def shape(self, name: str) -> tuple[int, ...] | None:
        tensor = self._tensors.get(hf_name(name))
        return None if tensor is None else tensor.shape

    def read_into(self, name: str, out: Tensor) -> None:
        """See `TensorSource.read_into`."""
        from safetensors import safe_open

        hf = hf_name(name)
        with safe_open(str(self._files[hf]), framework="pt") as file:
            out.copy_(file.get_tensor(hf))

    def release(self) -> None:
        """There is nothing to give back: files are closed after each tensor."""

    def code_bits(self, name: str) -> int:
        return 0

    def codes(self, name: str) -> None:
        """There are none: weights in these files are floats."""

    def extents(self) -> Iterator[tuple[str, Path, int, int]]:
        """Name, file, first byte and bytes of every tensor."""
        for name, tensor in sorted(self._tensors.items()):
            yield name, self._files[name], tensor.begin, tensor.size

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_folder(self.folder)

    def chat_template(self) -> tuple[str, str, str]:
        """Source, beginning-of-text and end-of-text strings. Raises ModelFileError if there is none."""
        path = self.folder / "tokenizer_config.json"
        settings = read_json(path) if path.is_file() else {}
        jinja = self.folder / "chat_template.jinja"
        if jinja.is_file() and jinja.stat().st_size <= _MAX_JSON_BYTES:
            source: object = jinja.read_text("utf-8", "replace")
        else:
            source = settings.get("chat_template")
        if isinstance(source, list):
            named = {one.get("name"): one.get("template") for one in source if isinstance(one, dict)}
            source = named.get("default")
        if not isinstance(source, str):
            raise ModelFileError(f"there is no chat template in {self.folder}: an instruct model is needed")
        return source, _token(settings.get("bos_token")), _token(settings.get("eos_token"))


@contextlib.contextmanager
def _naming_config() -> Iterator[None]:
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(f"{CONFIG_NAME}: {error.message}") from error


def _token(value: object) -> str:
    """A special token is a string, or an object that holds one."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of bounded size. Raises ModelFileError."""
    import msgspec

    if not path.is_file():
        raise ModelFileError(f"there is no {path.name} in {path.parent}")
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise ModelFileError(f"{path.name} is too large")
    try:
        value = msgspec.json.decode(path.read_bytes())
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise ModelFileError(f"{path.name} is not valid JSON") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path.name} is not a JSON object")
    return value


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files: by its index if it has one. Names in it cannot leave the folder."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise ModelFileError(f"{index.name} has no weight_map of file names")
        files = [folder / plain_name(name) for name in sorted(set(names.values()))]
    else:
        files = sorted(folder.glob("*.safetensors"))
    for path in files:
        if not path.is_file():
            raise ModelFileError(f"{path.name}, which the model needs, is missing")
    if not files:
        refuse_pickles(folder)
        raise ModelFileError(f"there is no .safetensors file in {folder}")
    return files


def plain_name(name: str) -> str:
    """``name`` if it is a bare file name ending in .safetensors. Raises ModelFileError otherwise."""
    bare = (
        name.isprintable() and len(name) <= 200 and not set(name) & set("/\\:%") and not name.startswith(".")
    )
    if not bare or not name.endswith(".safetensors"):
        raise ModelFileError(f"{name[:80]!r} is not the name of a weight file in the folder")
    return name


def refuse_pickles(folder: Path) -> None:
    """Say why the weights that are there are not read, if there are any."""
    for path in sorted(folder.iterdir()):
        if path.suffix in PICKLES:
            raise ModelFileError(f"{path.name} is a pickle, which can run code: convert it to safetensors")


def read_config(config: Mapping[str, Any], name: str, tensors: Mapping[str, StTensor]) -> ModelConfig:
    """Raises ModelFileError naming the key that is missing, wrong or unsupported."""
    keys = Fields(config)
    architecture = keys.text("model_type")
    if keys.text("hidden_act", "silu") != "silu":
        raise ModelFileError(f"the activation {keys.text('hidden_act')[:40]!r} is not supported (silu is)")
    if keys.flag("mlp_bias", False):
        raise ModelFileError("biases in the feed-forward layers are not supported")
    if "quantization_config" in keys:
        raise ModelFileError(
            "quantised safetensors are not supported: use a .gguf file or the original weights"
        )
    heads, hidden = keys.integer("num_attention_heads"), keys.integer("hidden_size")
    tied = keys.flag("tie_word_embeddings", architecture != "mistral" and "lm_head.weight" not in tensors)
    return ModelConfig(
        name=name[:200],
        architecture=architecture,
        vocab_size=keys.integer("vocab_size"),
        context_length=keys.integer("max_position_embeddings"),
        n_layers=keys.integer("num_hidden_layers"),
        hidden=hidden,
        ffn=keys.integer("intermediate_size"),
        n_heads=heads,
        n_kv_heads=keys.integer("num_key_value_heads", heads),
        head_dim=keys.integer("head_dim", hidden // max(heads, 1)),
        norm_eps=keys.number("rms_norm_eps", 1e-6),
        rope=_rope(config),
        tied_head=tied,
        qkv_bias=hf_name("blk.0.attn_q.bias") in tensors,
        o_bias=hf_name("blk.0.attn_output.bias") in tensors,
        window=_window(keys),
    ).check()


def _window(keys: Fields) -> int:
    """Sliding window in tokens, 0 for none. Windows on some layers only are refused."""
    if keys.flag(
        "use_sliding_window", "use_sliding_window" not in keys and keys.text("model_type") == "mistral"
    ):
        if keys.text("model_type") != "mistral":
            raise ModelFileError("sliding windows on some layers are not supported")
        return keys.integer("sliding_window", 0)
    return 0


def _rope(config: Mapping[str, Any]) -> Rope:
    """From ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before)."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise ModelFileError("rope_scaling is not a JSON object")
    keys = Fields(parameters)
    base = keys.number("rope_theta", Fields(config).number("rope_theta", 10000.0))
    kind = keys.text("rope_type", keys.text("type", "default"))
    if Fields(config).number("partial_rotary_factor", keys.number("partial_rotary_factor", 1.0)) != 1.0:
        raise ModelFileError("heads that are rotated in part are not supported")
    if kind == "default":
        return Rope(base)
    if kind == "linear":
        return Rope(base, kind, keys.number("factor"))
    if kind == "llama3":
        original = keys.integer("original_max_position_embeddings")
        low, high = keys.number("low_freq_factor"), keys.number("high_freq_factor")
        if not 0 < low < high:
            raise ModelFileError("rope_scaling: low_freq_factor must be below high_freq_factor")
        return Rope(base, kind, keys.number("factor"), low, high, original)
    raise ModelFileError(f"rotary scaling of the type {kind[:40]!r} is not supported (linear and llama3 are)")
