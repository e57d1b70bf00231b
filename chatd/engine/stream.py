"""TokenStream: what one reader of one response has not taken yet, in one slot.

The producer (the hub, on the event loop) calls `put` and never waits; the one consumer calls `get`.
The slot holds at most one event of each kind: a newer status (queued, restoring, prefill) replaces the
older one, neighbouring deltas become one. A reader that stalls therefore costs one slot of at most
`MAX_HELD_CHARS` characters; beyond that the text is let go and read back from the store when
the reader returns. The same path serves a reader that comes late: it starts behind, and
catches up from the store before it goes live.

    store:    1 2 3 4 5 6 7 8 9          every piece is here before any reader hears of it
    taken  ----->|                       `cursor`: the last seq this reader was given
    slot         |4 5 6|                 contiguous with the cursor, or empty while behind
    told   ----------------->|           `known`: the newest seq this stream was told of

Law: deltas given to one reader join without gap or overlap from ``after_seq + 1`` on, `Ended` comes
after the last of them, once, and nothing follows it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

MAX_HELD_CHARS = 64 * 1024
"""Text one unread slot may hold; Python keeps a character in at most 4 bytes, so 256 KiB."""

RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True)
class QueuedEvent:
    """``position`` 1 is next to be admitted."""

    position: int


@dataclass(frozen=True, slots=True)
class RestoringEvent:
    """``done`` of ``total`` tokens of the prompt have come back from disk."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class PrefillEvent:
    """The prompt's buckets (they sum to ``total``), and how many of its tokens have KV by now."""

    total: int
    gpu_hit: int
    disk_hit: int
    computed: int
    done: int


@dataclass(frozen=True, slots=True)
class Delta:
    """The text of the pieces ``from_seq..seq``, both included."""

    from_seq: int
    seq: int
    text: str


@dataclass(frozen=True, slots=True)
class Ended(Generic[RecordT]):
    """The one ending. ``record`` is the response as the store has it."""

    record: RecordT
    last_seq: int


StreamEvent = QueuedEvent | RestoringEvent | PrefillEvent | Delta | Ended[RecordT]


class EndOfStream(Exception):
    """`TokenStream.get` after `Ended` was given out, or after `TokenStream.close`."""


ReadAfter = Callable[[int], Awaitable[Delta]]
"""Given a seq, the stored text from the next one on, or a first stretch of it. Called only when
such text was stored; raises if it is gone."""


class TokenStream(Generic[RecordT]):
    """One reader's slot.

    ``after_seq`` is the last seq the reader already has, ``known_seq`` the last that is stored.
    ``on_taken`` hears of each delta and of the ending as they are given out, ``on_close`` of the one close.
    """

    def __init__(
        self,
        read_after: ReadAfter,
        *,
        after_seq: int = 0,
        known_seq: int = 0,
        on_taken: Callable[[Delta | Ended[RecordT]], None] | None = None,
        on_close: Callable[[], None] | None = None,
        max_held_chars: int = MAX_HELD_CHARS,
    ) -> None:
        self.cursor = after_seq
        self.known = max(known_seq, after_seq)
        self._read_after = read_after
        self._on_taken = on_taken
        self._on_close = on_close
        self._max_held_chars = max_held_chars
        self._waiting: QueuedEvent | RestoringEvent | None = None
        self._prefill: PrefillEvent | None = None
        self._delta: Delta | None = None
        self._ended: Ended[RecordT] | None = None
        self._done = False
        self._ready = asyncio.Event()

    @property
    def held_chars(self) -> int:
        """Characters of text waiting in the slot."""
        return len(self._delta.text) if self._delta is not None else 0

    @property
    def done(self) -> bool:
        """`Ended` was given out, or the stream was closed."""
        return self._done

    def put(self, event: StreamEvent[RecordT]) -> None:
        """Merge ``event`` into the slot. Never waits; ignored after an ending.

        Deltas come in order of seq. What the reader already has is dropped; a delta that does
        not join the slot, or would overfill it, sends the reader to the store.
        """
        if self._done or self._ended is not None:
            return
        match event:
            case QueuedEvent() | RestoringEvent():
                self._waiting = event
            case PrefillEvent():
                self._waiting = None
                self._prefill = event
            case Delta():
                self._put_delta(event)
            case Ended():
                self._ended = event
                self.known = max(self.known, event.last_seq)
        self._ready.set()

    async def get(self) -> StreamEvent[RecordT]:
        """The next event, in the order queued or restoring, prefill, text, ending.

        For one consumer. Raises `EndOfStream` after the ending, and whatever reading the store
        raises while the reader is behind. Cancelled, it leaves the stream as it was: nothing is lost.
        """
        while not self._done:
            if (event := self._take()) is not None:
                return event
            if self.cursor < self.known:
                delta = await self._read_after(self.cursor)
                return self._give(delta)
            self._ready.clear()
            await self._ready.wait()
        raise EndOfStream

    def close(self) -> None:
        """The reader is gone. Idempotent; ``on_close`` is called the first time."""
        if self._done:
            return
        self._done = True
        self._delta = None
        self._ready.set()
        if self._on_close is not None:
            self._on_close()

    def _put_delta(self, delta: Delta) -> None:
        held = self._delta
        if held is not None:
            fits = len(held.text) + len(delta.text) <= self._max_held_chars
            if fits and delta.from_seq == held.seq + 1:
                self._delta = Delta(held.from_seq, delta.seq, held.text + delta.text)
            elif delta.seq > held.seq:
                self._delta = None
        elif self.cursor == self.known and delta.from_seq == self.cursor + 1:
            self._delta = delta if len(delta.text) <= self._max_held_chars else None
        self.known = max(self.known, delta.seq)

    def _take(self) -> StreamEvent[RecordT] | None:
        status = self._waiting or self._prefill
        if status is not None:
            self._waiting = None
            if isinstance(status, PrefillEvent):
                self._prefill = None
            return status
        if self._delta is not None:
            delta, self._delta = self._delta, None
            return self._give(delta)
        if self._ended is not None and self.cursor >= self.known:
            return self._give_ending(self._ended)
        return None

    def _give(self, delta: Delta) -> Delta:
        self.cursor = delta.seq
        self.known = max(self.known, delta.seq)
        if self._on_taken is not None:
            self._on_taken(delta)
        return delta

    def _give_ending(self, ended: Ended[RecordT]) -> Ended[RecordT]:
        if self._on_taken is not None:
            self._on_taken(ended)
        self.close()
        return ended
