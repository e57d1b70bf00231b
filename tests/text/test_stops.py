"""Stop strings against the definition: the first complete match, of equals the longest."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatd.text.stops import StopMatcher

LETTERS = st.text("ab", min_size=1, max_size=5)


def first_match(text: str, stops: list[str]) -> tuple[int, int] | None:
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return end, max(lengths)
    return None


def held_len(text: str, stops: list[str]) -> int:
    """The longest end of ``text`` that begins a stop string without being one."""
    starts = {stop[:n] for stop in stops for n in range(len(stop))}
    return max(n for n in range(len(text) + 1) if text[len(text) - n :] in starts)


@given(text=st.text("ab", max_size=30), stops=st.lists(LETTERS, min_size=1, max_size=4))
def test_matches_as_defined(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    assert matcher.feed(text) == first_match(text, stops)


@given(text=st.text("ab", max_size=30), stops=st.lists(LETTERS, min_size=1, max_size=4))
def test_holds_back_no_more_than_it_must(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    for at, char in enumerate(text):
        if matcher.feed(char):
            return
        assert matcher.held == held_len(text[: at + 1], stops)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


def test_y2_a_stop_made_to_backtrack_is_not_slow() -> None:
    stops = ["a" * n + "b" for n in range(1, 1000, 50)]
    matcher = StopMatcher(stops)
    began = time.thread_time()
    assert matcher.feed("a" * 100_000) is None
    assert matcher.held == 951
    assert time.thread_time() - began < 0.5  # 0.03 s here
