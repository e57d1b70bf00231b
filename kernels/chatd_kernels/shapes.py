"""Shapes of real models, for whoever compiles, counts or times kernels without a model."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A llama-like decoder. ``softcap`` and ``window`` 0: none."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    dim: int
    ffn: int
    vocab: int
    tied: bool
    softcap: float = 0.0
    window: int = 0


LLAMA_3_8B = ModelShape("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, tied=False)
SMOLLM2_135M = ModelShape("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, tied=True)
# The other head dimensions, with what their families add.
PHI_2 = ModelShape("phi-2", 32, 2560, 32, 32, 80, 10240, 51200, tied=False)
PHI_3_MINI = ModelShape("phi-3-mini", 32, 3072, 32, 32, 96, 8192, 32064, tied=False, window=2047)
GEMMA_2_2B = ModelShape("gemma-2-2b", 26, 2304, 8, 4, 256, 9216, 256000, tied=True, softcap=50.0, window=4096)
