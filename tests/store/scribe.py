"""What the tests of the store write with: a store in a temporary folder, and an engine's bookkeeping."""

import hashlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chatd.ids import ConversationId, MessageId, Namespace, ResponseId
from chatd.store.flush_batch import AdmittedRow, DeliveredRow, EndedRow, FlushBatch, PieceRow, RunningRow
from chatd.store.prices import PriceBook
from chatd.store.records import (
    ROOT_KEY,
    BegunResponse,
    NewMessage,
    NewResponse,
    ResponseStatus,
    RunCounters,
    RunId,
    Timings,
    chain_key,
    micros,
)
from chatd.store.store import Store

NS = Namespace("ann")
OTHER = Namespace("bob")
START = 1_800_000_000.0

STATUS = {
    "end": ResponseStatus.COMPLETED,
    "stop": ResponseStatus.COMPLETED,
    "length": ResponseStatus.INCOMPLETE,
    "cancelled": ResponseStatus.CANCELLED,
    "failed": ResponseStatus.FAILED,
}


class Clock:
    """Unix seconds that go on by a second with every look."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def counting_ids(prefix: str) -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"{prefix}{next(numbers)}"


def keep_ids(text: str, ids: Sequence[int]) -> Sequence[int]:
    """Re-encoding where every id stands for one character."""
    return ids_of(text)


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(ord(char) for char in text)


@asynccontextmanager
async def opened(
    data_dir: Path,
    *,
    prices: PriceBook | None = None,
    clock: Callable[[], float] | None = None,
    prefix: str = "id",
    hidden_ttl_s: float = 3600.0,
    hidden_keep: int = 1000,
    idle_s: float = 1.0,
    migrations: Path | None = None,
) -> AsyncIterator[Store]:
    """``prefix`` keeps the ids of one opening apart from those of another."""
    store = await Store.open(
        data_dir,
        prices=prices or PriceBook(),
        clock=clock or Clock(),
        new_id=counting_ids(prefix),
        hidden_ttl_s=hidden_ttl_s,
        hidden_keep=hidden_keep,
        idle_s=idle_s,
        migrations=migrations,
    )
    try:
        yield store
    finally:
        await store.close()


def said(*turns: tuple[str, str], under: bytes = ROOT_KEY, ns: Namespace = NS) -> tuple[NewMessage, ...]:
    """New messages of (role, text), with their chain keys under the key ``under``."""
    made, key = [], under
    for role, text in turns:
        key = chain_key(ns, key, role, text)
        made.append(NewMessage(role, text, ids_of(text), key))
    return tuple(made)


def asked(
    response_id: str,
    *messages: NewMessage,
    ns: Namespace = NS,
    key: str | None = None,
    conversation_id: ConversationId | None = None,
    parent_id: MessageId | None = None,
    continues: MessageId | None = None,
    continued_ids: tuple[int, ...] | None = None,
    under_tip: bool = False,
    hidden: bool = False,
    prompt_len: int = 10,
) -> NewResponse:
    question = "".join(message.text for message in messages)
    return NewResponse(
        response_id=ResponseId(response_id),
        namespace=ns,
        idempotency_key=key,
        request_hash=hashlib.sha256(question.encode()).digest(),
        conversation_id=conversation_id,
        hidden=hidden,
        parent_id=parent_id,
        new_messages=messages,
        continues=continues,
        model="toy",
        params_json="{}",
        prompt_len=prompt_len,
        under_tip=under_tip,
        continued_ids=continued_ids,
    )


@dataclass
class _Running:
    prompt_len: int
    seq: int = 0
    generated: int = 0
    ids: list[int] = field(default_factory=list)


class Scribe:
    """Counts as an engine does and flushes as the server does. One id is one character."""

    def __init__(self, store: Store, run_id: RunId) -> None:
        self.store = store
        self.run_id = run_id
        self._clock = store._clock
        self.counters = dict.fromkeys(
            ("prompt_tokens", "gpu_hit", "disk_hit", "computed", "generated", "steps"), 0
        )
        self._running: dict[ResponseId, _Running] = {}
        self._admitted: list[AdmittedRow] = []
        self._pieces: list[PieceRow] = []
        self._delivered: list[DeliveredRow] = []
        self._ended: list[EndedRow] = []
        self._touched: set[ResponseId] = set()

    @classmethod
    async def begin(cls, store: Store) -> "Scribe":
        return cls(store, await store.begin_run())

    async def ask(self, new: NewResponse) -> BegunResponse:
        begun = await self.store.begin_response(new)
        if not begun.replay:
            self._running[begun.response.id] = _Running(new.prompt_len)
        return begun

    def is_running(self, response_id: ResponseId) -> bool:
        return response_id in self._running

    def admit(self, response_id: ResponseId, gpu_hit: int = 0, disk_hit: int = 0) -> None:
        prompt = self._running[response_id].prompt_len
        computed = prompt - gpu_hit - disk_hit
        self._admitted.append(AdmittedRow(response_id, prompt, gpu_hit, disk_hit, computed, at=self._now()))
        self._count(prompt_tokens=prompt, gpu_hit=gpu_hit, disk_hit=disk_hit, computed=computed)

    def say(self, response_id: ResponseId, *texts: str, held: int = 0) -> None:
        """One piece a text, and ``held`` more tokens whose text is held back."""
        run = self._running[response_id]
        ends = tuple(itertools.accumulate(len(text) for text in texts))
        text, first = "".join(texts), run.seq + 1
        run.seq += len(texts)
        ids = ids_of(text)
        self._pieces.append(PieceRow(response_id, first, run.seq, text, ids, ends))
        run.ids.extend(ids)
        run.generated += len(ids) + held
        self._count(generated=len(ids) + held)
        self._touched.add(response_id)

    def deliver(self, response_id: ResponseId, count: int) -> None:
        self._delivered.append(DeliveredRow(response_id, count))

    def end(self, response_id: ResponseId, reason: str = "end", *, preemptions: int = 0) -> None:
        run = self._running.pop(response_id)
        self._touched.discard(response_id)
        self._ended.append(
            EndedRow(
                response_id=response_id,
                status=STATUS[reason],
                finish_reason=reason,
                generated=run.generated,
                message_ids=tuple(run.ids),
                at=self._now(),
                error_code="engine_failure" if reason == "failed" else "",
                error="it broke" if reason == "failed" else "",
                preemptions=preemptions,
                timings=Timings(queue_ms=1.0, total_ms=20.5),
                kv_len=run.prompt_len + len(run.ids),
            )
        )

    def batch(self) -> FlushBatch:
        """Takes what happened since the last one."""
        running = [RunningRow(rid, self._running[rid].generated) for rid in sorted(self._touched)]
        made = FlushBatch(
            run_id=self.run_id,
            counters=RunCounters(**self.counters),
            admitted=tuple(self._admitted),
            pieces=tuple(self._pieces),
            running=tuple(running),
            delivered=tuple(self._delivered),
            ended=tuple(self._ended),
        )
        self._admitted, self._pieces, self._delivered, self._ended = [], [], [], []
        self._touched = set()
        return made

    async def flush(self) -> None:
        await self.store.flush(self.batch())

    async def answer(self, new: NewResponse, *texts: str, reason: str = "end") -> BegunResponse:
        """A whole response, from its question to its end."""
        begun = await self.ask(new)
        self.admit(begun.response.id)
        self.say(begun.response.id, *texts)
        self.end(begun.response.id, reason)
        await self.flush()
        return begun

    def _now(self) -> int:
        return micros(self._clock())

    def _count(self, **more: int) -> None:
        self.counters["steps"] += 1
        for name, count in more.items():
            self.counters[name] += count
