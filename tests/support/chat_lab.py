"""A whole chat service for tests: a real store on a file, a real engine thread over a toy runner."""

import asyncio
import contextlib
import functools
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from chatd.engine.engine import Engine
from chatd.engine.messages import (
    CacheCommand,
    EngineCounters,
    Finished,
    FinishReason,
    Piece,
    Prefill,
    StepOutput,
    Submit,
    TierNote,
    Update,
)
from chatd.engine.stream import Delta, Ended, TokenStream
from chatd.ids import MessageId, Namespace, ResponseId, Rid
from chatd.server.service import Backend, ChatService, CreateCommand, ServiceSettings, Started
from chatd.store.prices import PriceBook
from chatd.store.records import ResponseRecord, StoredMessage
from chatd.store.store import Store
from chatd.text.chat_template import ChatTemplate
from tests.support.engines import (
    TOY_TEMPLATE,
    VOCAB_SIZE,
    ChecksumRunner,
    PagedRunner,
    ScriptRunner,
    toy_engine,
    toy_tokenizer,
)

CommandT = TypeVar("CommandT", bound=CacheCommand)

ME = Namespace("me")
NUM_PAGES, PAGE_SIZE = 1024, 16
CONTEXT_LENGTH = 4096


@functools.cache
def toy_template(text: str = TOY_TEMPLATE) -> ChatTemplate:
    """Vetted once: that takes a child process."""
    return ChatTemplate(text, bos="", eos="<|endoftext|>")


def saying(text: str, num_pages: int = NUM_PAGES) -> ScriptRunner:
    """A runner that answers every prompt with ``text``, a byte a token."""
    ids = text.encode()
    return ScriptRunner(num_pages, PAGE_SIZE, lambda prompt: ids)


class HandEngine:
    """An engine that says what the test tells it to, with the counters of a real one.

    It admits a request when it first speaks for it, and ends what is aborted at once.
    """

    capacity_len = 100_000
    failure: BaseException | None = None

    def __init__(self, post: Callable[[StepOutput], None]) -> None:
        self.submitted: dict[Rid, Submit] = {}
        self.sent: list[CacheCommand] = []
        self.tier = TierNote()
        """Of the requests that are admitted from now on, as their ``hits`` (from memory, from disk)."""
        self.hits = (0, 0)
        self.queue_s = 0.0
        self._post = post
        self._counters = EngineCounters()
        self._said: dict[Rid, list[Piece]] = {}

    def start(self) -> None:
        """There is no thread."""

    def stop(self, timeout: float) -> None:
        """There is no thread."""

    def stalled_for(self) -> float:
        return 0.0

    def submit(self, submit: Submit) -> None:
        self.submitted[submit.rid] = submit

    def send(self, command: CacheCommand) -> None:
        """Nothing is answered but by the test (`answer`)."""
        self.sent.append(command)

    def answer(self, *updates: Update) -> None:
        """One step that says this."""
        self._step(updates)

    def last_sent(self, kind: type[CommandT]) -> CommandT:
        return next(command for command in reversed(self.sent) if isinstance(command, kind))

    def abort(self, rid: Rid) -> None:
        if rid in self.submitted:
            self.finish(rid, FinishReason.CANCELLED)

    def say(self, rid: Rid, *texts: str) -> None:
        """One step with a piece for each text, each made of one token."""
        updates = self._admission(rid)
        for text in texts:
            said = self._said[rid]
            said.append(Piece(rid, len(said) + 1, text, (32,), len(said) + 1))
            updates.append(said[-1])
        self._step(updates, generated=len(texts))

    def finish(self, rid: Rid, reason: FinishReason = FinishReason.LENGTH) -> None:
        said = self._said.get(rid, [])
        self.submitted.pop(rid)
        self._step([Finished(rid, reason, len(said), (32,) * len(said))])

    def _admission(self, rid: Rid) -> list[Update]:
        if rid in self._said:
            return []
        self._said[rid] = []
        prompt_len = len(self.submitted[rid].prompt_ids)
        gpu_hit, disk_hit = self.hits
        computed, counters = prompt_len - gpu_hit - disk_hit, self._counters
        self._counters = replace(
            counters,
            prompt_tokens=counters.prompt_tokens + prompt_len,
            gpu_hit=counters.gpu_hit + gpu_hit,
            disk_hit=counters.disk_hit + disk_hit,
            computed=counters.computed + computed,
        )
        return [Prefill(rid, prompt_len, gpu_hit, disk_hit, computed, self.tier, self.queue_s)]

    def _step(self, updates: Sequence[Update], generated: int = 0) -> None:
        self._counters = replace(self._counters, generated=self._counters.generated + generated)
        self._post(StepOutput(tuple(updates), self._counters))


