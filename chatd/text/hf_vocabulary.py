"""A vocabulary from a Hugging Face folder: tokenizer.json, and its neighbours for the special ids.

The model, its merges and its cut are taken as they stand. Left out are the added tokens (`Tokenizer`
finds them itself, in trusted text only), the post-processor, and NFC, so that text comes back as it went in.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chatd.errors import ModelFileError
from chatd.text import byte_level, sentencepiece
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

MAX_FILE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Added:
    """One of tokenizer.json's added tokens."""

    token_id: int
    content: str
    special: bool
    lstrip: bool
    rstrip: bool


def read(folder: Path) -> Vocabulary:
    """Raises `ModelFileError` for a missing, malformed or unknown kind of file."""
    source = _object(folder / "tokenizer.json", required=True)
    model = source.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE":
        raise ModelFileError("tokenizer.json holds no BPE model; chatd reads no other kind")
    added = [_added(one) for one in source.get("added_tokens") or []]
    vocab = _vocab(model)
    kinds = _kinds(source)
    tokens = {**{i: t for t, i in vocab.items()}, **{one.token_id: one.content for one in added}}
    size = max(tokens, default=-1) + 1
    if not 0 < size <= MAX_TOKENS:
        raise ModelFileError(f"tokenizer.json has token ids up to {size - 1}")
    to_bytes = _decoder(kinds, {one.token_id for one in added})
    special = frozenset(one.token_id for one in added if one.special)
    texts = [b"" if i in special else to_bytes(i, tokens.get(i, "")) for i in range(size)]
    bos_id, eos_ids = _ends(folder, added, size)
    return Vocabulary(
        writing=_writing(source, model, vocab, added, kinds),
        token_bytes=tuple(texts),
        markup={o.content: Markup(o.token_id, o.lstrip, o.rstrip) for o in added if _is_markup(o)},
        special_ids=special,
        eos_ids=eos_ids,
        bos_id=bos_id,
        add_bos=False,  # as transformers: a chat template writes its own
    )


def _is_markup(one: _Added) -> bool:
    return bool(one.content) and (one.special or not is_plain(one.content))


def _added(one: object) -> _Added:
    match one:
        case {"id": int(token_id), "content": str(content), **rest} if 0 <= token_id < MAX_TOKENS:
            flags = (rest.get(name) is True for name in ("special", "lstrip", "rstrip"))
            return _Added(token_id, content, *flags)
    raise ModelFileError("tokenizer.json has an added token without an id and a text")


def _vocab(model: Mapping[str, Any]) -> dict[str, int]:
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not all(type(i) is int and 0 <= i < MAX_TOKENS for i in vocab.values()):
        raise ModelFileError("tokenizer.json: model.vocab must map tokens to ids")
    return vocab


