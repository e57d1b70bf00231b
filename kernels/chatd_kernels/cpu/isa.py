"""What this machine's CPU can do, as far as the kernels ask."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Isa:
    """``name`` and ``features`` are LLVM's. The rest: which products of narrow numbers are one instruction.

    ``bytes_512`` and ``bytes_256``: four products of u8 and s8 into an int32 (VNNI), in vectors of that many
    bits; ``bf16``: two products of bf16 into a float32 (AVX-512 BF16).
    """

    name: str
    features: str
    bytes_512: bool
    bytes_256: bool
    bf16: bool
    wide: bool

    @property
    def bytes(self) -> bool:
        return self.bytes_512 or self.bytes_256

    @staticmethod
    def generic() -> "Isa":
        """No such instruction."""
        return Isa("", "", False, False, False, False)


def host_isa() -> Isa:
    """Of this machine, or, for tests, of ``CHATD_CPU_ISA``: a name that LLVM knows, such as x86-64-v3.

    Raises ImportError without llvmlite.
    """
    from llvmlite import binding

    if asked := os.environ.get("CHATD_CPU_ISA"):
        return Isa(asked, "", False, False, False, False)
    found = {feature for feature, there in binding.get_host_cpu_features().items() if there}
    wide = {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= found
    return Isa(
        name=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        bytes_512=wide and "avx512vnni" in found,
        bytes_256="avxvnni" in found,
        bf16=wide and "avx512bf16" in found,
        wide=wide,
    )
