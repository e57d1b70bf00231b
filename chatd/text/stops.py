"""Stop strings, matched as text streams in (Aho and Corasick, 1975: one state for all strings at once).

The match that is complete first wins; of several complete at the same character, the longest, which
began first. So the answer does not depend on how the text was cut into tokens.
"""

from collections import deque
from collections.abc import Sequence


class StopMatcher:
    """Feed it text. ``held`` is how many of the last characters may yet become part of a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match_len = [0]
        for stop in stops:
            self._match_len[self._insert(stop)] = len(stop)
        self._fail = [0] * len(self._next)
        self._link()
        self._state = 0

    def _insert(self, stop: str) -> int:
        state = 0
        for char in stop:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match_len.append(0)
            state = self._next[state][char]
        return state

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            fallback = self._fail[state]
            self._match_len[state] = self._match_len[state] or self._match_len[fallback]
            for char, child in self._next[state].items():
                self._fail[child] = self._step(fallback, char)
                queue.append(child)

    def _step(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(char, 0)

    def feed(self, text: str) -> tuple[int, int] | None:
        """The first match as (end in ``text``, length of the stop string), or None. Amortised O(len)."""
        for at, char in enumerate(text):
            self._state = self._step(self._state, char)
            if self._match_len[self._state]:
                return at + 1, self._match_len[self._state]
        return None

    @property
    def held(self) -> int:
        return self._depth[self._state]
