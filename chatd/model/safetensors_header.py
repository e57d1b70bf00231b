"""Reading a safetensors header that may be hostile.

Layout: 8 bytes length, that many bytes of JSON ``{name: {dtype, shape, data_offsets}}``, data. What the
library checks only after allocating is checked here first. Pickle is never touched.
"""

from dataclasses import dataclass
from pathlib import Path

from chatd.errors import ModelFileError

_MAX_HEADER_BYTES = 8 << 20
_MAX_COLONS = 120_000  # a tensor has four: bounds what decoding allocates
_MAX_DIMS = 8
_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16}


@dataclass(frozen=True, slots=True)
class StTensor:
    """``begin`` and ``size`` are bytes in the file."""

    shape: tuple[int, ...]
    dtype: str
    begin: int
    size: int


def read_header(path: Path) -> dict[str, StTensor]:
    """Float tensors by name. Raises ModelFileError unless they fill the file end to end."""
    try:
        return _checked(path)
    except ModelFileError as error:
        raise ModelFileError(f"{path.name}: {error.message}") from None


def _checked(path: Path) -> dict[str, StTensor]:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if size < 10 or not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
            raise ModelFileError(
                "not a safetensors file, or cut short"
                if length > size - 8
                else "its header is larger than any model's"
            )
        text = file.read(length)
    if text[:1] != b"{" or text.count(b":") > _MAX_COLONS:
        raise ModelFileError("not a safetensors file (its header is not a table of tensors)")
    return _place(_decode(text), 8 + length, size - 8 - length)


def _decode(text: bytes) -> dict[str, tuple[str, list[int], tuple[int, int]]]:
    import msgspec

    class Entry(msgspec.Struct):
        dtype: str
        shape: list[int]
        data_offsets: tuple[int, int]

    try:
        table = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        table.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(raw, type=Entry) for name, raw in table.items()}
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise ModelFileError("its header is not a table of tensors") from None
    return {name: (entry.dtype, entry.shape, entry.data_offsets) for name, entry in entries.items()}


def _place(
    entries: dict[str, tuple[str, list[int], tuple[int, int]]], data_at: int, data_len: int
) -> dict[str, StTensor]:
    """As the format demands, tensors lie end to end and fill the file: no overlap, no hole."""
    tensors, at = {}, 0
    for name, (dtype, shape, (begin, end)) in sorted(entries.items(), key=lambda item: item[1][2]):
        if begin != at or end < begin or end > data_len:
            raise ModelFileError(f"tensor {name[:80]!r} overlaps another, leaves a hole or lies past the end")
        at = end
        if len(shape) > _MAX_DIMS or any(dim < 0 or dim > data_len for dim in shape):
            raise ModelFileError(f"tensor {name[:80]!r} has an impossible shape")
        elements = 1
        for dim in shape:
            elements *= dim
        if dtype in _BITS:
            if elements * _BITS[dtype] != (end - begin) * 8:
                raise ModelFileError(f"tensor {name[:80]!r} is not as large as its shape says")
            tensors[name] = StTensor(tuple(shape), dtype, data_at + begin, end - begin)
    if at != data_len:
        raise ModelFileError(f"{data_len} bytes of data, but its tensors cover {at}: damaged or cut short")
    return tensors
