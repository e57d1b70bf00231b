"""TokenStream: merging, falling behind, and the law that deltas join."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatd.engine.stream import Delta, Ended, EndOfStream, PrefillEvent, QueuedEvent, TokenStream


class Pieces:
    """A store of pieces that counts how often it is read; ``stretch`` of them are given at once."""

    def __init__(self, texts: Sequence[str], stretch: int = 1000) -> None:
        self.texts = list(texts)
        self.stretch = stretch
        self.reads = 0

    async def read_after(self, seq: int) -> Delta:
        self.reads += 1
        texts = self.texts[seq : seq + self.stretch]
        assert texts, "read although nothing was stored"
        return Delta(seq + 1, seq + len(texts), "".join(texts))

    def delta(self, from_seq: int, seq: int) -> Delta:
        return Delta(from_seq, seq, "".join(self.texts[from_seq - 1 : seq]))


def stream_of(pieces: Pieces, after_seq: int = 0, known_seq: int = 0, held: int = 1000) -> TokenStream[str]:
    return TokenStream(pieces.read_after, after_seq=after_seq, known_seq=known_seq, max_held_chars=held)


async def read_all(stream: TokenStream[str]) -> list[Delta]:
    deltas = []
    while not isinstance(event := await stream.get(), Ended):
        if isinstance(event, Delta):
            deltas.append(event)
    return deltas


async def test_unread_deltas_become_one() -> None:
    pieces = Pieces("abcd")
    stream = stream_of(pieces)
    for seq in (1, 2, 3):
        stream.put(pieces.delta(seq, seq))
    assert await stream.get() == Delta(1, 3, "abc")
    stream.put(pieces.delta(4, 4))
    assert await stream.get() == Delta(4, 4, "d")
    assert pieces.reads == 0


async def test_only_the_newest_status_is_kept_and_it_comes_before_text() -> None:
    stream = stream_of(Pieces("a"))
    stream.put(QueuedEvent(2))
    stream.put(QueuedEvent(1))
    assert await stream.get() == QueuedEvent(1)
    stream.put(QueuedEvent(1))
    stream.put(PrefillEvent(8, 0, 0, 8, 0))
    stream.put(Delta(1, 1, "a"))
    stream.put(PrefillEvent(8, 0, 0, 8, 8))
    stream.put(Ended("done", 1))
    events = [await stream.get() for _ in range(3)]
    assert events == [PrefillEvent(8, 0, 0, 8, 8), Delta(1, 1, "a"), Ended("done", 1)]


async def test_nothing_follows_the_ending() -> None:
    stream = stream_of(Pieces("ab"))
    stream.put(Ended("done", 0))
    stream.put(Delta(1, 1, "a"))
    stream.put(Ended("again", 0))
    assert await stream.get() == Ended("done", 0)
    for _ in range(2):
        with pytest.raises(EndOfStream):
            await stream.get()


async def test_a_late_reader_catches_up_from_the_store_then_goes_live() -> None:
    pieces = Pieces("abcdef", stretch=2)
    stream = stream_of(pieces, after_seq=1, known_seq=4)
    assert await stream.get() == Delta(2, 3, "bc")
    assert await stream.get() == Delta(4, 5, "de")  # the store may be ahead of what was published
    stream.put(pieces.delta(5, 5))
    stream.put(pieces.delta(6, 6))
    assert await stream.get() == Delta(6, 6, "f")
    assert pieces.reads == 2


async def test_a_delta_that_overlaps_is_not_given_twice() -> None:
    pieces = Pieces("abcdef", stretch=2)
    stream = stream_of(pieces, known_seq=1)
    assert await stream.get() == Delta(1, 2, "ab")
    stream.put(pieces.delta(2, 4))
    stream.put(Ended("done", 4))
    assert await read_all(stream) == [Delta(3, 4, "cd")]


async def test_n3_a_stalled_reader_holds_no_more_than_its_slot() -> None:
    pieces = Pieces(["x" * 30] * 100)
    stream = stream_of(pieces, held=100)
    for seq in range(1, 101):
        stream.put(pieces.delta(seq, seq))
        assert stream.held_chars <= 100
    stream.put(Ended("done", 100))
    assert "".join(delta.text for delta in await read_all(stream)) == "x" * 3000
    assert pieces.reads == 1


async def test_an_oversized_delta_is_read_from_the_store() -> None:
    pieces = Pieces(["y" * 500])
    stream = stream_of(pieces, held=100)
    stream.put(pieces.delta(1, 1))
    assert stream.held_chars == 0
    assert await stream.get() == pieces.delta(1, 1)


async def test_a_cancelled_get_loses_nothing() -> None:
    pieces = Pieces("ab")
    stream = stream_of(pieces)
    waiting = asyncio.ensure_future(stream.get())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    stream.put(pieces.delta(1, 1))
    assert await stream.get() == Delta(1, 1, "a")


async def test_close_wakes_the_reader_and_tells_once() -> None:
    closed = []
    stream = TokenStream[str](Pieces("").read_after, on_close=lambda: closed.append(1))
    waiting = asyncio.ensure_future(stream.get())
    await asyncio.sleep(0)
    stream.close()
    stream.close()
    with pytest.raises(EndOfStream):
        await waiting
    assert closed == [1]
    assert stream.done


async def test_taken_hears_of_deltas_and_the_ending() -> None:
    taken: list[object] = []
    stream = TokenStream[str](Pieces("a").read_after, on_taken=taken.append)
    stream.put(QueuedEvent(1))
    stream.put(Delta(1, 1, "a"))
    stream.put(Ended("done", 1))
    await read_all(stream)
    assert taken == [Delta(1, 1, "a"), Ended("done", 1)]


PUBLISH, READ = "publish", "read"


@given(
    texts=st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=40),
    cuts=st.lists(st.integers(1, 7), max_size=40),
    reads=st.lists(st.booleans(), max_size=60),
    after=st.integers(0, 40),
    known=st.integers(0, 40),
    held=st.integers(1, 20),
    stretch=st.integers(1, 5),
)
def test_deltas_join_whatever_the_interleaving(
    texts: list[str],
    cuts: list[int],
    reads: list[bool],
    after: int,
    known: int,
    held: int,
    stretch: int,
) -> None:
    """Any flush sizes, any reading pace, any place to start: joined text is the rest of the pieces, once."""
    asyncio.run(_interleave(texts, cuts, reads, after, known, held, stretch))


async def _interleave(
    texts: list[str], cuts: list[int], reads: list[bool], after: int, known: int, held: int, stretch: int
) -> None:
    last = len(texts)
    known = min(known, last)
    after = min(after, known)
    pieces = Pieces(texts, stretch)
    stream = stream_of(pieces, after, known, held)
    deltas: list[Delta] = []
    told, paces = known, iter(reads)
    for cut in [*cuts, *[3] * last]:
        if told < last:
            upto = min(told + cut, last)
            stream.put(pieces.delta(told + 1, upto))
            told = upto
        if next(paces, False) and stream.cursor < told:
            event = await stream.get()
            assert isinstance(event, Delta)
            deltas.append(event)
    stream.put(Ended("done", last))
    deltas += await read_all(stream)
    cursor = after
    for delta in deltas:
        assert delta.from_seq == cursor + 1
        assert delta.text == "".join(texts[cursor : delta.seq])
        cursor = delta.seq
    assert cursor == last
