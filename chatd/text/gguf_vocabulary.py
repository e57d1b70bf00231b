"""A vocabulary from the metadata of a GGUF file: byte-level BPE ("gpt2") or SentencePiece BPE ("llama")."""

from collections.abc import Mapping
from enum import IntEnum

from chatd.errors import ModelFileError
from chatd.text import byte_level, sentencepiece
from chatd.text.pre_tokenizers import known
from chatd.text.vocabulary import (
    END_OF_TURN,
    MAX_TOKENS,
    Markup,
    SpacePrefix,
    Vocabulary,
    Writing,
    added_tokens,
    checked_id,
    is_plain,
)

_KEY = "tokenizer.ggml."


class _Type(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def read(metadata: Mapping[str, object]) -> Vocabulary:
    """Raises `ModelFileError` for a malformed or unknown kind."""
    model = metadata.get(_KEY + "model")
    tokens = _strings(metadata, "tokens")
    types = _types(metadata, len(tokens))
    if model == "gpt2":
        return _byte_level(metadata, tokens, types)
    if model == "llama":
        return _sentencepiece(metadata, tokens, types)
    raise ModelFileError(f"tokenizer.ggml.model is {str(model)[:40]!r}; chatd reads 'gpt2' and 'llama'")


def _byte_level(metadata: Mapping[str, object], tokens: list[str], types: list[int]) -> Vocabulary:
    cut = known(metadata.get(_KEY + "pre"))
    vocab = {t: i for i, t in enumerate(tokens) if types[i] in (_Type.NORMAL, _Type.BYTE)}
    everything = frozenset(tokens)
    merges = [_merge(m, vocab, everything) for m in _strings(metadata, "merges", required=False)]
    split = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        for p in cut.patterns
    ]
    blanks = _blanks(tokens, types)
    cut_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    bpe = {
        "type": "BPE",
        "vocab": {**vocab, **blanks},
        "merges": list(filter(None, merges)),
        "ignore_merges": cut.whole_words,
    }
    model = {
        "added_tokens": added_tokens(blanks),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*split, cut_bytes]},
        "model": bpe,
    }
    texts = [byte_level.to_bytes(token) for token in tokens]
    return _vocabulary(metadata, tokens, types, texts, byte_level.writing(model, vocab))


def _merge(merge: str, vocab: Mapping[str, int], everything: frozenset[str]) -> tuple[str, str] | None:
    """The two parts; None where a part or the whole is a control token, which no text may build."""
    at = merge.find(" ", 1)
    left, right = merge[:at], merge[at + 1 :]
    if at < 1 or not {left, right, left + right} <= everything:
        raise ModelFileError(f"the merge {merge[:80]!r} does not make a token")
    return (left, right) if {left, right, left + right} <= vocab.keys() else None


def _sentencepiece(metadata: Mapping[str, object], tokens: list[str], types: list[int]) -> Vocabulary:
    scores = metadata.get(_KEY + "scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelFileError("tokenizer.ggml.scores must have one number for each token")
    if not all(isinstance(score, float | int) and score == score for score in scores):
        raise ModelFileError("tokenizer.ggml.scores has something that is not a number")
    pieces = {t: i for i, t in enumerate(tokens) if types[i] == _Type.NORMAL}
    byte_tokens = {t: i for i, t in enumerate(tokens) if types[i] == _Type.BYTE}
    merges = sentencepiece.merges(pieces, scores)
    blanks = _blanks(tokens, types)
    vocab = {**pieces, **byte_tokens, **blanks}
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": True}
    add = _flag(metadata, "add_space_prefix", default=True)
    writing = sentencepiece.writing(model, byte_tokens, SpacePrefix(add, add, add), blanks)
    texts = [
        sentencepiece.to_bytes(token, is_byte=kind == _Type.BYTE)
        for token, kind in zip(tokens, types, strict=True)
    ]
    return _vocabulary(metadata, tokens, types, texts, writing)


def _vocabulary(
    metadata: Mapping[str, object],
    tokens: list[str],
    types: list[int],
    texts: list[bytes],
    writing: Writing,
) -> Vocabulary:
    special = {i for i, kind in enumerate(types) if kind in (_Type.CONTROL, _Type.UNKNOWN, _Type.UNUSED)}
    markup = {
        t: Markup(i)
        for i, t in enumerate(tokens)
        if t and (types[i] == _Type.CONTROL or (types[i] == _Type.USER_DEFINED and not is_plain(t)))
    }
    bos = metadata.get(_KEY + "bos_token_id")
    eos = {
        checked_id(value, len(tokens), f"tokenizer.ggml.{name}")
        for name in ("eos_token_id", "eot_token_id", "eom_token_id")
        if (value := metadata.get(_KEY + name)) is not None
    }
    eos |= {one.token_id for text, one in markup.items() if text in END_OF_TURN and one.token_id in special}
    return Vocabulary(
        writing=writing,
        token_bytes=tuple(b"" if i in special else text for i, text in enumerate(texts)),
        markup=markup,
        special_ids=frozenset(special),
        eos_ids=frozenset(eos),
        bos_id=None if bos is None else checked_id(bos, len(tokens), "tokenizer.ggml.bos_token_id"),
        add_bos=bos is not None
        and _flag(metadata, "add_bos_token", default=metadata[_KEY + "model"] == "llama"),
    )


def _blanks(tokens: list[str], types: list[int]) -> dict[str, int]:
    """Added tokens that are mere text."""
    return {t: i for i, t in enumerate(tokens) if types[i] == _Type.USER_DEFINED and is_plain(t)}


def _strings(metadata: Mapping[str, object], name: str, *, required: bool = True) -> list[str]:
    found = metadata.get(_KEY + name)
    if found is None and not required:
        return []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ModelFileError(f"tokenizer.ggml.{name} must be an array of strings")
    if not 0 < len(found) + (not required) <= MAX_TOKENS:
        raise ModelFileError(f"tokenizer.ggml.{name} has {len(found)} entries")
    return found


def _types(metadata: Mapping[str, object], size: int) -> list[int]:
    types = metadata.get(_KEY + "token_type", [int(_Type.NORMAL)] * size)
    if not isinstance(types, list) or len(types) != size or not set(types) <= set(_Type):
        raise ModelFileError(f"tokenizer.ggml.token_type must be {size} numbers from 1 to 6")
    return types


def _flag(metadata: Mapping[str, object], name: str, *, default: bool) -> bool:
    value = metadata.get(_KEY + name, default)
    if not isinstance(value, bool):
        raise ModelFileError(f"tokenizer.ggml.{name} must be true or false")
    return value
