"""Text to token ids and back.

Two laws. Only trusted text can become control tokens: control strings in what users write stay text.
And ids are exact: `Tokenizer.decode` of a prompt's or an answer's ids is its text, so that history is
never re-tokenised.
"""

import hashlib
import re
from codecs import utf_8_decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from chatd.errors import InvalidRequest, ModelFileError
from chatd.text import gguf_vocabulary, hf_vocabulary
from chatd.text.vocabulary import Vocabulary


class Span(NamedTuple):
    """A stretch of a prompt. ``trusted``: the template wrote it, so it may hold control strings."""

    text: str
    trusted: bool


class Tokenizer:
    """One model's tokenizer. Immutable, and may be used from several threads at once."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        writing = vocabulary.writing
        self.vocab_size = len(vocabulary.token_bytes)
        self.eos_ids = vocabulary.eos_ids
        self.special_ids = vocabulary.special_ids
        self.bos_id = vocabulary.bos_id
        self.add_bos = vocabulary.add_bos
        self.fingerprint = _fingerprint(vocabulary)
        self._bytes = vocabulary.token_bytes
        self._byte_ids = writing.byte_ids
        self._markup = vocabulary.markup
        self._prefix = writing.prefix
        self._unwritable = re.compile(writing.unwritable or r"(?!)")
        self._substitute = writing.substitute
        self._literals = {one.token_id: text for text, one in vocabulary.markup.items()}
        longest_first = sorted(vocabulary.markup, key=len, reverse=True)
        self._find_markup = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._model = _load(writing.model)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> "Tokenizer":
        """From the metadata of a GGUF file, keys as in the file. Raises `ModelFileError`."""
        return cls(gguf_vocabulary.read(metadata))

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """From a Hugging Face folder's tokenizer.json and its neighbours. Raises `ModelFileError`."""
        return cls(hf_vocabulary.read(folder))

    def encode_text(self, text: str) -> list[int]:
        """Ids of untrusted text: never a control token. Raises `InvalidRequest` for lone surrogates."""
        return self.encode_spans((Span(text, False),))

    def encode_spans(self, spans: Sequence[Span], *, after: int | None = None) -> list[int]:
        """Ids of a prompt, or of what comes after a prompt whose last id is ``after``.

        Control strings in trusted spans become control tokens. What stands between two of them is
        encoded as one text, so that the cut between template and content leaves no trace.
        """
        ids: list[int] = []
        stretch: list[str] = []
        add_space = self._space_after(after)
        for part in self._parts(spans):
            if isinstance(part, str):
                stretch.append(part)
                continue
            ids += self._encode("".join(stretch), add_space=add_space)
            ids.append(part)
            stretch.clear()
            add_space = self._space_after(part)
        return ids + self._encode("".join(stretch), add_space=add_space)

    def encode_prompt(self, spans: Sequence[Span]) -> list[int]:
        """Ids of a whole prompt, with the begin-of-text id that some models want and templates leave out."""
        ids = self.encode_spans(spans)
        if self.bos_id is not None and self.add_bos and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def _space_after(self, token_id: int | None) -> bool:
        """Whether a blank is put before text that comes after this id (None: at the start)."""
        if token_id is None:
            return self._prefix.at_start
        return self._prefix.after_control and token_id in self._literals

    def _parts(self, spans: Sequence[Span]) -> Iterator[str | int]:
        """Text, and ids of control strings, in order."""
        for text, trusted in _joined(spans):
            at = 0
            while trusted and (found := self._find_markup.search(text, at)):
                one = self._markup[found.group()]
                before = text[at : found.start()]
                yield before.rstrip() if one.lstrip else before
                yield one.token_id
                at = found.end()
                if one.rstrip:
                    at = len(text) - len(text[at:].lstrip())
            yield text[at:]

    def _encode(self, text: str, *, add_space: bool) -> list[int]:
        if not text:
            return []
        text = self.writable(text)
        if add_space and (self._prefix.before_space or not text.startswith(" ")):
            text = " " + text
        return self._model(text)

    def writable(self, text: str) -> str:
        """``text`` as ids can hold it: what the vocabulary has no bytes for becomes U+FFFD.

        Raises `InvalidRequest` for lone surrogates.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidRequest("the text has half a surrogate pair, which is not a character") from None
        return self._unwritable.sub(self._substitute, text)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text: b"" for control tokens and for ids the vocabulary lacks."""
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def knows(self, ids: Sequence[int]) -> bool:
        """Whether all of ``ids`` are of this vocabulary. Those of another model's history need not be."""
        return not ids or (min(ids) >= 0 and max(ids) < self.vocab_size)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``: control tokens skipped, U+FFFD for broken bytes."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def prompt_text(self, ids: Sequence[int], *, after: int | None = None) -> str:
        """The inverse of `encode_spans`: control tokens as their strings, added blanks left out."""
        texts: list[str] = []
        data: list[bytes] = []
        for token_id in ids:
            if token_id not in self._literals:
                data.append(self.token_bytes(token_id))
                continue
            texts += self._stretch_text(data, after), self._literals[token_id]
            data, after = [], token_id
        texts.append(self._stretch_text(data, after))
        return "".join(texts)

    def _stretch_text(self, data: Sequence[bytes], after: int | None) -> str:
        text = b"".join(data).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._space_after(after) else text

    def ids_for(self, text: str, ids: Sequence[int]) -> list[int]:
        """Ids that decode to exactly ``text``: of ``ids`` the longest whole-token prefix, the rest anew."""
        kept, kept_len = self._common_prefix(text, ids)
        return [*ids[:kept], *self._encode_exactly(text[kept_len:])]

    def _common_prefix(self, text: str, ids: Sequence[int]) -> tuple[int, int]:
        """How many ids decode to a prefix of ``text`` that ends between characters, and its length."""
        kept, kept_len, at, pending = 0, 0, 0, b""
        for count, token_id in enumerate(ids, 1):
            data = pending + self.token_bytes(token_id)
            new, used = utf_8_decode(data, "replace", False)
            if not text.startswith(new, at):
                return kept, kept_len
            at, pending = at + len(new), data[used:]
            if not pending:
                kept, kept_len = count, at
        if pending and text[at:] == pending.decode("utf-8", "replace"):
            return len(ids), len(text)
        return kept, kept_len

    def _encode_exactly(self, text: str) -> list[int]:
        """As text that goes on; byte by byte where a vocabulary cannot write a character back as it was."""
        ids = self._encode(text, add_space=False)
        if self.decode(ids) == text:
            return ids
        exact: list[int] = []
        for char in text:
            ids = self._encode(char, add_space=False)
            exact += ids if self.decode(ids) == char else [self._byte_ids[b] for b in char.encode("utf-8")]
        return exact


