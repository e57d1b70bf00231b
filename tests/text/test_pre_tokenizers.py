"""Known cuts give the known pieces; the default model's equals the rule in its own tokenizer.json."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Model
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

from chatd.errors import ModelFileError
from chatd.text import gguf_vocabulary, pre_tokenizers
from tests.text.vocabularies import CONTROL, byte_metadata

SAMPLE = "I'LL pay  12345 €!!\n\n  x"
PIECES = {
    "gpt-2": ["I", "'", "LL", " pay", " ", " 12345", " €!!", "\n\n ", " x"],
    "smollm": ["I", "'", "LL", " pay", "  ", "1", "2", "3", "4", "5", " €!!", "\n\n ", " x"],
    "llama-bpe": ["I", "'LL", " pay", " ", " ", "123", "45", " €!!\n\n", " ", " x"],
    "qwen2": ["I", "'LL", " pay", " ", " ", "1", "2", "3", "4", "5", " €!!\n\n", " ", " x"],
    "tekken": ["I", "'LL", " pay", " ", " ", "1", "2", "3", "4", "5", " €!!\n\n", " ", " x"],
    "deepseek-v3": ["I", "'LL", " pay", "  ", "123", "45", " €!!\n\n", " ", " x"],
    "deepseek-coder": ["I", "'", "LL", " pay", "  ", *"12345", " ", "€", "!!", "\n", "\n", " ", " x"],
}


def cut(pre: str, text: str) -> list[str]:
    vocabulary = gguf_vocabulary.read(byte_metadata({"<|end|>": CONTROL}, pre=pre))
    model = Model.from_str(vocabulary.writing.model)
    return [text[start:end] for _, (start, end) in model.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("pre", PIECES)
def test_pieces(pre: str) -> None:
    assert cut(pre, SAMPLE) == PIECES[pre]


@pytest.mark.parametrize("pre", pre_tokenizers.KNOWN)
def test_every_known_cut_loads_and_loses_nothing(pre: str) -> None:
    text = "Ａ１２ naïve — 漢字かな 한국 don't STOP\r\n\t»x« " + SAMPLE
    assert "".join(cut(pre, text)) == text


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.sampled_from("aA'sTé1２Ⅷ½ \n\t\u00a0.!漢👍"), max_size=20))
def test_smollm_is_digits_then_gpt2(text: str) -> None:
    original = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])
    assert cut("smollm", text) == [text[a:b] for _, (a, b) in original.pre_tokenize_str(text)]


@pytest.mark.parametrize("name", [None, "", "default", "deepseek-llm", "SMOLLM", 3])
def test_an_unknown_cut_is_refused_not_guessed(name: object) -> None:
    with pytest.raises(ModelFileError, match="will not guess"):
        pre_tokenizers.known(name)


def test_whole_words_only_where_the_model_says_so() -> None:
    for pre, whole in {"llama-bpe": True, "tekken": True, "qwen2": False, "smollm": False}.items():
        writing = gguf_vocabulary.read(byte_metadata({"<|end|>": CONTROL}, pre=pre)).writing
        assert json.loads(writing.model)["model"]["ignore_merges"] is whole
