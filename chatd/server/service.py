"""ChatService: from a command of one account to a running, billed, streaming response.

    create:  params -> place in the tree -> prompt -> ledger row -> engine
    on_step: engine -> hub -> store -> streams                       (`Hub`, `Flusher`)

One a server, on the event loop. What a cancelled call leaves behind stands at each method.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

import anyio.to_thread
import structlog

from chatd.engine.messages import EngineCounters, EngineState, FinishReason, Probe, StepOutput
from chatd.errors import Conflict, Draining, EngineFailure, NotFound, NotReady, Overloaded
from chatd.ids import ConversationId, Namespace, ResponseId, Rid
from chatd.server.backend import Backend, ServiceSettings
from chatd.server.cache_service import CacheService
from chatd.server.commands import ChatTurn, CreateCommand, Started
from chatd.server.engine_calls import EngineCalls
from chatd.server.estimates import Estimated
from chatd.server.facts import EngineIdentity, facts_of
from chatd.server.figures import ResponseFigures
from chatd.server.flush import ConversationListener, Flusher
from chatd.server.forgetter import Forgetter
from chatd.server.hub import Hub
from chatd.server.live import LiveResponse, ResponseStream
from chatd.server.opening import (
    Asked,
    Planned,
    check_command,
    check_ids,
    new_response,
    started_of,
    submit_of,
)
from chatd.server.prompt import PromptMaker
from chatd.server.request_log import ended_line
from chatd.server.storage_meter import StorageMeter
from chatd.server.turns import Place, find_place
from chatd.server.visitors import Visitor
from chatd.store.errors import StoreFailure, TipMoved
from chatd.store.key_limits import NoRoom
from chatd.store.records import ResponseRecord, ResponseStatus, RunId
from chatd.store.store import Store

__all__ = ["Backend", "ChatService", "ChatTurn", "CreateCommand", "ServiceSettings", "Started"]

log = logging.getLogger(__name__)

INLINE_CHARS = 2_000
"""Histories up to this long are rendered and encoded on the loop (well under a millisecond); longer
ones on a worker thread."""
TRIES = 3
"""How often a place in the tree is looked up again when it has changed before it was used."""
PRUNE_S = 600.0
"""Between two looks for hidden histories that have expired."""
CANCEL_S = 10.0
"""How long a deletion waits for the answers it has cancelled."""
SETTLE_S = 1.0
"""How long the engine may take to end what it was told to end, while the server stops."""

_DRAINING = "The server is shutting down. Connect again in a moment."
_STOPPED = EngineFailure("The engine has stopped. Restart the server; its log says why.")


class ChatService:
    """``clock`` gives Unix seconds, ``monotonic`` seconds for durations, ``new_id`` ids not given before,
    ``on_disk`` the bytes of KV on disk by namespace (called on a worker thread)."""

    def __init__(
        self,
        *,
        backend: Backend,
        store: Store,
        settings: ServiceSettings,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        monotonic: Callable[[], float] = time.monotonic,
        on_disk: Callable[[], Mapping[Namespace, int]] = dict,
    ) -> None:
        self.backend = backend
        self._store = store
        self._settings = settings
        self._clock = clock
        self._monotonic = monotonic
        self._new_id = new_id
        self._prompts = PromptMaker(
            backend.tokenizer, backend.template, backend.context_length, backend.engine.capacity_len
        )
        self.figures = ResponseFigures()
        self._flusher = Flusher(store, settings.pace, self._ended)
        self._calls = EngineCalls(backend.engine.send, new_id)
        self._hub = Hub(store, self._flusher, self._calls, backend.engine.abort)
        self._forgetter = Forgetter(store, self._calls)
        self.cache = CacheService(store, backend, self._calls)
        """The operator's side of the cache, and hints about it."""
        self.storage = StorageMeter(store, on_disk, self._pinned_bytes, monotonic)
        """Of KV that is kept."""
        self._run_id = RunId(0)
        self._threads = anyio.CapacityLimiter(2)
        self._look_threads = anyio.CapacityLimiter(1)
        """For what is no turn: however much of it is asked for, turns do not wait for it."""
        self._opening: set[asyncio.Task[Started]] = set()
        self._draining = False

    # -- what readiness and reports ask

    @property
    def counters(self) -> EngineCounters:
        """The engine's totals as of the last step the loop heard of."""
        return self._flusher.counters

    @property
    def engine_state(self) -> EngineState:
        return self._hub.state

    @property
    def open_count(self) -> int:
        """Responses that have not ended yet."""
        return self._hub.open_count

    @property
    def store_healthy(self) -> bool:
        """The last attempt to store something succeeded. While it is False, streams pause."""
        return self._flusher.healthy

    # -- life

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Settle what a dead run left, then store and publish until the block is left.

        Leaving it stores what there is; a response that is still open then is settled at the next start.
        """
        await self._store.settle(self.backend.tokenizer.ids_for)
        self._run_id = await self._store.begin_run()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._flusher.run(self._run_id), name="chatd-flush")
            keeping = [
                tasks.create_task(self._prune(), name="chatd-prune"),
                tasks.create_task(self._forgetter.run(), name="chatd-forget"),
                tasks.create_task(self.cache.pin_again(), name="chatd-pin"),
                tasks.create_task(self.storage.run(), name="chatd-meter"),
            ]
            try:
                yield
            finally:
                for task in keeping:
                    task.cancel()
                self._flusher.stop()
        await self.storage.settle()
        if not self.open_count:  # else the run is left as a dead one, for the next start to settle
            await self._store.end_run()

    async def _pinned_bytes(self) -> dict[Namespace, int]:
        page_bytes = self.backend.kv_bytes // max(1, self.engine_state.total_pages)
        pages = await self.cache.pinned_pages()
        return {namespace: page_bytes * count for namespace, count in pages.items()}

    async def _prune(self) -> None:
        while True:
            try:
                gone = await self._store.prune()
                if self._settings.retain_s is not None:
                    gone += await self._store.retain(self._settings.retain_s)
                if gone:
                    self._forgetter.wake()
            except StoreFailure as error:
                log.warning("expired histories could not be deleted, trying again later: %s", error)
            await asyncio.sleep(PRUNE_S)

    async def drain(self, deadline: float) -> None:
        """Take on nothing new, let answers go on for ``deadline`` seconds, cancel the rest, store their rows.

        Takes at most ``2 * SETTLE_S`` longer. Cancelled, it leaves the service draining.
        """
        self._draining = True
        if await self._idle_within(deadline):
            return
        for live in self._hub.open_responses():
            self._hub.cancel(live)
        if await self._idle_within(SETTLE_S):
            return
        self._hub.abandon(FinishReason.CANCELLED)
        await self._idle_within(SETTLE_S)

    async def _idle_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hub.idle()
                return True
        return False

    # -- responses

    def on_step(self, out: StepOutput) -> None:
        """Take in one step of the engine. On the loop, by ``call_soon_threadsafe``, in order."""
        self._hub.on_step(out)
        if self.backend.engine.failure is not None:
            self._calls.fail(NotReady(_STOPPED.message))
            self._hub.abandon(FinishReason.FAILED, _STOPPED)

    async def create(self, ns: Namespace, command: CreateCommand, by: Visitor | None = None) -> Started:
        """Check, plan, open the ledger row, submit. Raises `ChatdError`; then nothing was stored or started.

        The same idempotency key again gives the ids of the first time (`Started.replay`), whatever has
        become of it; subscribe from seq 0. With another request under the key: Conflict.

        Cancelled, it leaves either nothing, or a response that is stored and submitted, which the
        same key finds again and which ends after its grace if nobody does.
        """
        asked = replace(check_command(ns, command, self.backend), by=by)
        if (replayed := await self._replayed(asked)) is not None:
            return replayed
        self._refuse_if_unable()
        self._refuse_a_pile(ns, by)
        for _ in range(TRIES):
            planned = await self._plan(asked, self._threads)
            try:
                return await self._begin(asked, planned)
            except NoRoom as error:
                if by is not None:
                    by.room = error.room
                raise
            except TipMoved:
                continue
            except NotFound:
                if command.messages is None:
                    raise
                continue  # the hidden history that was found has expired meanwhile
        raise Conflict("Others keep writing to this conversation. Try again.")

    async def cancel(self, ns: Namespace, response_id: ResponseId) -> None:
        """End it soon; the ending comes through its streams. No error if it has ended; NotFound if unknown.

        Cancelled, it leaves the response as it was.
        """
        live = self._hub.find(ns, response_id)
        if live is None:
            await self._store.response(ns, response_id)
            live = self._hub.find(ns, response_id)
        if live is not None:
            self._hub.cancel(live)

    def acknowledge(self, ns: Namespace, response_id: ResponseId, seq: int, tokens: int | None) -> None:
        """A reader has its text up to piece ``seq``; all ``tokens`` of a response that has ended.

        What is told of another's response, or of a part of one that has ended, is let go.
        """
        live = self._hub.find(ns, response_id)
        if live is not None:
            self._hub.acknowledged(live, seq)
        elif tokens is not None:
            self._flusher.acknowledged(response_id, tokens)

    def end_answers(self, key_id: str) -> None:
        """End those that were asked with this key, soon. What was generated is kept, and billed."""
        for live in self._hub.open_responses():
            if live.key_id == key_id:
                self._hub.cancel(live)

    async def estimate(self, ns: Namespace, command: CreateCommand) -> Estimated:
        """What `create` with the same command would find now. Raises what it raises; changes nothing."""
        asked = check_command(ns, command, self.backend)
        if self.backend.engine.failure is not None:
            raise NotReady(_STOPPED.message)
        return await self.cache.estimate(ns, await self._plan(asked, self._look_threads))

    def text_of(self, ids: tuple[int, ...]) -> str:
        """The text of a prompt that came as ids. InvalidParameter for ids that the model does not have."""
        check_ids(ids, self.backend)
        return self.backend.tokenizer.decode(ids)

    async def count_tokens(self, ns: Namespace, command: CreateCommand) -> int:
        """Of the prompt that `create` with the same command would make, whether it fits or not."""
        asked = check_command(ns, command, self.backend)
        place = await find_place(self._store, asked.namespace, asked.command)
        return await anyio.to_thread.run_sync(
            self._prompts.count, place, asked.command, limiter=self._look_threads
        )

    async def delete(self, ns: Namespace, conversation_id: ConversationId) -> None:
        """Cancel what is written there, then delete it, its text and its KV. NotFound if unknown or foreign.

        Cancelled, it may leave answers cancelled. The KV goes soon after the call has returned.
        """
        for _ in range(TRIES):
            writing = self._hub.open_in(ns, conversation_id)
            for live in writing:
                self._hub.cancel(live)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_S):
                    for live in writing:
                        await self._hub.gone(live)
            try:
                await self._store.delete(ns, conversation_id)
            except Conflict:
                continue
            self._forgetter.wake()
            return
        raise Conflict("Answers in this conversation do not end. Try again in a moment.")

    async def subscribe(self, ns: Namespace, response_id: ResponseId, after_seq: int = 0) -> ResponseStream:
        """All after piece ``after_seq``: stored, then live, then the ending. Close the stream when done.

        Raises NotFound for an unknown or foreign id. Cancelled, it leaves nothing behind. For a running
        response it does not suspend.
        """
        live = self._hub.find(ns, response_id)
        if live is None:
            record = await self._store.response(ns, response_id)
            live = self._hub.find(ns, response_id)
            if live is None and record.status is not ResponseStatus.OPEN:
                return self._hub.replay(record, after_seq)
        if live is None:
            raise NotReady("This response is being settled. Ask again in a moment.")
        return self._hub.attach(live, after_seq)

    def listen(self, listener: ConversationListener) -> Callable[[], None]:
        """Have ``listener`` hear of every conversation an answer has ended in, after the streams did.

        It is called on the loop and must not block. Returns what ends it.
        """
        self._flusher.listeners.add(listener)
        return lambda: self._flusher.listeners.discard(listener)

    # -- the steps of create

    def _refuse_if_unable(self) -> None:
        if self._draining:
            raise Draining(_DRAINING)
        if self.backend.engine.failure is not None:
            raise NotReady(_STOPPED.message)
        if not self._flusher.healthy:
            raise NotReady("The database cannot be written to. The server's log says why.")
        if self._hub.open_count >= self._settings.max_open:
            raise Overloaded(f"{self._settings.max_open} answers are under way or waiting. Try again later.")

    def _refuse_a_pile(self, ns: Namespace, by: Visitor | None) -> None:
        """One account's requests never take all the places there are."""
        share = self._settings.max_open // 2
        if by is not None and by.key is not None and self._hub.count_of(ns) >= share:
            raise Overloaded(f"{share} answers of this account are under way or waiting. Try again later.")

    async def _replayed(self, asked: Asked) -> Started | None:
        if asked.command.idempotency_key is None:
            return None
        begun = await self._store.find_replay(asked.namespace, asked.command.idempotency_key, asked.digest)
        return started_of(begun) if begun is not None else None

    async def _plan(self, asked: Asked, threads: anyio.CapacityLimiter) -> Planned:
        place = await find_place(self._store, asked.namespace, asked.command)
        if place.text_len <= INLINE_CHARS:
            return self._planned(place, asked)
        return await anyio.to_thread.run_sync(self._planned, place, asked, limiter=threads)

    def _planned(self, place: Place, asked: Asked) -> Planned:
        backend = self.backend
        raw = asked.command.raw
        prompt = self._prompts.make(place, asked.params) if raw is None else self._prompts.raw(raw)
        engine = EngineIdentity(
            self._run_id, backend.model_name, backend.formats.text, cache_on=backend.cache_on
        )
        limit = self._prompts.max_tokens(prompt, asked.params)
        if asked.params.max_tokens is None and asked.tokens_per_min is not None:
            # Who names no length must not be refused for ever for want of one.
            limit = max(1, min(limit, asked.tokens_per_min - len(prompt.ids)))
        return Planned(place, prompt, limit, facts_of(place, prompt, engine))

    async def _begin(self, asked: Asked, planned: Planned) -> Started:
        """The point of no return: store and submit, whether or not the caller is still there."""
        if self._draining:
            raise Draining(_DRAINING)
        grace_s = asked.command.grace_s
        live = LiveResponse(
            ResponseId(self._new_id()),
            asked.namespace,
            grace_s=self._settings.grace_s if grace_s is None else grace_s,
            facts=planned.facts,
            clock=self._clock,
            monotonic=self._monotonic,
            on_gap=self.figures.gap.add,
            request_id=structlog.contextvars.get_contextvars().get("request_id", ""),
        )
        live.key_id = asked.key_id
        self._hub.add(live)
        opening = asyncio.create_task(self._open(live, asked, planned), name=f"open {live.id}")
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda task: self._orphaned(task, live))
            raise

    def _orphaned(self, opening: asyncio.Task[Started], live: LiveResponse) -> None:
        """The caller was cancelled while its response was being opened."""
        if not opening.cancelled() and opening.exception() is None:
            self._hub.desert(live)

    async def _open(self, live: LiveResponse, asked: Asked, planned: Planned) -> Started:
        new = new_response(live.id, asked, planned, self.backend)
        try:
            begun = await self._store.begin_response(new)
        except BaseException:
            self._hub.discard(live)
            raise
        if begun.replay:
            self._hub.discard(live)
            return started_of(begun)
        if asked.by is not None:
            asked.by.room = begun.room
        live.begun = True
        live.written_in = begun.conversation_id
        live.conversation_id = None if new.hidden else begun.conversation_id
        self._submit(live, asked, planned)
        self._hub.await_reader(live)
        log.debug("response begun", extra={"response_id": live.id, "prompt_tokens": new.prompt_len})
        return started_of(begun)

    def _ended(self, live: LiveResponse, record: ResponseRecord) -> None:
        """Its ending was published. Nobody of those who asked is around: the log says who it was."""
        self._hub.discard(live)
        self.figures.take(record)
        log.info("response ended", extra=ended_line(live.request_id, record))

    def _submit(self, live: LiveResponse, asked: Asked, planned: Planned) -> None:
        """The probe goes first: what it says is compared with what becomes of the prompt."""
        engine, rid = self.backend.engine, Rid(live.id)
        engine.send(Probe(rid, live.namespace, planned.prompt.ids))
        engine.submit(submit_of(live.id, asked, planned, self.backend))
        if live.cancelled:  # before the engine knew of it
            engine.abort(rid)
        if engine.failure is not None:  # then it may not have taken this one
            self._hub.abandon(FinishReason.FAILED, _STOPPED)
