"""Where weights come from: one small interface over the two file formats."""

from typing import Protocol

from torch import Tensor

from chatd_kernels.cpu.linear import Codes


class TensorSource(Protocol):
    """Tensors by the decoder's own names (see `chatd.model.names`), read on demand."""

    def names(self) -> set[str]:
        """All tensors of the file, by its own names."""
        ...

    def own_name(self, name: str) -> str:
        """The file's name for one of the decoder's."""
        ...

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape, or None if the file has no such tensor."""
        ...

    def read_into(self, name: str, out: Tensor) -> None:
        """Fill ``out`` (of the tensor's shape, any float dtype, on the CPU), converting as needed."""
        ...

    def release(self) -> None:
        """Everything was read: memory that only mirrors the file is given back until it is read again."""
        ...

    def code_bits(self, name: str) -> int:
        """Bits of the codes that `codes` gives, 4 or 8; 0 if the tensor is of another kind."""
        ...

    def codes(self, name: str) -> Codes | None:
        """The file's own codes, not rounded again."""
        ...
