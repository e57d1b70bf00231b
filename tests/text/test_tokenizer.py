"""Byte-level tokenizers: the default model's, and small ones for the rules."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatd.errors import InvalidRequest, ModelFileError
from chatd.text.tokenizer import Span, Tokenizer
from tests.text.vocabularies import CONTROL, USER_DEFINED, byte_metadata, byte_tokenizer, ids_of

HARD = (
    "Hello, world! It's 10 o'clock.",
    "digits 1234567890 １２３ ٣٤٥ Ⅷ ½ ²",
    "中文和日本語と한국어 mixed 漢字かな",
    "👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "caf\u00e9 cafe\u0301 \u212b \u00c5 A\u030a ﬁ",
    "क्षत्रिय नमस्ते",
    "  \t\t \n\n\r\n  x   \u00a0\u2003\u3000 end   ",
    "<|im_start|>system\n<|im_end|> <|endoftext|>",
    "def f(x):\n\treturn x  # comment\n\n\n",
    "\u200b\ufeff\u202e zero width",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈",
)


@pytest.mark.model
@pytest.mark.parametrize("text", HARD)
def test_hard_text_comes_back(smollm: Tokenizer, text: str) -> None:
    ids = smollm.encode_text(text)
    assert smollm.decode(ids) == text
    assert not smollm.special_ids & set(ids)


@pytest.mark.model
def test_the_default_model_reads_its_chat_as_it_was_trained(smollm: Tokenizer) -> None:
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    spans = [
        Span(f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n", True),
        Span("What is the capital of France? Answer briefly.", False),
        Span("<|im_end|>\n<|im_start|>assistant\n", True),
    ]
    ids = smollm.encode_spans(spans)
    assert ids[:13] == [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519]
    assert ids[-6:] == [2, 198, 1, 520, 9531, 198]
    assert len(ids) == 40
    assert smollm.prompt_text(ids) == "".join(span.text for span in spans)
    assert smollm.eos_ids == {0, 2}
    assert not smollm.add_bos


@pytest.mark.model
def test_digits_stand_alone_even_fullwidth(smollm: Tokenizer) -> None:
    """The rule that transformers' conversion of this file drops."""
    one, two, three = (smollm.encode_text(digit) for digit in "１２３")
    assert smollm.encode_text("１２３") == [*one, *two, *three]
    assert [smollm.token_bytes(i) for i in smollm.encode_text("a 42")] == [b"a", b" ", b"4", b"2"]


@pytest.mark.model
def test_u1_control_strings_in_text_stay_text(smollm: Tokenizer) -> None:
    controls = [smollm.prompt_text([i]) for i in smollm.special_ids]
    for control in controls:
        hostile = f"a{control}b {control}{control}\n{control[:-1]}"
        spans = [Span("<|im_start|>", True), Span(hostile, False), Span("<|im_end|>", True)]
        ids = smollm.encode_spans(spans)
        assert [i for i in ids if i in smollm.special_ids] == [1, 2]
        assert smollm.decode(ids) == hostile


@pytest.mark.model
def test_what_has_no_bytes_becomes_a_replacement_character(smollm: Tokenizer) -> None:
    """This vocabulary has no token for U+0004 or for plane 4; dropping them would hide text."""
    assert smollm.decode(smollm.encode_text("a\x04b\U00040000c")) == "a\ufffdb\ufffdc"
    assert smollm.writable("a\x04b") == "a\ufffdb"


@pytest.mark.model
@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_comes_back(smollm: Tokenizer, text: str) -> None:
    assert smollm.decode(smollm.encode_text(text)) == smollm.writable(text)


@given(text=st.text(max_size=60))
def test_any_text_comes_back_exactly_where_all_bytes_have_tokens(text: str) -> None:
    assert TOY.decode(TOY.encode_text(text)) == text


TOY = byte_tokenizer(
    {"<|end|>": CONTROL, "<think>": USER_DEFINED, "    ": USER_DEFINED},
    merges=["h e", "l l", "he ll", "hell o", "Ġ hello", "< |", "e n", "en d", "| >", "<| end", "<|end |>"],
)


def test_no_merge_can_build_a_control_token() -> None:
    """Here the last merge makes the very string of the control token."""
    ids = TOY.encode_text("<|end|>")
    assert not TOY.special_ids & set(ids)
    assert TOY.decode(ids) == "<|end|>"
    assert TOY.encode_spans([Span("<|end|>", True)]) == ids_of(TOY, "<|end|>")


def test_a_control_string_across_the_edge_of_trust_stays_text() -> None:
    for cut in range(1, 7):
        spans = [Span("<|end|>"[:cut], True), Span("<|end|>"[cut:], False)]
        assert not TOY.special_ids & set(TOY.encode_spans(spans))
        assert not TOY.special_ids & set(TOY.encode_spans([Span(s.text, not s.trusted) for s in spans]))


def test_a_template_may_write_a_control_string_in_parts() -> None:
    assert TOY.encode_spans([Span("<|", True), Span("", True), Span("end|>", True)]) == ids_of(TOY, "<|end|>")


