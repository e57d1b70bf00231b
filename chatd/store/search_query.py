"""What is searched for, and where it stands in a text. Pure.

Words apart are looked for apart, and all of them have to be there; what stands in double quotes is one. Upper
and lower case are the same. A word may be one character: in Chinese most are one or two.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from chatd.errors import InvalidParameter

MAX_CHARS = 200
MAX_TERMS = 8
BEFORE, AROUND = 36, 150
"""Characters of a snippet before its first hit, and in all."""

_TERM = re.compile(r'"([^"]*)"?|([^\s"]+)')
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a snippet; ``hit``: it is what was looked for."""

    text: str
    hit: bool


def terms_of(query: str) -> tuple[str, ...]:
    """Folded, each once. InvalidParameter if there is none, or too much."""
    if len(query) > MAX_CHARS:
        raise InvalidParameter(f"q has at most {MAX_CHARS} characters", param="q")
    spoken = _CONTROL.sub(" ", query)
    found = [quoted or plain for quoted, plain in _TERM.findall(spoken)]
    terms = tuple(dict.fromkeys(fold(term.strip()) for term in found if term.strip()))
    if not terms:
        raise InvalidParameter("q is empty", param="q")
    if len(terms) > MAX_TERMS:
        raise InvalidParameter(f"q has at most {MAX_TERMS} words", param="q")
    return terms


def fold(text: str) -> str:
    """Without the difference of cases, character by character: places in it are places in ``text``."""
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    return "".join(small if len(small := char.lower()) == 1 else char for char in text)


def has_all(text: str, terms: Sequence[str]) -> bool:
    folded = fold(text)
    return all(term in folded for term in terms)


def snippet(text: str, terms: Sequence[str]) -> tuple[Part, ...]:
    """The surroundings of the first hit on one line, with all hits in them marked."""
    folded = fold(text)
    first = min((at for term in terms if (at := folded.find(term)) >= 0), default=0)
    start = _begin(text, first)
    shown = _SPACE.sub(" ", text[start : start + AROUND])
    ends = ("…" if start else "", "…" if start + AROUND < len(text) else "")
    return _marked(f"{ends[0]}{shown}{ends[1]}", terms)


def whole(text: str, terms: Sequence[str]) -> tuple[Part, ...]:
    """All of a title, with the hits in it marked."""
    return _marked(text, terms)


def _begin(text: str, first: int) -> int:
    """Somewhat before the first hit, at a word's beginning if one is near."""
    if first <= BEFORE:
        return 0
    start = first - BEFORE
    space = text.find(" ", start, start + BEFORE // 2)
    return start if space < 0 else space + 1


def _marked(shown: str, terms: Sequence[str]) -> tuple[Part, ...]:
    pattern = "|".join(re.escape(term) for term in sorted(terms, key=len, reverse=True))
    parts: list[Part] = []
    at = 0
    for match in re.finditer(pattern, fold(shown)):
        if match.start() > at:
            parts.append(Part(shown[at : match.start()], False))
        parts.append(Part(shown[match.start() : match.end()], True))
        at = match.end()
    if at < len(shown):
        parts.append(Part(shown[at:], False))
    return tuple(parts)
