"""Small vocabularies whose every rule is in sight."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from chatd.text import byte_level
from chatd.text.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def byte_metadata(
    extra: Mapping[str, int], *, pre: str = "gpt-2", merges: Sequence[str] = (), **more: object
) -> dict[str, object]:
    """A token for each byte, then those the merges make, then ``extra`` (text to type)."""
    made = list(dict.fromkeys(merge.replace(" ", "") for merge in merges))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*byte_level.symbols(), *made, *extra],
        "tokenizer.ggml.token_type": [*[NORMAL] * (256 + len(made)), *extra.values()],
        "tokenizer.ggml.merges": list(merges),
        **{f"tokenizer.ggml.{name}": value for name, value in more.items()},
    }


def byte_tokenizer(extra: Mapping[str, int] | None = None, **more: object) -> Tokenizer:
    return Tokenizer.from_gguf(byte_metadata(extra or {"<|end|>": CONTROL}, **more))  # type: ignore[arg-type]


PIECES = ("▁", "a", "b", "c", "ab", "bc", "abc", "▁a", "▁ab", "▁b", "é", "▁▁")


def spm_metadata(pieces: Sequence[str] = PIECES, **more: object) -> dict[str, object]:
    """SentencePiece: unknown, begin, end, 256 bytes, then ``pieces``, the earlier the better."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(pieces))],
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **{f"tokenizer.ggml.{name}": value for name, value in more.items()},
    }


def spm_tokenizer(**more: object) -> Tokenizer:
    return Tokenizer.from_gguf(spm_metadata(**more))  # type: ignore[arg-type]


def ids_of(tokenizer: Tokenizer, *pieces: str) -> list[int]:
    """Ids by a token's bytes or control string."""
    by_text = {tokenizer.prompt_text([i], after=0): i for i in range(tokenizer.vocab_size)}
    return [by_text[piece] for piece in pieces]


def smollm_metadata(path: Path) -> dict[str, object]:
    """The tokenizer's part of the default model's header."""
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    return {name: fields[name].contents() for name in fields if name.startswith("tokenizer.")}