def _joined(spans: Sequence[Span]) -> Iterator[Span]:
    """Neighbours of one trust as one span: a template may write a control string in two parts."""
    texts: list[str] = []
    trust = False
    for text, trusted in spans:
        if trusted != trust and texts:
            yield Span("".join(texts), trust)
            texts.clear()
        texts.append(text)
        trust = trusted
    if texts:
        yield Span("".join(texts), trust)


def _fingerprint(vocabulary: Vocabulary) -> str:
    """Of everything that decides how text becomes ids and ids text."""
    writing = vocabulary.writing
    state = hashlib.sha256(writing.model.encode("utf-8", "surrogatepass"))
    rules = (sorted(vocabulary.markup.items()), writing.prefix, writing.unwritable, writing.substitute)
    state.update(ascii(rules).encode())
    state.update(b"".join(len(one).to_bytes(4, "big") + one for one in vocabulary.token_bytes))
    return state.hexdigest()


def _load(model: str) -> Callable[[str], list[int]]:
    from tokenizers import Tokenizer as Model

    try:
        loaded = Model.from_str(model)
    except Exception as error:  # the library raises nothing narrower
        raise ModelFileError(f"the tokenizer's vocabulary and merges do not fit together: {error}") from error

    def encode(text: str) -> list[int]:
        ids: list[int] = loaded.encode(text, add_special_tokens=False).ids
        return ids

    return encode
