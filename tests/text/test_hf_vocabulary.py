"""Hugging Face folders: the same vocabularies as the GGUF ones give the same ids."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chatd.errors import ModelFileError
from chatd.text import byte_level
from chatd.text.tokenizer import Span, Tokenizer
from tests.text.test_tokenizer import HARD
from tests.text.vocabularies import PIECES, byte_tokenizer, ids_of, spm_metadata, spm_tokenizer

Json = dict[str, Any]
MERGES = ["h e", "l l", "he ll", "hell o", "< |", "e n", "en d", "| >", "<| end", "<|end |>"]


def added(token_id: int, content: str, *, special: bool, **flags: bool) -> Json:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": content, "special": special, **plain, **flags}


def byte_json() -> Json:
    made = [merge.replace(" ", "") for merge in MERGES]
    return {
        "version": "1.0",
        "added_tokens": [added(265, "<|end|>", special=True), added(266, "<think>", special=False)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "unk_token": "<|end|>",
            "vocab": {t: i for i, t in enumerate([*byte_level.symbols(), *made])},
            "merges": MERGES,
        },
    }


def spm_json() -> Json:
    tokens = spm_metadata()["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    return {
        "version": "1.0",
        "added_tokens": [added(i, t, special=True) for i, t in enumerate(tokens[:3])],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "byte_fallback": True,
            "fuse_unk": True,
            "vocab": {t: i for i, t in enumerate(tokens)},
            "merges": [
                [piece[:at], piece[at:]]
                for piece in PIECES
                for at in range(1, len(piece))
                if piece[:at] in PIECES and piece[at:] in PIECES
            ],
        },
    }


def write(folder: Path, source: Json, **others: Json) -> Path:
    for name, content in {"tokenizer": source, **others}.items():
        (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return folder


def test_byte_level_equals_the_same_vocabulary_in_gguf(tmp_path: Path) -> None:
    folder = Tokenizer.from_folder(write(tmp_path, byte_json()))
    gguf = byte_tokenizer({}, merges=MERGES)
    for text in (*HARD, "hello <|end|> hell", "e\u0301"):
        ids = folder.encode_text(text)
        assert folder.decode(ids) == text, "NFC would have changed it"
        assert 265 not in ids
        assert [folder.token_bytes(i) for i in ids] == [gguf.token_bytes(i) for i in gguf.encode_text(text)]
    assert folder.encode_spans([Span("<|end|><think>", True)]) == [265, 266]
    assert folder.decode([265, 266]) == "<think>"
    assert folder.special_ids == {265}


def test_sentencepiece_equals_the_same_vocabulary_in_gguf(tmp_path: Path) -> None:
    folder = Tokenizer.from_folder(write(tmp_path, spm_json()))
    gguf = spm_tokenizer()
    for text in (*HARD, "abc abcabc  ab", "<s> </s>"):
        assert folder.encode_text(text) == gguf.encode_text(text)
        assert folder.decode(folder.encode_text(text)) == " " + text


@pytest.mark.parametrize(
    ("scheme", "pieces"),
    [
        ("never", ["ab", "<s>", "ab", "<s>", " a"]),
        ("first", [" ab", "<s>", "ab", "<s>", " a"]),
        ("always", [" ab", "<s>", " ab", "<s>", " a"]),
    ],
)
def test_metaspace_says_where_blanks_go(tmp_path: Path, scheme: str, pieces: list[str]) -> None:
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    source = {**spm_json(), "normalizer": None, "pre_tokenizer": metaspace}
    tokenizer = Tokenizer.from_folder(write(tmp_path, source))
    assert tokenizer.encode_spans([Span("ab<s>ab<s> a", True)]) == ids_of(
        spm_tokenizer(add_space_prefix=False), *pieces
    )


def test_blanks_beside_markup_are_swallowed_in_templates_only(tmp_path: Path) -> None:
    source = byte_json()
    source["added_tokens"][0] = added(265, "<|end|>", special=True, rstrip=True, lstrip=True)
    tokenizer = Tokenizer.from_folder(write(tmp_path, source))
    template = [Span("a \n<|end|>\n b", True)]
    assert tokenizer.encode_spans(template) == [97, 265, 98]
    user = [Span("a ", False), Span("<|end|>", True), Span(" b", False)]
    assert tokenizer.decode(tokenizer.encode_spans(user)) == "a  b"


def test_ends_come_from_every_neighbour(tmp_path: Path) -> None:
    source = byte_json()
    source["added_tokens"] += [added(i, f"<{i}>", special=True) for i in (267, 268, 269, 270)]
    folder = write(
        tmp_path,
        source,
        tokenizer_config={"bos_token": {"content": "<267>"}, "eos_token": "<268>"},
        generation_config={"eos_token_id": [269]},
        config={"eos_token_id": 270},
    )
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.bos_id == 267
    assert tokenizer.eos_ids == {265, 268, 269, 270}
    assert not tokenizer.add_bos


def broken(change: Callable[[Json], object], source: Callable[[], Json] = byte_json) -> Json:
    made = source()
    change(made)
    return made


BROKEN: dict[str, Json] = {
    "no model": {"version": "1.0"},
    "another model": broken(lambda s: s["model"].update(type="Unigram")),
    "vocabulary is a list": broken(lambda s: s["model"].update(vocab=["a"])),
    "ids are strings": broken(lambda s: s["model"].update(vocab={"a": "1"})),
    "an id out of all bounds": broken(lambda s: s["model"]["vocab"].update(a=1 << 40)),
    "merge of three": broken(lambda s: s["model"].update(merges=["a b c"])),
    "merge of nothing": broken(lambda s: s["model"].update(merges=[["h", "x"]])),
    "added token without id": broken(lambda s: s["added_tokens"].append({"content": "x"})),
    "lower case": broken(lambda s: s.update(normalizer={"type": "Lowercase"})),
    "a blank before bytes": broken(lambda s: s["pre_tokenizer"].update(add_prefix_space=True)),
    "cut away": broken(lambda s: s.update(pre_tokenizer={"type": "Whitespace"})),
    "removed": broken(
        lambda s: s.update(
            pre_tokenizer={
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"String": "a"}, "behavior": "Removed", "invert": False},
                    s["pre_tokenizer"],
                ],
            }
        )
    ),
    "suffixes": broken(lambda s: s["model"].update(end_of_word_suffix="</w>")),
    "unknown decoder": broken(lambda s: s.update(decoder={"type": "WordPiece"}, pre_tokenizer=None)),
    "metaspace that splits": broken(
        lambda s: s.update(
            normalizer=None,
            pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
        ),
        spm_json,
    ),
    "another replacement": broken(
        lambda s: s.update(normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": "b"}),
        spm_json,
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_unknown_or_malformed_is_refused(tmp_path: Path, what: str) -> None:
    with pytest.raises(ModelFileError):
        Tokenizer.from_folder(write(tmp_path, BROKEN[what]))


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, '{"model": 1}'])
def test_files_that_are_no_tokenizer(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelFileError):
        Tokenizer.from_folder(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.json is missing"):
        Tokenizer.from_folder(tmp_path)


def test_an_eos_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="eos_token_id"):
        Tokenizer.from_folder(write(tmp_path, byte_json(), config={"eos_token_id": 10**6}))
