"""Flusher: the one loop that makes what the engine said stored, then seen.

    live.apply ... tick ... live.take -> ONE store.flush -> live.publish -> streams

Laws:

- Stored before seen: nothing is published before the flush that holds it has returned.
- One flush at a time. A tick comes at once for a response's first piece, for its ending and for
  ``tokens`` tokens of one response; else ``interval_s`` after the last one.
- Each flush takes all that every step up to now has brought, and the counters of the last of these
  steps, so that in each transaction the rows sum up to the counters.
- What was delivered, or arrived, goes with the next flush that has something to show. With a flush of its own
  for it, half of all flushes had nothing else; so it has one only if nothing came for `DELIVERED_S`.
- A store that fails loses nothing: the same batch is tried until it is in, what comes meanwhile waits
  its turn, the streams pause, and `healthy` is False so that no new work is taken on.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from chatd.engine.messages import EngineCounters
from chatd.errors import NotFound
from chatd.ids import ConversationId, Namespace, ResponseId
from chatd.server.live import LiveResponse, News
from chatd.store.errors import StoreFailure
from chatd.store.flush_batch import DeliveredRow, FlushBatch
from chatd.store.records import Conversation, ResponseRecord, RunCounters, RunId
from chatd.store.store import Store

log = logging.getLogger(__name__)

DELIVERED_S = 0.25
"""The longest that what was delivered, or arrived, waits to be stored."""
FIRST_RETRY_S, LAST_RETRY_S = 0.05, 2.0
STOP_TRIES, STOP_RETRY_S = 5, 0.2
"""How often, and how soon, a failing store is tried again while the server stops."""

ResultT = TypeVar("ResultT")
ConversationListener = Callable[[Namespace, Conversation], None]


class StoreLost(Exception):
    """The store failed to the end of the server's life. What is missing is settled at the next start."""


@dataclass(frozen=True, slots=True)
class FlushPace:
    """Seconds between ticks, and the tokens of one response that make a tick come sooner."""

    interval_s: float = 0.033
    tokens: int = 32


def run_counters(counters: EngineCounters) -> RunCounters:
    """The engine's totals as the store keeps them."""
    return RunCounters(
        prompt_tokens=counters.prompt_tokens,
        gpu_hit=counters.gpu_hit,
        disk_hit=counters.disk_hit,
        computed=counters.computed,
        generated=counters.generated,
        steps=counters.steps,
        preemptions=counters.preemptions,
        recomputed=counters.recomputed,
        evicted_pages=counters.evicted_pages,
    )


