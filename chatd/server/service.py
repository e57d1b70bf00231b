"""ChatService: from a command of one account to a running, billed, streaming response.

    create:  params -> place in the tree -> prompt -> ledger row -> engine
    on_step: engine -> hub -> store -> streams                       (`Hub`, `Flusher`)

One a server, on the event loop. What a cancelled call leaves behind stands at each method.
"""

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from typing import Protocol

import anyio.to_thread
import msgspec

from chatd.engine.messages import EngineCounters, EngineState, StepOutput, Submit
from chatd.errors import Conflict, Draining, InvalidParameter, NotReady, Overloaded
from chatd.ids import Namespace, ResponseId, Rid
from chatd.server.commands import ChatTurn, CreateCommand, Started
from chatd.server.flush import ConversationListener, Flusher, FlushPace
from chatd.server.hub import Hub
from chatd.server.live import LiveResponse, ResponseStream
from chatd.server.params import MAX_SEED, RequestParams, check_text, parse_params
from chatd.server.prompt import Prompt, PromptMaker, new_messages
from chatd.server.turns import Place, find_place
from chatd.store.errors import TipMoved
from chatd.store.records import BegunResponse, NewResponse, ResponseStatus
from chatd.store.store import Store
from chatd.text.chat_template import ChatTemplate
from chatd.text.tokenizer import Tokenizer

__all__ = ["Backend", "ChatService", "ChatTurn", "CreateCommand", "ServiceSettings", "Started"]

INLINE_CHARS = 2_000
"""Histories up to this long are rendered and encoded on the loop (well under a millisecond); longer
ones on a worker thread."""
TIP_TRIES = 3
SETTLE_S = 1.0
"""How long the engine may take to end what it was told to end, while the server stops."""


