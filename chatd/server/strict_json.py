"""What a JSON text must be before a decoder may see it: one pass over the raw bytes.

The decoder itself (msgspec) already refuses NaN, Infinity, numbers beyond a double, control
characters, lone surrogates and broken UTF-8. What it lets through, or pays dearly for, is caught here:
size, nesting (it recurses), duplicate keys (it keeps the last), numbers of thousands of digits, NUL
written as an escape, and documents of very many small values.

The pass jumps from bracket to bracket and from string to string, so its cost follows their number
(at most `Limits.max_tokens`), not the length of the text: 1 MiB takes 3 ms as one plain string and
11 ms as the worst document within the limits (one core of a small cloud machine). It does not
validate the grammar.
"""

import re
from dataclasses import dataclass

import msgspec

from chatd.errors import BadFrame, ChatdError, InvalidParameter

MAX_NUMBER_CHARS = 64
"""No double needs more than 25 characters; the rest is kindness to printers of exact decimals."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes; ``max_tokens`` counts strings and brackets."""

    max_bytes: int = 1 << 20
    max_depth: int = 32
    max_tokens: int = 20_000


_NEXT = re.compile(rb'["{}\[\]]')
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_COLON = re.compile(rb"[ \t\r\n]*+:")
_LONG_NUMBER = re.compile(rb"[-+.0-9eE]{%d}" % (MAX_NUMBER_CHARS + 1))
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*+\\u0000")

_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def check_json(raw: bytes, limits: Limits) -> None:
    """Raise `BadFrame` if ``raw`` breaks a limit, repeats a key or holds a NUL."""
    if len(raw) > limits.max_bytes:
        raise BadFrame(f"{len(raw):,} bytes are more than the {limits.max_bytes:,} allowed")
    if b"\\u0000" in raw and _NUL.search(raw):
        raise BadFrame("strings must not contain NUL (\\u0000)")
    _walk(raw, limits)


def _walk(raw: bytes, limits: Limits) -> None:
    open_keys: list[set[bytes] | None] = []  # one entry per open bracket: keys so far, or None for an array
    position = tokens = 0
    while (found := _NEXT.search(raw, position)) is not None:
        start = found.start()
        _check_numbers(raw, position, start)
        tokens += 1
        if tokens > limits.max_tokens:
            raise BadFrame(f"more than {limits.max_tokens:,} strings, lists and objects")
        mark = raw[start]
        position = start + 1
        if mark == 0x22:
            position = _string_end(raw, start)
            if open_keys and (keys := open_keys[-1]) is not None and _COLON.match(raw, position):
                _add_key(keys, raw[start:position])
        elif mark in b"{[":
            open_keys.append(set() if mark == 0x7B else None)
            if len(open_keys) > limits.max_depth:
                raise BadFrame(f"nested deeper than {limits.max_depth} levels")
        elif open_keys:
            open_keys.pop()
    _check_numbers(raw, position, len(raw))


def _check_numbers(raw: bytes, start: int, end: int) -> None:
    if end - start > MAX_NUMBER_CHARS and _LONG_NUMBER.search(raw, start, end):
        raise BadFrame(f"a number of more than {MAX_NUMBER_CHARS} characters")


def _string_end(raw: bytes, start: int) -> int:
    if (string := _STRING.match(raw, start)) is None:
        raise BadFrame("not valid JSON: a string does not end")
    return string.end()


def _add_key(keys: set[bytes], token: bytes) -> None:
    key = token[1:-1]
    if b"\\" in key:  # "\u0061" and "a" are one key
        try:
            key = msgspec.json.decode(token, type=str).encode()
        except msgspec.DecodeError as error:
            raise malformed(token, error) from error
    if key in keys:
        raise BadFrame(f"duplicate key {key[:64].decode(errors='replace')!r}")
    keys.add(key)


def malformed(raw: bytes, error: msgspec.DecodeError) -> BadFrame:
    """What a decoder did not like. Half a surrogate pair it only calls truncated, or malformed."""
    if _SURROGATE.search(_PAIR.sub(b"", raw)):
        return BadFrame("not valid JSON: a string holds half a surrogate pair")
    return BadFrame(f"not valid JSON: {error}")


def explained(error: msgspec.ValidationError) -> ChatdError:
    """msgspec says "Expected `int`, got `str` - at `$.after_seq`": a field's fault names the field."""
    what, _, path = str(error).partition(" - at `$.")
    name = path.rstrip("`")
    if not name:
        return BadFrame(what)
    return InvalidParameter(f"{name}: {what}", param=name)