class Flusher:
    """``ended`` is called for each response, with what the store has of it, once its ending was published."""

    def __init__(
        self, store: Store, pace: FlushPace, ended: Callable[[LiveResponse, ResponseRecord], None]
    ) -> None:
        self.counters = EngineCounters()
        """Of the last step that was applied."""
        self.healthy = True
        self.listeners: set[ConversationListener] = set()
        self._store = store
        self._pace = pace
        self._ended = ended
        self._changed: dict[ResponseId, LiveResponse] = {}
        self._delivered: dict[ResponseId, int] = {}
        self._acknowledged: dict[ResponseId, int] = {}
        self._delivered_timer: asyncio.TimerHandle | None = None
        self._due = asyncio.Event()
        self._urgent = asyncio.Event()
        self._stopping = asyncio.Event()

    def changed(self, live: LiveResponse) -> None:
        """``live`` has taken in an update. Stored and shown at the next tick."""
        self._changed[live.id] = live
        self._due.set()
        if live.urgent or live.unstored_tokens >= self._pace.tokens:
            self._urgent.set()

    def delivered(self, response_id: ResponseId, tokens: int) -> None:
        """``tokens`` of a response have gone out to a reader. Stored within `DELIVERED_S`."""
        self._delivered[response_id] = tokens
        self._tell_soon()

    def acknowledged(self, response_id: ResponseId, tokens: int) -> None:
        """A reader has said that it has ``tokens`` of a response. Stored within `DELIVERED_S`."""
        self._acknowledged[response_id] = tokens
        self._tell_soon()

    def _tell_soon(self) -> None:
        if self._stopping.is_set():
            self._due.set()
        elif self._delivered_timer is None:
            loop = asyncio.get_running_loop()
            self._delivered_timer = loop.call_later(DELIVERED_S, self._due.set)

    def stop(self) -> None:
        """Let `run` return once nothing is left to store."""
        self._stopping.set()
        self._due.set()
        self._urgent.set()

    async def run(self, run_id: RunId) -> None:
        """Flush until `stop`. Cancelled, it may leave updates unstored: they were not shown either.

        Raises `StoreLost` if the store still fails when it has to stop.
        """
        try:
            while not self._stopping.is_set() or self._changed or self._delivered or self._acknowledged:
                await self._due.wait()
                await self._tick(run_id)
        finally:
            self._disarm()

    def _disarm(self) -> None:
        if self._delivered_timer is not None:
            self._delivered_timer.cancel()
            self._delivered_timer = None

    async def _tick(self, run_id: RunId) -> None:
        self._disarm()
        self._due.clear()
        self._urgent.clear()
        news = [live.take() for live in self._changed.values()]
        self._changed.clear()
        batch = self._batch(run_id, news)
        self._delivered.clear()
        self._acknowledged.clear()
        told = batch.delivered or batch.acknowledged
        if any((batch.admitted, batch.pieces, batch.running, batch.ended, told)):
            await self._insist(lambda: self._store.flush(batch))
        for item in news:
            item.live.publish(item)
        await asyncio.gather(*(self._end(item.live) for item in news if item.ended is not None))
        await self._pause()

    async def _pause(self) -> None:
        """Until the next tick: the interval, or less if something urgent comes."""
        if self._stopping.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pace.interval_s):
                await self._urgent.wait()

    def _batch(self, run_id: RunId, news: Sequence[News]) -> FlushBatch:
        return FlushBatch(
            run_id=run_id,
            counters=run_counters(self.counters),
            admitted=tuple(item.admitted for item in news if item.admitted is not None),
            pieces=tuple(item.pieces for item in news if item.pieces is not None),
            running=tuple(item.running for item in news if item.running is not None),
            delivered=tuple(DeliveredRow(*item) for item in self._delivered.items()),
            acknowledged=tuple(DeliveredRow(*item) for item in self._acknowledged.items()),
            ended=tuple(item.ended for item in news if item.ended is not None),
        )

    async def _end(self, live: LiveResponse) -> None:
        record = await self._insist(lambda: self._store.response(live.namespace, live.id))
        live.publish_ending(record)
        self._ended(live, record)
        if live.conversation_id is not None and self.listeners:
            await self._tell_listeners(live.namespace, live.conversation_id)

    async def _tell_listeners(self, namespace: Namespace, conversation_id: ConversationId) -> None:
        try:
            conversation = await self._insist(lambda: self._store.head(namespace, conversation_id))
        except NotFound:  # deleted in the meantime
            return
        for listener in tuple(self.listeners):
            listener(namespace, conversation)

    async def _insist(self, operation: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """The result of ``operation``, tried until the store can do it."""
        delay, tries_left = FIRST_RETRY_S, STOP_TRIES
        while True:
            try:
                result = await operation()
            except StoreFailure as error:
                self.healthy = False
                log.error("the store failed, trying again: %s", error)
                if self._stopping.is_set():
                    tries_left -= 1
                if not tries_left:
                    raise StoreLost("The database could not be written to.") from error
                await self._back_off(delay)
                delay = min(2 * delay, LAST_RETRY_S)
            else:
                self.healthy = True
                return result

    async def _back_off(self, delay: float) -> None:
        """Until the store is worth another try."""
        if self._stopping.is_set():
            await asyncio.sleep(STOP_RETRY_S)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stopping.wait()