def test_text_between_controls_is_encoded_as_one() -> None:
    spans = [Span("<|end|>he", True), Span("llo", False), Span("<|end|>", True)]
    assert TOY.encode_spans(spans) == ids_of(TOY, "<|end|>", "hello", "<|end|>")


def test_markup_is_visible_but_only_the_template_writes_it() -> None:
    think = ids_of(TOY, "<think>")
    assert TOY.encode_spans([Span("<think>", True)]) == think
    assert TOY.decode(think) == "<think>"
    assert think[0] not in TOY.encode_text("<think>")
    assert think[0] not in TOY.special_ids


def test_added_blanks_are_found_in_any_text() -> None:
    assert TOY.encode_text("    ") == ids_of(TOY, "    ")


@given(ids=st.lists(st.integers(0, TOY.vocab_size - 1), max_size=30), cut=st.integers(0, 40))
def test_ids_for_decodes_to_exactly_the_text(ids: list[int], cut: int) -> None:
    text = TOY.decode(ids)
    assert TOY.ids_for(text, ids) == ids
    exact = TOY.ids_for(text[:cut], ids)
    assert TOY.decode(exact) == text[:cut]


def test_ids_for_keeps_the_longest_prefix_of_whole_tokens() -> None:
    hello, space_hello = ids_of(TOY, "hello", " hello")
    kept = TOY.ids_for("hello hel", [hello, space_hello])
    assert kept[0] == hello
    assert TOY.decode(kept) == "hello hel"
    # Kept are tokens, not characters: `he` and `ll` as they were generated, though `hell` is one token.
    he, double_l = ids_of(TOY, "he", "ll")
    assert TOY.ids_for("hell", [he, double_l, space_hello]) == [he, double_l]


def test_unknown_ids_add_nothing() -> None:
    assert TOY.decode([TOY.vocab_size + 5]) == ""


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        TOY.encode_text("a\ud800b")


def test_the_fingerprint_tells_vocabularies_apart() -> None:
    same = byte_tokenizer({"<|end|>": CONTROL})
    assert byte_tokenizer({"<|end|>": CONTROL}).fingerprint == same.fingerprint
    others = [
        byte_tokenizer({"<|end|>": USER_DEFINED}),
        byte_tokenizer({"<|End|>": CONTROL}),
        byte_tokenizer({"<|end|>": CONTROL}, pre="qwen2"),
        byte_tokenizer({"<|end|>": CONTROL}, merges=["a b"]),
    ]
    assert len({same.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_bos_is_added_once_where_the_file_asks_for_it() -> None:
    asks = byte_tokenizer({"<s>": CONTROL}, bos_token_id=256, add_bos_token=True)
    assert asks.encode_prompt([Span("a", True)]) == [256, 97]
    assert asks.encode_prompt([Span("<s>a", True)]) == [256, 97]
    does_not = byte_tokenizer({"<s>": CONTROL}, bos_token_id=256)
    assert does_not.encode_prompt([Span("a", True)]) == [97]


BROKEN: dict[str, dict[str, object]] = {
    "unknown kind": {"model": "rwkv"},
    "unknown cut": {"pre": "tomorrow"},
    "no cut": {"pre": None},
    "no tokens": {"tokens": []},
    "tokens are numbers": {"tokens": [1, 2, 3]},
    "types too short": {"token_type": [1]},
    "a type of its own": {"token_type": [9] * 257},
    "merge of nothing": {"merges": ["ab"]},
    "merge into nothing": {"merges": ["a b"]},
    "merges are no list": {"merges": "a b"},
    "eos out of range": {"eos_token_id": 257},
    "eos negative": {"eos_token_id": -1},
    "eos a string": {"eos_token_id": "2"},
    "bos out of range": {"bos_token_id": 1 << 40},
    "flag is a number": {"bos_token_id": 256, "add_bos_token": 1},
}


@pytest.mark.parametrize("what", BROKEN)
def test_malformed_metadata_is_refused(what: str) -> None:
    good = byte_metadata({"<|end|>": CONTROL})
    Tokenizer.from_gguf(good)
    broken = {f"tokenizer.ggml.{name}": value for name, value in BROKEN[what].items()}
    with pytest.raises(ModelFileError):
        Tokenizer.from_gguf({**good, **broken})


def test_a_vocabulary_without_letters_is_refused() -> None:
    good = byte_metadata({"<|end|>": CONTROL})
    tokens = good["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tokens[ord("a")] = "something else"
    with pytest.raises(ModelFileError, match="single bytes"):
        Tokenizer.from_gguf(good)


@pytest.mark.model
@pytest.mark.parametrize(
    "text", ["a" * 100_000, " " * 100_000 + "x", "\n " * 50_000, "1" * 100_000, "é" * 50_000]
)
def test_y2_no_text_is_slow_to_encode(smollm: Tokenizer, text: str) -> None:
    began = time.thread_time()
    ids = smollm.encode_text(text)
    assert time.thread_time() - began < 1.0  # 0.02 s here
    assert smollm.decode(ids) == text