def _kinds(source: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Steps by type, of everything before and after the model."""
    found: dict[str, dict[str, Any]] = {}
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        for step in _steps(source.get(part)):
            found.setdefault(str(step.get("type")), step)
    return found


def _steps(step: object) -> Iterator[dict[str, Any]]:
    if not isinstance(step, dict):
        return
    inner = [
        step[key] for key in ("normalizers", "pretokenizers", "decoders") if isinstance(step.get(key), list)
    ]
    if not inner:
        yield step
    for steps in inner:
        for one in steps:
            yield from _steps(one)


def _writing(
    source: Mapping[str, Any],
    model: dict[str, Any],
    vocab: Mapping[str, int],
    added: list[_Added],
    kinds: Mapping[str, dict[str, Any]],
) -> Writing:
    markup = {one.content for one in added if _is_markup(one)}
    plain = {token: i for token, i in vocab.items() if token not in markup}
    blanks = {one.content: one.token_id for one in added if one.content and not _is_markup(one)}
    model = {
        **model,
        "vocab": {**plain, **blanks},
        "merges": list(_merges(model.get("merges"), vocab, plain)),
        "unk_token": None,
        "dropout": None,
    }
    _only(not model.get("continuing_subword_prefix") and not model.get("end_of_word_suffix"), "model")
    before, cut = list(_steps(source.get("normalizer"))), list(_steps(source.get("pre_tokenizer")))
    if "ByteLevel" in kinds:
        _only(_types(before) <= {"NFC"}, "normalizer")
        _only(
            {"ByteLevel"} <= _types(cut) <= {"ByteLevel", "Digits", "Split", "Punctuation"}, "pre_tokenizer"
        )
        _only(
            not any(s.get("add_prefix_space") or s.get("behavior") == "Removed" for s in cut), "pre_tokenizer"
        )
        steps = {"added_tokens": added_tokens(blanks), "pre_tokenizer": source["pre_tokenizer"]}
        return byte_level.writing({**steps, "model": model}, plain)
    _only(all(step in (_PREPEND, _REPLACE) for step in before), "normalizer")
    _only(_types(cut) <= {"Metaspace"}, "pre_tokenizer")
    byte_tokens = {name: vocab[name] for byte in range(256) if (name := f"<0x{byte:02X}>") in vocab}
    return sentencepiece.writing(model, byte_tokens, _space_prefix(kinds), blanks)


_PREPEND = {"type": "Prepend", "prepend": sentencepiece.SPACE}
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": sentencepiece.SPACE}


def _types(steps: list[dict[str, Any]]) -> set[object]:
    return {step.get("type") for step in steps}


def _merges(merges: object, vocab: Mapping[str, int], plain: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Those that no control token has a part in."""
    for left, right in _pairs(merges):
        used = {left, right, left + right}
        if not used <= vocab.keys():
            raise ModelFileError(f"tokenizer.json: merging {left[:40]!r} and {right[:40]!r} makes no token")
        if used <= plain.keys():
            yield left, right


def _only(known: bool, part: str) -> None:
    if not known:
        raise ModelFileError(f"tokenizer.json has a {part} that chatd does not know and will not guess")


def _space_prefix(kinds: Mapping[str, dict[str, Any]]) -> SpacePrefix:
    if "Prepend" in kinds:
        return SpacePrefix(at_start=True, after_control=True, before_space=True)
    metaspace = kinds.get("Metaspace", {"prepend_scheme": "never"})
    _only(not metaspace.get("split"), "pre_tokenizer")
    scheme = metaspace.get("prepend_scheme", "always")
    return SpacePrefix(at_start=scheme != "never", after_control=scheme == "always")


def _pairs(merges: object) -> Iterator[tuple[str, str]]:
    """Merges are pairs, or in older files strings with a blank between the parts."""
    for one in merges if isinstance(merges, list) else []:
        pair = one.split(" ") if isinstance(one, str) else one
        match pair:
            case [str(left), str(right)]:
                yield left, right
            case _:
                raise ModelFileError("tokenizer.json: a merge must be two tokens")


def _decoder(kinds: Mapping[str, dict[str, Any]], added: set[int]) -> Any:
    def byte_level_text(token_id: int, token: str) -> bytes:
        return token.encode("utf-8", "replace") if token_id in added else byte_level.to_bytes(token)

    def sentencepiece_text(token_id: int, token: str) -> bytes:
        is_byte = (
            token_id not in added and len(token) == 6 and token.startswith("<0x") and token.endswith(">")
        )
        return sentencepiece.to_bytes(token, is_byte=is_byte)

    if "ByteLevel" in kinds:
        return byte_level_text
    _only("ByteFallback" in kinds, "decoder")
    return sentencepiece_text


def _ends(folder: Path, added: list[_Added], size: int) -> tuple[int | None, frozenset[int]]:
    """The begin-of-text id and the end-of-text ids, from whichever file names them."""
    by_text = {one.content: one.token_id for one in added}
    settings = _object(folder / "tokenizer_config.json")
    bos = by_text.get(_text(settings.get("bos_token")))
    eos = {by_text[text] for text in (_text(settings.get("eos_token")),) if text in by_text}
    for name in ("generation_config.json", "config.json"):
        declared = _object(folder / name).get("eos_token_id")
        for value in declared if isinstance(declared, list) else [declared]:
            if value is not None:
                eos.add(checked_id(value, size, f"{name}: eos_token_id"))
    eos |= {one.token_id for one in added if one.special and one.content in END_OF_TURN}
    return bos, frozenset(eos)


def _text(token: object) -> str:
    """tokenizer_config.json writes a token as its text, or as an object that holds it."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""


def _object(path: Path, *, required: bool = False) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ModelFileError(f"{path.name} is larger than {MAX_FILE_BYTES >> 20} MiB")
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        if required:
            raise ModelFileError(f"{path.name} is missing from the model's folder") from None
        return {}
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path.name} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelFileError(f"{path.name} must hold a JSON object")
    return found
