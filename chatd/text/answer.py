"""AnswerText: token ids in, text out, for one running answer.

    decoded   The capital of Fra|nce is Pa|ris
    shown     ------------------------>|  held back: may become a stop string
    pending   bytes of a character that is not complete yet; never shown as U+FFFD before it is lost

Nothing shown is ever taken back. Joined, the shown text is `Tokenizer.decode` of all ids, or, where a
stop string matched, the part of it before the match.
"""

from codecs import utf_8_decode
from collections import deque
from collections.abc import Sequence

from chatd.text.stops import StopMatcher
from chatd.text.tokenizer import Tokenizer


class AnswerText:
    """Detokeniser and stop strings. Each `push` costs the token's own text, however long the answer is."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stops = StopMatcher(stop) if stop else None
        self._ids: list[int] = []
        self._texts: list[str] = []
        self._pending = b""
        self._held = ""
        self._decoded_len = 0
        self._shown_len = 0
        # Ids whose text is not wholly shown: those since the last complete character, and before them
        # groups that end at a complete character, each with its end in the decoded text.
        self._open: list[int] = []
        self._closed: deque[tuple[list[int], int]] = deque()
        self._ended = False
        self._stopped = False

    def push(self, token_id: int) -> tuple[str, tuple[int, ...], bool]:
        """Newly visible text, the ids now wholly visible, and whether a stop string matched.

        The ids given out so far always decode to a prefix of the text given out so far. After a stop
        or `finish` nothing comes any more.
        """
        if self._ended:
            return "", (), self._stopped
        self._ids.append(token_id)
        self._open.append(token_id)
        data = self._pending + self._tokenizer.token_bytes(token_id)
        new, used = utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        text = self._show(new)
        return text, self._release(), self._stopped

    def finish(self) -> tuple[str, tuple[int, ...]]:
        """Release what is held back: a false stop alarm; broken bytes, as U+FFFD."""
        if self._ended:
            return "", ()
        new, _ = utf_8_decode(self._pending, "replace", True)
        self._pending = b""
        text = self._show(new)
        if not self._stopped:
            text += self._held
            self._texts.append(self._held)
            self._shown_len += len(self._held)
            self._held = ""
        self._ended = True
        return text, self._release()

    def answer_ids(self) -> tuple[int, ...]:
        """Ids that decode to exactly the visible text, with the control ids that were pushed.

        After a stop: the ids wholly before the cut, then the rest of the visible text encoded anew.
        """
        if self._ended and not self._stopped:
            return tuple(self._ids)
        return tuple(self._tokenizer.ids_for("".join(self._texts), self._ids))

    def _show(self, new: str) -> str:
        self._decoded_len += len(new)
        shown = new if self._stops is None else self._before_stop(self._stops, new)
        self._shown_len += len(shown)
        if shown:
            self._texts.append(shown)
        return shown

    def _before_stop(self, stops: StopMatcher, new: str) -> str:
        text = self._held + new
        match = stops.feed(new)
        if match is not None:
            end, length = match
            self._stopped = self._ended = True
            cut = len(self._held) + end - length
        else:
            cut = len(text) - stops.held
        self._held = text[cut:]
        return text[:cut]

    def _release(self) -> tuple[int, ...]:
        if not self._pending:
            if self._decoded_len == self._shown_len and not self._closed:
                released = tuple(self._open)
                self._open.clear()
                return released
            self._closed.append((self._open, self._decoded_len))
            self._open = []
        ready: list[int] = []
        while self._closed and self._closed[0][1] <= self._shown_len:
            ready += self._closed.popleft()[0]
        return tuple(ready)
