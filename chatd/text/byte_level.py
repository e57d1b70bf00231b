"""GPT-2's byte-level alphabet: one printable character for each of the 256 bytes.

Printable Latin-1 stands for itself; the other 68 bytes get the characters from U+0100 on, in order.
"""

import json
from collections.abc import Container, Mapping
from functools import cache

from chatd.errors import ModelFileError
from chatd.text.vocabulary import Writing

_PRINTABLE = (range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100))

_CANNOT_DO_WITHOUT = frozenset({0x0A, 0xEF, *range(0x20, 0x7F), *range(0x80, 0xC0)})
"""Printable ASCII, line feed, what follows a lead byte, and U+FFFD, which stands in for the rest."""


@cache
def symbols() -> tuple[str, ...]:
    """The character of each byte, in byte order."""
    plain = {byte for part in _PRINTABLE for byte in part}
    spare = iter(range(0x100, 0x200))
    return tuple(chr(byte) if byte in plain else chr(next(spare)) for byte in range(256))


def byte_ids(vocab: Mapping[str, int]) -> dict[int, int]:
    """The token of each byte that has one. Raises `ModelFileError` if too many are missing."""
    found = {byte: vocab[symbol] for byte, symbol in enumerate(symbols()) if symbol in vocab}
    if not found.keys() >= _CANNOT_DO_WITHOUT:
        raise ModelFileError("the vocabulary lacks tokens for single bytes, so it cannot write every text")
    return found


def writing(model: Mapping[str, object], vocab: Mapping[str, int]) -> Writing:
    """``model``: the parts of a tokenizer.json. ``vocab``: its tokens."""
    found = byte_ids(vocab)
    text = json.dumps({"version": "1.0", **model}, ensure_ascii=False)
    return Writing(text, found, unwritable(found), "\N{REPLACEMENT CHARACTER}")


def unwritable(known: Container[int]) -> str:
    """A regex for the characters whose UTF-8 needs a byte that is not ``known``; "" if there is none.

    Vocabularies keep only the bytes of their training text: SmolLM2's has none for U+0004 or U+40000.
    """
    ranges = [_range(byte) for byte in range(0xF5) if byte not in known and not 0x80 <= byte < 0xC2]
    return "[" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges) + "]" if ranges else ""


def _range(lead: int) -> tuple[int, int]:
    """The first and last character whose UTF-8 begins with ``lead``."""
    if lead < 0x80:
        return lead, lead
    if lead < 0xE0:
        return (lead & 0x1F) << 6, (lead & 0x1F) << 6 | 0x3F
    if lead < 0xF0:
        return max((lead & 0xF) << 12, 0x800), (lead & 0xF) << 12 | 0xFFF
    return max((lead & 7) << 18, 0x10000), min((lead & 7) << 18 | 0x3FFFF, 0x10FFFF)


@cache
def _bytes_of() -> dict[str, int]:
    return {symbol: byte for byte, symbol in enumerate(symbols())}


def to_bytes(token: str) -> bytes:
    """The bytes a token stands for. One with a character outside the alphabet was added as plain text."""
    table = _bytes_of()
    try:
        return bytes([table[char] for char in token])
    except KeyError:
        return token.encode("utf-8", "replace")
