"""What the decoder needs to know of a model, whatever file it came from."""

from collections.abc import Mapping
from dataclasses import dataclass

from chatd.errors import ModelFileError

_LIMITS = {
    "vocab_size": 1 << 21,
    "context_length": 1 << 24,
    "n_layers": 1024,
    "hidden": 1 << 16,
    "ffn": 1 << 18,
    "n_heads": 1024,
    "n_kv_heads": 1024,
    "head_dim": 1024,
}


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary frequencies: ``base ** (-2 i / head_dim)``, changed as ``kind`` says.

    "none"; "linear": divided by ``factor``; "llama3": by ``factor`` for long wavelengths only (with
    ``low_freq_factor``, ``high_freq_factor`` and ``original_context``); "tensor": by a tensor in the file.
    """

    base: float
    kind: str = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes are elements; ``context_length`` is tokens. ``window`` 0: full attention."""

    name: str
    architecture: str
    vocab_size: int
    context_length: int
    n_layers: int
    hidden: int
    ffn: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope
    tied_head: bool
    qkv_bias: bool = False
    o_bias: bool = False
    window: int = 0

    @property
    def q_len(self) -> int:
        """Elements of all query heads."""
        return self.n_heads * self.head_dim

    @property
    def kv_len(self) -> int:
        """Elements of all KV heads of K (or of V)."""
        return self.n_kv_heads * self.head_dim

    def check(self) -> "ModelConfig":
        """Refuse sizes no model has: they come from broken files. Raises ModelFileError."""
        for field, limit in _LIMITS.items():
            if not 1 <= getattr(self, field) <= limit:
                raise ModelFileError(f"{field} is {getattr(self, field)}; it must be between 1 and {limit}")
        if self.n_heads % self.n_kv_heads:
            raise ModelFileError(f"{self.n_heads} query heads cannot share {self.n_kv_heads} KV heads")
        if self.head_dim % 2:
            raise ModelFileError(f"head size {self.head_dim} is odd; rotary embedding needs an even one")
        if not (0 < self.norm_eps < 1 and 1 < self.rope.base < 1e12 and 0 < self.rope.factor < 1e6):
            raise ModelFileError("the norm's epsilon or the rotary base or factor is out of range")
        return self


def family(architecture: str, supported: tuple[str, ...]) -> str:
    """The architecture itself if it is supported. Raises ModelFileError naming it otherwise.

    All of them are computed alike: RMS norm, rotary attention over halves, SwiGLU, biases on q, k, v and o.
    """
    if architecture not in supported:
        raise ModelFileError(
            f"models of the architecture {architecture[:80]!r} are not supported; "
            f"these are: {', '.join(supported)}"
        )
    return architecture


class Fields:
    """Typed look-ups in metadata read from a file. Each raises ModelFileError naming the key."""

    def __init__(self, values: Mapping[str, object], prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix

    def __contains__(self, key: str) -> bool:
        return self._values.get(self._prefix + key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._values.get(self._prefix + key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelFileError(self._wrong(key, value, "a whole number"))
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._values.get(self._prefix + key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelFileError(self._wrong(key, value, "a number"))
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._values.get(self._prefix + key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise ModelFileError(self._wrong(key, value, "a string"))
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(self._prefix + key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelFileError(self._wrong(key, value, "true or false"))
        return value

    def _wrong(self, key: str, value: object, wanted: str) -> str:
        what = "is missing" if value is None else f"is {repr(value)[:40]}"
        return f"{self._prefix}{key} {what}, but {wanted} is wanted"