class EngineHandle(Protocol):
    """What the service asks of `Engine`; no call waits."""

    @property
    def capacity_len(self) -> int: ...
    @property
    def failure(self) -> BaseException | None: ...
    def submit(self, submit: Submit) -> None: ...
    def abort(self, rid: Rid) -> None: ...
    def stalled_for(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """A loaded model and its engine. Lengths in tokens."""

    tokenizer: Tokenizer
    template: ChatTemplate
    engine: EngineHandle
    model_name: str
    context_length: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """``grace_s``: how long a response nobody reads goes on. ``max_open`` responses may be under way."""

    grace_s: float = 60.0
    max_open: int = 1024
    pace: FlushPace = field(default_factory=FlushPace)


class ChatService:
    """``clock`` gives Unix seconds, ``monotonic`` seconds for durations, ``new_id`` ids not given before."""

    def __init__(
        self,
        *,
        backend: Backend,
        store: Store,
        settings: ServiceSettings,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        monotonic: Callable[[], float] = time.monotonic,
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
        self._flusher = Flusher(store, settings.pace, lambda live: self._hub.discard(live))
        self._hub = Hub(store, self._flusher, backend.engine.abort)
        self._threads = anyio.CapacityLimiter(2)
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
        run_id = await self._store.begin_run()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._flusher.run(run_id), name="chatd-flush")
            try:
                yield
            finally:
                self._flusher.stop()
        if not self.open_count:  # else the run is left as a dead one, for the next start to settle
            await self._store.end_run()

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
        self._hub.abandon()
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

    async def create(self, ns: Namespace, command: CreateCommand) -> Started:
        """Check, plan, open the ledger row, submit. Raises `ChatdError`; then nothing was stored or started.

        The same idempotency key again gives the ids of the first time (`Started.replay`), whatever has
        become of it; subscribe from seq 0. With another request under the key: Conflict.

        Cancelled, it leaves either nothing, or a response that is stored and submitted, which the
        same key finds again and which ends after its grace if nobody does.
        """
        params = self._checked(command)
        digest = _digest(command)
        if (replayed := await self._replayed(ns, command, digest)) is not None:
            return replayed
        self._refuse_if_unable()
        for _ in range(TIP_TRIES):
            place = await find_place(self._store, ns, command)
            prompt = await self._make_prompt(place, params)
            try:
                return await self._begin(ns, command, digest, params, place, prompt)
            except TipMoved:
                continue
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

    def _checked(self, command: CreateCommand) -> RequestParams:
        if command.messages is not None and not command.messages:
            raise InvalidParameter("messages is empty.", param="messages")
        if command.messages is None and command.kind in ("input", "edit") and not command.input.strip():
            raise InvalidParameter("input is empty.", param="input")
        check_text(command.input, "input")
        for turn in command.messages or ():
            check_text(turn.text, "messages")
        return parse_params(
            command.params,
            vocab_size=self.backend.vocab_size,
            new_seed=lambda: secrets.randbelow(MAX_SEED),
        )

    def _refuse_if_unable(self) -> None:
        if self._draining:
            raise Draining("The server is shutting down. Connect again in a moment.")
        if self.backend.engine.failure is not None:
            raise NotReady("The engine has stopped. Restart the server; its log says why.")
        if not self._flusher.healthy:
            raise NotReady("The database cannot be written to. The server's log says why.")
        if self._hub.open_count >= self._settings.max_open:
            raise Overloaded(f"{self._settings.max_open} answers are under way or waiting. Try again later.")

    async def _replayed(self, ns: Namespace, command: CreateCommand, digest: bytes) -> Started | None:
        if command.idempotency_key is None:
            return None
        begun = await self._store.find_replay(ns, command.idempotency_key, digest)
        return _started(begun) if begun is not None else None

    async def _make_prompt(self, place: Place, params: RequestParams) -> Prompt:
        if place.text_len <= INLINE_CHARS:
            return self._prompts.make(place, params)
        return await anyio.to_thread.run_sync(self._prompts.make, place, params, limiter=self._threads)

    async def _begin(
        self,
        ns: Namespace,
        command: CreateCommand,
        digest: bytes,
        params: RequestParams,
        place: Place,
        prompt: Prompt,
    ) -> Started:
        """The point of no return: store and submit, whether or not the caller is still there."""
        max_tokens = self._prompts.max_tokens(prompt, params)
        live = self._new_live(ns, command)
        new = NewResponse(
            response_id=live.id,
            namespace=ns,
            idempotency_key=command.idempotency_key,
            request_hash=digest,
            conversation_id=place.conversation_id,
            hidden=command.messages is not None or command.hidden,
            parent_id=None if place.continues else place.parent_id,
            new_messages=new_messages(ns, place, prompt),
            continues=place.parent_id if place.continues else None,
            model=self.backend.model_name,
            params_json=_params_json(params, max_tokens, prompt),
            prompt_len=len(prompt.ids),
            under_tip=place.under_tip,
            continued_ids=prompt.answer_ids if place.continues else None,
        )
        submit = Submit(
            rid=Rid(live.id),
            namespace=ns,
            prompt_ids=prompt.ids,
            params=params.sampling,
            max_tokens=max_tokens,
            stop=params.stop,
            stop_ids=frozenset() if params.ignore_eos else self.backend.tokenizer.eos_ids,
        )
        self._hub.add(live)
        opening = asyncio.create_task(self._open(live, new, submit, prompt), name=f"open {live.id}")
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda task: self._orphaned(task, live))
            raise

    def _new_live(self, ns: Namespace, command: CreateCommand) -> LiveResponse:
        return LiveResponse(
            ResponseId(self._new_id()),
            ns,
            grace_s=self._settings.grace_s if command.grace_s is None else command.grace_s,
            clock=self._clock,
            monotonic=self._monotonic,
        )

    def _orphaned(self, opening: asyncio.Task[Started], live: LiveResponse) -> None:
        """The caller was cancelled while its response was being opened."""
        if not opening.cancelled() and opening.exception() is None:
            self._hub.desert(live)

    async def _open(self, live: LiveResponse, new: NewResponse, submit: Submit, prompt: Prompt) -> Started:
        try:
            begun = await self._store.begin_response(new)
        except BaseException:
            self._hub.discard(live)
            raise
        if begun.replay:
            self._hub.discard(live)
            return _started(begun)
        live.conversation_id = None if new.hidden else begun.conversation_id
        self.backend.engine.submit(submit)
        if live.cancelled:  # before the engine knew of it
            self.backend.engine.abort(submit.rid)
        self._hub.await_reader(live)
        return _started(begun, prompt)


def _started(begun: BegunResponse, prompt: Prompt | None = None) -> Started:
    return Started(
        response_id=begun.response.id,
        conversation_id=begun.conversation_id,
        user_message_id=begun.user_message_id,
        message_id=begun.message_id,
        replay=begun.replay,
        dropped_turns=prompt.dropped_turns if prompt is not None else 0,
        miss=prompt.miss if prompt is not None else "",
    )


def _digest(command: CreateCommand) -> bytes:
    """What tells one request from another under the same idempotency key."""
    what = (
        command.kind,
        command.input,
        command.conversation_id,
        command.parent_id,
        command.target_id,
        command.params,
        command.messages,
    )
    return hashlib.sha256(msgspec.json.encode(what, order="deterministic")).digest()


def _params_json(params: RequestParams, max_tokens: int, prompt: Prompt) -> str:
    """All that was in force for one response, its seed included, and what became of its history."""
    shown = {
        **asdict(params.sampling),
        "logit_bias": {str(token_id): bias for token_id, bias in params.sampling.logit_bias},
        "max_tokens": max_tokens,
        "stop": params.stop,
        "ignore_eos": params.ignore_eos,
        "truncation": params.truncation,
        "dropped_turns": prompt.dropped_turns,
        "miss": prompt.miss,
    }
    return msgspec.json.encode(shown).decode()
