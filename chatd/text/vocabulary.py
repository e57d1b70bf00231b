"""What a tokenizer is made of, whatever file it came from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from chatd.errors import ModelFileError

END_OF_TURN = frozenset(
    {"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>"}
    | {"<end_of_turn>", "</s>", "<|end_of_turn|>", "<｜end▁of▁sentence｜>"}
)
"""Control tokens that end an answer by their name, besides those a file declares as such."""

MAX_TOKENS = 1 << 22
"""More tokens than this is a damaged file (the largest vocabularies have under 2**19)."""


class Markup(NamedTuple):
    """A string that is one token where the template wrote it. It may swallow the blanks beside it."""

    token_id: int
    lstrip: bool = False
    rstrip: bool = False


class SpacePrefix(NamedTuple):
    """Where a SentencePiece-type vocabulary puts a blank before text that has none.

    ``before_space``: also before text that begins with one already.
    """

    at_start: bool = False
    after_control: bool = False
    before_space: bool = False


NO_PREFIX = SpacePrefix()


@dataclass(frozen=True, slots=True)
class Writing:
    """How plain text becomes ids. ``model`` is tokenizer.json text that no control token can come out of.

    ``byte_ids`` has the token of each byte that has one. Characters that match the regex
    ``unwritable`` (none if it is empty) are written as ``substitute``.
    """

    model: str
    byte_ids: Mapping[int, int]
    unwritable: str
    substitute: str
    prefix: SpacePrefix = NO_PREFIX


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """``token_bytes[id]`` is what a token adds to the text: nothing for control tokens.

    ``markup`` holds every string that only trusted text may turn into one token: the control tokens,
    and visible ones such as ``<think>``.
    """

    writing: Writing
    token_bytes: tuple[bytes, ...]
    markup: Mapping[str, Markup]
    special_ids: frozenset[int]
    eos_ids: frozenset[int]
    bos_id: int | None
    add_bos: bool


def checked_id(value: object, size: int, what: str) -> int:
    """``value`` if it is a token id. Raises `ModelFileError`."""
    if type(value) is int and 0 <= value < size:
        return value
    raise ModelFileError(f"{what} is {str(value)[:40]}, not a token id below {size}")


def is_plain(text: str) -> bool:
    """Whether an added token is mere text (a run of blanks), to be found in what users write too."""
    return text.isspace()


def added_tokens(blanks: Mapping[str, int]) -> list[dict[str, object]]:
    """tokenizer.json's entries for ``blanks``, which its vocabulary must have too or the ids are lost."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return [{"id": token_id, "content": text, **flags} for text, token_id in blanks.items()]
