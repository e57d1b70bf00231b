"""SentencePiece BPE ("llama") as merges: blanks are written U+2581, unknown characters as byte tokens.

SentencePiece joins the neighbouring pair whose union has the best score, the leftmost of equals; a
rank for each way to cut each piece in two gives the same result, but for pieces that overlap
themselves ("aaa" as "aa"+"a" or "a"+"aa"), where either cut may win. The text is the same either way.
"""

import json
from collections.abc import Mapping, Sequence

from chatd.errors import ModelFileError
from chatd.text.vocabulary import SpacePrefix, Writing, added_tokens

SPACE = "\u2581"

MAX_PIECE_LEN = 512
"""SentencePiece's own default is 16. The work for a piece grows with the square of its length."""


def merges(pieces: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to join two of ``pieces`` into a third, best score of the third first.

    Raises `ModelFileError` for a piece that would take too long.
    """
    if any(len(piece) > MAX_PIECE_LEN for piece in pieces):
        raise ModelFileError(f"the vocabulary has a piece of more than {MAX_PIECE_LEN} characters")
    ranked = []
    for piece, token_id in pieces.items():
        for at in range(1, len(piece)):
            left, right = piece[:at], piece[at:]
            if left in pieces and right in pieces:
                ranked.append((-scores[token_id], token_id, at, left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def byte_ids(byte_tokens: Mapping[str, int]) -> dict[int, int]:
    """Token of each byte from names like ``<0x0A>``. Raises `ModelFileError` unless all 256 are there."""
    found = {byte_of(token): token_id for token, token_id in byte_tokens.items()}
    if len(found) != 256:
        raise ModelFileError(f"the vocabulary has {len(found)} byte tokens, not 256")
    return found


def byte_of(token: str) -> int:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return int(token[3:5], 16)
        except ValueError:
            pass
    raise ModelFileError(f"{token[:20]!r} is no byte token (<0x00> to <0xFF>)")


def to_bytes(token: str, *, is_byte: bool) -> bytes:
    return bytes([byte_of(token)]) if is_byte else token.replace(SPACE, " ").encode("utf-8", "replace")


def writing(
    model: Mapping[str, object],
    byte_tokens: Mapping[str, int],
    prefix: SpacePrefix,
    blanks: Mapping[str, int],
) -> Writing:
    """``model``: the model part of a tokenizer.json. The blank before a text is the caller's affair."""
    source = {
        "version": "1.0",
        "added_tokens": added_tokens(blanks),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "model": model,
    }
    text = json.dumps(source, ensure_ascii=False)
    return Writing(text, byte_ids(byte_tokens), unwritable=SPACE, substitute=" ", prefix=prefix)
