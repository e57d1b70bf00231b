"""Strings that remember which of their parts a template wrote.

Trust is what is marked and everything else is untrusted, so losing a mark is safe: message content is
plain `str`, and an operation that is not known here gives plain `str`. Known are joining (`+`, `~`,
output, `join`, captured blocks, macros), trimming and slicing. A literal that goes through another
(`replace`, `upper`, `split`) comes out untrusted: its control strings are then mere text.
"""

from collections.abc import Iterable, Sequence
from typing import SupportsIndex

Part = tuple[str, bool]
"""Text, and whether it is trusted."""


class Marked(str):
    """A string with the parts it was joined from. Parts next to each other differ in trust."""

    parts: tuple[Part, ...]

    def __new__(cls, parts: Sequence[Part]) -> "Marked":
        self = super().__new__(cls, "".join([text for text, _ in parts]))
        self.parts = tuple(parts)
        return self

    def __str__(self) -> str:
        """Itself: Jinja passes everything it writes through `str`."""
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if not isinstance(key, slice) or key.step not in (None, 1):
            return super().__getitem__(key)
        start, stop, _ = key.indices(len(self))
        return self._cut(start, max(start, stop))

    def strip(self, chars: str | None = None, /) -> str:
        return self._cut(len(self) - len(super().lstrip(chars)), len(super().rstrip(chars)))

    def lstrip(self, chars: str | None = None, /) -> str:
        return self._cut(len(self) - len(super().lstrip(chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> str:
        return self._cut(0, len(super().rstrip(chars)))

    def _cut(self, start: int, stop: int) -> "Marked":
        kept, at = [], 0
        for text, trusted in self.parts:
            piece = text[max(start - at, 0) : max(stop - at, 0)]
            if piece:
                kept.append((piece, trusted))
            at += len(text)
        return Marked(kept)


def literal(text: str) -> Marked:
    """Text a template wrote."""
    return Marked([(text, True)] if text else [])


def parts_of(text: str) -> tuple[Part, ...]:
    if isinstance(text, Marked):
        return text.parts
    return ((text, False),) if text else ()


def joined(texts: Iterable[str]) -> str:
    """As ``"".join``, with the marks kept."""
    texts = list(texts)
    if not any(isinstance(text, Marked) for text in texts):
        return "".join(texts)
    parts: list[Part] = []
    run: list[str] = []
    trust = False
    for text in texts:
        for piece, trusted in parts_of(text):
            if trusted != trust and run:
                parts.append(("".join(run), trust))
                run = []
            trust = trusted
            run.append(piece)
    if run:
        parts.append(("".join(run), trust))
    return Marked(parts)
