"""How each known kind of byte-level vocabulary cuts text before merging.

A GGUF file only names its cut (`tokenizer.ggml.pre`); the rules are those that the models' own
tokenizer.json files state. A name that is not here is refused: with a wrong cut a model still
answers, only worse, and nobody notices.

The patterns run in sequence: each cuts the pieces the one before left, matches and gaps alike.
"""

from dataclasses import dataclass

from chatd.errors import ModelFileError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_ONE_DIGIT = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
)  # fmt: skip
_THREE_DIGITS = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
)  # fmt: skip
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
)
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _TAIL
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """``whole_words``: a piece that is a token already is taken whole, whatever its merges say."""

    patterns: tuple[str, ...]
    whole_words: bool = False


_DIGITS_THEN_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3 = PreTokenizer((_THREE_DIGITS,), whole_words=True)
_QWEN2 = PreTokenizer((_ONE_DIGIT,))

KNOWN = {
    "gpt-2": PreTokenizer((_GPT2,)),
    "mpt": PreTokenizer((_GPT2,)),
    "olmo": PreTokenizer((_GPT2,)),
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "refact": _DIGITS_THEN_GPT2,
    "codeshell": _DIGITS_THEN_GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "dbrx": PreTokenizer((_THREE_DIGITS,)),
    "smaug-bpe": PreTokenizer((_THREE_DIGITS,)),
    "qwen2": _QWEN2,
    "stablelm2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True),
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")
    ),
    "deepseek-v3": PreTokenizer((r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK_V3)),
}


def known(name: object) -> PreTokenizer:
    """The cut of that name. Raises `ModelFileError` for any other."""
    if isinstance(name, str) and name in KNOWN:
        return KNOWN[name]
    given = f"{str(name)[:80]!r}" if name is not None else "not named"
    raise ModelFileError(
        f"the model's pre-tokenizer (tokenizer.ggml.pre) is {given}, which chatd does not know and will not "
        f"guess; known: {', '.join(sorted(KNOWN))}"
    )
