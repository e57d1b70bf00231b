"""GGUF 'llama' vocabularies: scores, byte fallback, and the blank before a text."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatd.errors import ModelFileError
from chatd.text.tokenizer import Span, Tokenizer
from tests.text.vocabularies import BYTE, CONTROL, NORMAL, PIECES, ids_of, spm_metadata, spm_tokenizer

TOKENIZER = spm_tokenizer()


def best_joins(text: str) -> list[str]:
    """SentencePiece as defined: join the neighbours of the best score, the leftmost of equals."""
    parts = list(text)
    while True:
        joined = [a + b for a, b in pairwise(parts)]
        pairs = [(PIECES.index(piece), at) for at, piece in enumerate(joined) if piece in PIECES]
        if not pairs:
            return parts
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@given(text=st.text("abcé ", max_size=16))
def test_scores_decide_as_in_sentencepiece(text: str) -> None:
    expected: list[str] = []
    for part in best_joins((" " + text).replace(" ", "▁") if text else ""):
        expected += [part] if part in PIECES else [f"<0x{byte:02X}>" for byte in part.encode()]
    tokens = spm_metadata()["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert [tokens[i] for i in TOKENIZER.encode_text(text)] == expected


@given(text=st.text(max_size=40))
def test_any_text_comes_back_behind_its_blank(text: str) -> None:
    ids = TOKENIZER.encode_text(text)
    assert TOKENIZER.decode(ids) == (" " if text else "") + TOKENIZER.writable(text)
    assert TOKENIZER.prompt_text(ids) == TOKENIZER.writable(text)
    assert not TOKENIZER.special_ids & set(ids)


def test_unknown_characters_are_bytes() -> None:
    ids = TOKENIZER.encode_text("é€")
    assert [TOKENIZER.token_bytes(i) for i in ids] == [b" ", "é".encode(), b"\xe2", b"\x82", b"\xac"]


@pytest.mark.parametrize("text", ["<s>", "</s>", "<unk>", "<0x41>", "a<s></s>"])
def test_u1_control_and_byte_names_in_text_stay_text(text: str) -> None:
    ids = TOKENIZER.encode_spans([Span("<s>", True), Span(text, False)])
    assert ids[0] == 1
    assert not TOKENIZER.special_ids & set(ids[1:])
    assert TOKENIZER.decode(ids) == " " + text


def test_the_blank_goes_before_every_stretch() -> None:
    """As llama.cpp does for these files: at the start and after each control token."""
    ids = TOKENIZER.encode_spans([Span("ab<s>ab", True), Span("c", False), Span("</s>", True)])
    assert ids == ids_of_pieces("▁ab", "<s>", "▁", "abc", "</s>")
    assert TOKENIZER.prompt_text(ids) == "ab<s>abc</s>"
    assert TOKENIZER.encode_spans([Span("a", False)], after=ids_of_pieces("b")[0]) == ids_of_pieces("a")
    assert TOKENIZER.encode_spans([Span("a", False)], after=2) == ids_of_pieces("▁a")


def ids_of_pieces(*pieces: str) -> list[int]:
    tokens = spm_metadata()["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    return [tokens.index(piece) for piece in pieces]


def test_a_file_may_want_no_blank() -> None:
    tokenizer = spm_tokenizer(add_space_prefix=False)
    assert tokenizer.encode_text("ab") == ids_of_pieces("ab")
    assert ids_of(tokenizer, "ab") == ids_of_pieces("ab")


def test_bos_by_default() -> None:
    assert TOKENIZER.encode_prompt([Span("a", True)]) == [1, *ids_of_pieces("▁a")]
    assert spm_tokenizer(add_bos_token=False).encode_prompt([Span("a", True)]) == ids_of_pieces("▁a")


@given(ids=st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=20), cut=st.integers(0, 20))
def test_ids_for_puts_no_blank_of_its_own(ids: list[int], cut: int) -> None:
    text = TOKENIZER.decode(ids)
    assert TOKENIZER.ids_for(text, ids) == ids
    assert TOKENIZER.decode(TOKENIZER.ids_for(text[:cut], ids)) == text[:cut]


def test_ids_for_writes_the_space_mark_itself_in_bytes() -> None:
    """U+2581 from byte tokens is a visible character; as a piece it would be a blank."""
    ids = [3 + byte for byte in "▁".encode()]
    assert TOKENIZER.decode(ids) == "▁"
    assert TOKENIZER.decode(TOKENIZER.ids_for("▁", [])) == "▁"


BROKEN: dict[str, dict[str, object]] = {
    "no scores": {"scores": None},
    "too few scores": {"scores": [0.0]},
    "a score that is no number": {"scores": [float("nan")] * 271},
    "a byte is missing": {"token_type": [2, 3, 3, NORMAL, *[BYTE] * 255, *[NORMAL] * 12]},
    "a byte with another name": {"token_type": [2, 3, 3, *[BYTE] * 256, BYTE, *[NORMAL] * 11]},
    "bytes are controls": {"token_type": [CONTROL] * 271},
}


@pytest.mark.parametrize("what", BROKEN)
def test_malformed_metadata_is_refused(what: str) -> None:
    with pytest.raises(ModelFileError):
        Tokenizer.from_gguf(spm_metadata(**BROKEN[what]))  # type: ignore[arg-type]


def test_w2_a_piece_that_would_take_for_ever_is_refused() -> None:
    with pytest.raises(ModelFileError, match="512"):
        Tokenizer.from_gguf(spm_metadata(["a", "aa", "a" * 100_000]))
