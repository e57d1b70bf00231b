"""Reading a GGUF header that may be hostile.

Nothing of the file is believed: every length is checked against what is left of the file before it
is used, and nothing is allocated by a count. Arrays are skipped, not read; `GgufHeader.metadata`
reads them later. Layout: magic, version, tensor and key counts, key-value pairs, tensor infos,
padding, data (github.com/ggml-org/ggml, docs/gguf.md). All versions read are little-endian.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chatd.errors import ModelFileError

_MAX_KEYS = 10_000
_MAX_TENSORS = 100_000
_MAX_STRINGS = (
    1_000_000  # in arrays, all together: the largest vocabularies have 260,000 ids and 510,000 merges
)
_MAX_NUMBERS = 4_000_000
_MAX_HEADER_BYTES = 256 << 20
_MAX_TEXT_BYTES = 1 << 20
_MAX_TEXTS_BYTES = 16 << 20  # outside arrays, all together
_MAX_NAME_BYTES = 256
_MAX_DIMS = 4

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """``shape`` outermost first (the file has it reversed); ``begin`` and ``size`` bytes in the file."""

    name: str
    shape: tuple[int, ...]
    kind: int
    begin: int
    size: int


@dataclass(frozen=True, slots=True)
class _Array:
    kind: int
    count: int
    begin: int


class GgufHeader:
    """Vetted header of one file. Raises ModelFileError from the constructor for any malformed file."""

    def __init__(self, path: Path, block_sizes: Mapping[int, tuple[int, int]]) -> None:
        """``block_sizes``: for each tensor type, elements and bytes of a block."""
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 24:
                raise ModelFileError(f"not a GGUF file: it is only {size} bytes long")
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.path = path
        self._strings = self._numbers = self._text_bytes = 0
        self._values: dict[str, object] = {}
        self.tensors: dict[str, TensorInfo] = {}
        try:
            self._read(block_sizes)
        except struct.error:
            raise ModelFileError("it ends in the middle of its header: it is cut short") from None

    def metadata(self, prefix: str = "") -> dict[str, object]:
        """All pairs whose key starts with ``prefix``, arrays as lists. Raises ModelFileError for bad text."""
        return {k: self._value(k) for k in self._values if k.startswith(prefix)}

    def scalars(self) -> dict[str, object]:
        """All pairs but the arrays."""
        return {key: value for key, value in self._values.items() if not isinstance(value, _Array)}

    def _read(self, block_sizes: Mapping[int, tuple[int, int]]) -> None:
        magic, version, tensor_count, key_count = struct.unpack_from("<4sIQQ", self.data)
        if magic != b"GGUF":
            raise ModelFileError("not a GGUF file (it does not begin with GGUF)")
        if version not in (2, 3):
            raise ModelFileError(f"GGUF version {version} is not supported (2 and 3 are)")
        if tensor_count > _MAX_TENSORS or key_count > _MAX_KEYS:
            raise ModelFileError(f"the header claims {tensor_count} tensors and {key_count} keys")
        at = 24
        for _ in range(key_count):
            at = self._read_pair(at)
        infos = []
        for _ in range(tensor_count):
            info, at = self._read_tensor(at, block_sizes)
            infos.append(info)
        self._place(infos, at)

    def _read_pair(self, at: int) -> int:
        key, at = self._text(at, _MAX_NAME_BYTES)
        (kind,) = struct.unpack_from("<I", self.data, at)
        if key in self._values:
            raise ModelFileError(f"key {key!r} appears twice")
        self._values[key], at = self._read_value(key, kind, at + 4)
        if at > _MAX_HEADER_BYTES:
            raise ModelFileError("the header is larger than any model's")
        return at

    def _read_value(self, key: str, kind: int, at: int) -> tuple[object, int]:
        if kind == _STRING:
            return self._text(at, _MAX_TEXT_BYTES)
        if kind == _ARRAY:
            item, count = struct.unpack_from("<IQ", self.data, at)
            array = _Array(item, count, at + 12)
            return array, self._skip(key, array)
        if kind not in _SCALARS:
            raise ModelFileError(f"key {key!r} has the unknown type {kind}")
        (value,) = struct.unpack_from("<" + _SCALARS[kind], self.data, at)
        return value, at + struct.calcsize(_SCALARS[kind])

    def _skip(self, key: str, array: _Array) -> int:
        """Where ``array`` ends. Nested arrays are refused: no model has them."""
        if array.kind == _STRING:
            return self._skip_strings(key, array)
        if array.kind not in _SCALARS:
            raise ModelFileError(f"key {key!r} is an array of the unsupported type {array.kind}")
        self._numbers += array.count
        end = array.begin + array.count * struct.calcsize(_SCALARS[array.kind])
        if self._numbers > _MAX_NUMBERS or end > len(self.data):
            raise ModelFileError(f"key {key!r} claims {array.count} numbers")
        return end

    def _skip_strings(self, key: str, array: _Array) -> int:
        self._strings += array.count
        if self._strings > _MAX_STRINGS or array.begin + 8 * array.count > len(self.data):
            raise ModelFileError(f"key {key!r} claims {array.count} strings")
        data, at, end, unpack = self.data, array.begin, len(self.data), struct.Struct("<Q").unpack_from
        for _ in range(array.count):
            length = unpack(data, at)[0]
            at += 8 + length
            if length > _MAX_TEXT_BYTES or at > end:
                raise ModelFileError(f"key {key!r} holds a string of {length} bytes")
        return at

    def _value(self, key: str) -> object:
        value = self._values[key]
        if not isinstance(value, _Array):
            return value
        if value.kind != _STRING:
            form = f"<{value.count}{_SCALARS[value.kind]}"
            return list(struct.unpack_from(form, self.data, value.begin))
        data, at, items, unpack = self.data, value.begin, [], struct.Struct("<Q").unpack_from
        try:
            for _ in range(value.count):
                end = at + 8 + unpack(data, at)[0]
                items.append(data[at + 8 : end].decode())
                at = end
        except UnicodeDecodeError:
            raise ModelFileError(f"{self.path.name}: key {key!r} holds text that is not UTF-8") from None
        return items

    def _text(self, at: int, limit: int) -> tuple[str, int]:
        (length,) = struct.unpack_from("<Q", self.data, at)
        begin, end = at + 8, at + 8 + length
        self._text_bytes += length
        if length > limit or end > len(self.data) or self._text_bytes > _MAX_TEXTS_BYTES:
            raise ModelFileError(f"the header holds a string of {length} bytes at byte {at}")
        try:
            return self.data[begin:end].decode(), end
        except UnicodeDecodeError:
            raise ModelFileError(f"the header holds text that is not UTF-8 at byte {at}") from None

    def _read_tensor(self, at: int, block_sizes: Mapping[int, tuple[int, int]]) -> tuple[TensorInfo, int]:
        name, at = self._text(at, _MAX_NAME_BYTES)
        (n_dims,) = struct.unpack_from("<I", self.data, at)
        if not 1 <= n_dims <= _MAX_DIMS:
            raise ModelFileError(f"tensor {name!r} has {n_dims} dimensions")
        *dims, kind, offset = struct.unpack_from(f"<{n_dims}QIQ", self.data, at + 4)
        if kind not in block_sizes:
            raise ModelFileError(f"tensor {name!r} has the unknown type {kind}")
        elements, (block_len, block_bytes) = 1, block_sizes[kind]
        for dim in dims:
            elements *= dim
            if not 0 < dim <= len(self.data) * 8 or elements > len(self.data) * 8:
                raise ModelFileError(f"tensor {name!r} claims more elements than the file could hold: {dims}")
        if dims[0] % block_len:
            raise ModelFileError(
                f"tensor {name!r} has rows of {dims[0]}, not a multiple of its block of {block_len}"
            )
        size = elements // block_len * block_bytes
        return TensorInfo(name, tuple(reversed(dims)), kind, offset, size), at + 4 + 8 * n_dims + 12

    def _place(self, infos: list[TensorInfo], at: int) -> None:
        """Check where the tensors lie: aligned, inside the file, apart."""
        alignment = self._values.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 16 or alignment & (alignment - 1):
            raise ModelFileError(f"general.alignment is {alignment!r}; it must be a power of two")
        begin = end = -(-at // alignment) * alignment
        for info in sorted(infos, key=lambda info: info.begin):
            if info.begin % alignment:
                raise ModelFileError(f"tensor {info.name!r} is not aligned to {alignment} bytes")
            if begin + info.begin < end:
                raise ModelFileError(f"tensor {info.name!r} overlaps another")
            end = begin + info.begin + info.size
            if end > len(self.data):
                raise ModelFileError(f"tensor {info.name!r} lies past the end of the file: it is cut short")
            if info.name in self.tensors:
                raise ModelFileError(f"tensor {info.name!r} appears twice")
            placed = TensorInfo(info.name, info.shape, info.kind, begin + info.begin, info.size)
            self.tensors[info.name] = placed