@dataclass(frozen=True)
class Answer:
    """A response read to its end."""

    started: Started
    deltas: Sequence[Delta]
    record: ResponseRecord

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)


@dataclass(frozen=True)
class ChatLab:
    store: Store
    engine: Engine | HandEngine
    service: ChatService
    runner: PagedRunner
    """What computes the steps, unless the engine is another one."""

    @property
    def hand(self) -> HandEngine:
        assert isinstance(self.engine, HandEngine)
        return self.engine

    async def create(self, text: str = "hello", *, ns: Namespace = ME, **command: Any) -> Started:
        """``params`` as one mapping; everything else by `CreateCommand`'s names."""
        return await self.service.create(ns, self.command(text, **command))

    def command(self, text: str = "hello", **command: Any) -> CreateCommand:
        return CreateCommand(input=text, **command)

    async def ask(self, text: str = "hello", *, ns: Namespace = ME, **command: Any) -> Answer:
        """Create a response and read all of it."""
        return await self.read(await self.create(text, ns=ns, **command), ns=ns)

    async def read(self, started: Started, after_seq: int = 0, *, ns: Namespace = ME) -> Answer:
        stream = await self.service.subscribe(ns, started.response_id, after_seq)
        deltas, record = await read_to_end(stream)
        return Answer(started, deltas, record)

    async def record(self, response_id: ResponseId) -> ResponseRecord:
        return await self.store.response(ME, response_id)

    async def message(self, message_id: MessageId) -> StoredMessage:
        return await self.store.message(ME, message_id)

    async def check(self) -> None:
        """The ledger is right, and every row of a response that is over is settled."""
        report = await self.store.verify()
        assert report.ok, report.findings


async def read_to_end(stream: TokenStream[ResponseRecord]) -> tuple[list[Delta], ResponseRecord]:
    """All deltas, which must join, and the record of the ending."""
    deltas: list[Delta] = []
    cursor = stream.cursor
    while not isinstance(event := await stream.get(), Ended):
        if isinstance(event, Delta):
            assert event.from_seq == cursor + 1
            cursor = event.seq
            deltas.append(event)
    assert event.record.last_seq == cursor
    return deltas, event.record


async def until(holds: Callable[[], bool]) -> None:
    """Give way until ``holds``; the test's own time-out is the limit."""
    while not holds():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.001)


def counter_ids(prefix: str = "id") -> Callable[[], str]:
    """id1, id2, ..."""
    numbers = itertools.count(1)
    return lambda: f"{prefix}{next(numbers)}"


@contextlib.asynccontextmanager
async def chat_lab(
    data_dir: Path,
    runner: PagedRunner | None = None,
    *,
    by_hand: bool = False,
    store_type: type[Store] = Store,
    settings: ServiceSettings | None = None,
    context_length: int = CONTEXT_LENGTH,
    num_pages: int = NUM_PAGES,
    prefix: str = "id",
    template: str = TOY_TEMPLATE,
    on_disk: Callable[[], Mapping[Namespace, int]] = dict,
    **limits: Any,
) -> AsyncIterator[ChatLab]:
    """A running service. At the end everything is drained and the ledger checked.

    ``prefix`` of ids tells one life of a data folder from the next.
    """
    loop, ids = asyncio.get_running_loop(), counter_ids(prefix)
    runner = runner or ChecksumRunner(num_pages, PAGE_SIZE)
    store = await store_type.open(data_dir, prices=PriceBook(), clock=time.time, new_id=ids)

    def post(out: StepOutput) -> None:
        loop.call_soon_threadsafe(service.on_step, out)

    pool: dict[str, Any] = {"num_pages": num_pages, "page_size": PAGE_SIZE, "context_length": context_length}
    engine = HandEngine(post) if by_hand else toy_engine(post, runner, **pool, **limits)
    backend = Backend(toy_tokenizer(), toy_template(template), engine, "toy", context_length, VOCAB_SIZE)
    service = ChatService(
        backend=backend,
        store=store,
        settings=settings or ServiceSettings(),
        clock=time.time,
        new_id=ids,
        on_disk=on_disk,
    )
    lab = ChatLab(store, engine, service, runner)
    async with service.running():
        engine.start()
        try:
            yield lab
        finally:
            await service.drain(0)
            engine.stop(5)
    await lab.check()
    await store.close()
