"""Q1 to Q3 on a whole service: every ending, each with a prompt that is cold, in memory, on disk, preempted.

Whatever happens to a request, it has one terminal row, its buckets are those it was admitted with, its bill
follows from them, the engine's totals are the sums of the rows, and the same key again costs nothing.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from chatd.cache.disk.tier import DiskTier
from chatd.engine.plan import StepPlan
from chatd.engine.stream import Delta, Ended, PrefillEvent
from chatd.ids import Rid
from chatd.server.commands import Started
from chatd.server.flush import run_counters
from chatd.store.records import ResponseRecord, ResponseStatus
from tests.support.chat_lab import ME, ChatLab, chat_lab, until
from tests.support.engines import Gate, ScriptRunner

ENDINGS = ("end", "stop", "length", "cancelled", "deserted", "failed")
STOPPED = ("cancelled", "deserted")
"""By a command, or because the only reader has left: an ending of the same name."""
ORIGINS = ("cold", "hit", "disk hit", "preempted")

TEXT = "".join(chr(97 + i % 26) for i in range(149)) + "!"
"""What every prompt is answered with; it takes a token a byte."""
FILLER_LEN = 200
"""Of the other answer, which takes pages away until the one in question has to give way."""
PAGES = 24
STOP, LENGTH, FAILS_AT = "!", 130, 125
PRICES = (100_000_000, 100_000_000, 1_000_000_000, 2_000_000_000)
"""Of labs, for a million tokens: from memory, from disk, computed, generated."""


@dataclass
class Case:
    """One response, with what was seen of it."""

    lab: ChatLab
    ending: str
    command: dict[str, Any] = field(default_factory=dict)
    prefill: PrefillEvent | None = None
    text: str = ""

    @property
    def params(self) -> dict[str, Any]:
        given: dict[str, dict[str, Any]] = {
            "stop": {"stop": STOP},
            "length": {"max_tokens": LENGTH},
        }
        return {"ignore_eos": True} if self.ending in STOPPED else given.get(self.ending, {})

    async def run(self, text: str, **command: Any) -> ResponseRecord:
        gate = Gate()
        self.lab.runner.before_step = gate
        started = await self.start(text, **command)
        return await self.finish(started, gate)

    async def start(self, text: str, **command: Any) -> Started:
        """The engine must be held."""
        self.command = {"text": text, "params": self.params, "idempotency_key": f"key {text}", **command}
        if self.ending == "deserted":
            self.command["grace_s"] = 0
        started = await self.lab.create(**self.command)
        if self.ending == "failed":
            rid = Rid(started.response_id)
            self.lab.runner.bad = lambda row: row.rid == rid and len(row.ids) - row.prompt_len == FAILS_AT
        return started

    async def finish(self, started: Started, gate: Gate) -> ResponseRecord:
        """At a pace at which a cancel comes in time, however busy the machine is."""
        rid = Rid(started.response_id)

        def pace(plan: StepPlan) -> None:
            if any(row.rid == rid and len(row.ids) - row.prompt_len > FAILS_AT for row in plan.rows):
                time.sleep(0.02)

        self.lab.runner.before_step = pace if self.ending in STOPPED else lambda plan: None
        gate.open()
        return await self._read(started)

    async def _read(self, started: Started) -> ResponseRecord:
        stream = await self.lab.service.subscribe(ME, started.response_id)
        while not isinstance(event := await stream.get(), Ended):
            if isinstance(event, PrefillEvent) and self.prefill is None:
                self.prefill = event
            if isinstance(event, Delta):
                self.text += event.text
                if len(self.text) <= FAILS_AT:
                    continue
                if self.ending == "cancelled":
                    await self.lab.service.cancel(ME, started.response_id)
                if self.ending == "deserted":
                    stream.close()
                    return await self._left(started)
        return event.record

    async def _left(self, started: Started) -> ResponseRecord:
        """Nobody reads it any more, so nobody is told."""
        while (record := await self.lab.record(started.response_id)).status is ResponseStatus.OPEN:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        return record


@contextlib.asynccontextmanager
async def small_lab(data_dir: Path) -> AsyncIterator[ChatLab]:
    """With a disk, and a pool that does not hold two long answers."""
    runner = ScriptRunner(PAGES, 16, lambda prompt: TEXT.encode())
    folder = data_dir / "kv"
    folder.mkdir()
    tier = DiskTier.open(folder, b"toy", runner.block_bytes, 1 << 24)
    try:
        async with chat_lab(data_dir, runner, num_pages=PAGES, tier=tier) as lab:
            yield lab
    finally:
        tier.close(5)


async def after_a_turn(lab: ChatLab, case: Case, number: int) -> ResponseRecord:
    """Whose KV is in memory."""
    before = await lab.ask(f"{number} " + "once upon a time " * 4, params={"max_tokens": 4})
    return await case.run(f"and {number}?", conversation_id=before.started.conversation_id)


async def after_a_turn_on_disk(lab: ChatLab, case: Case, number: int) -> ResponseRecord:
    """A turn is written when the engine has nothing else to do: until one was, there are more."""
    for attempt in itertools.count():
        stored = lab.service.counters.spilled_blocks
        text = f"{number}.{attempt} " + "once upon a time " * 4
        before = (await lab.ask(text, params={"max_tokens": 4})).started
        await until(lambda at=stored: lab.service.counters.spilled_blocks > at)  # type: ignore[misc]
        await lab.service.cache.clear(None, disk=False)
        command = lab.command(f"and {number}?", conversation_id=before.conversation_id)
        if (await lab.service.estimate(ME, command)).probed.disk_hit >= 64:
            break
    return await case.run(f"and {number}?", conversation_id=before.conversation_id)


async def beside_another(lab: ChatLab, case: Case, number: int) -> ResponseRecord:
    """The older answer takes pages until the younger has to give its own back."""
    gate = Gate()
    lab.runner.before_step = gate
    params = {"max_tokens": FILLER_LEN, "ignore_eos": True}
    filler = await lab.create(f"filler {number} " + "x" * 60, params=params)
    record = await case.finish(await case.start(f"{number} " + "y" * 80), gate)
    await lab.read(filler)
    return record


async def run(lab: ChatLab, case: Case, origin: str, number: int) -> ResponseRecord:
    match origin:
        case "cold":
            return await case.run(f"cold {number}")
        case "hit":
            return await after_a_turn(lab, case, number)
        case "disk hit":
            return await after_a_turn_on_disk(lab, case, number)
        case _:
            return await beside_another(lab, case, number)


def check_origin(origin: str, record: ResponseRecord) -> None:
    assert (record.preemptions > 0) == (origin == "preempted")
    assert (record.recomputed > 0) == (origin == "preempted")
    assert (record.disk_hit >= 64) == (origin == "disk hit")
    assert (record.gpu_hit >= 64) == (origin == "hit")


def check_bill(record: ResponseRecord, case: Case) -> None:
    """Q1 and Q3: what was admitted is what is billed, once, however often it was computed."""
    buckets = (record.gpu_hit, record.disk_hit, record.computed)
    assert sum(buckets) == record.prompt_tokens == record.prompt_len
    seen = case.prefill
    assert seen is not None
    assert (seen.gpu_hit, seen.disk_hit, seen.computed) == buckets
    length = {"end": len(TEXT) + 1, "stop": len(TEXT), "length": LENGTH, "failed": FAILS_AT}
    assert record.output_tokens == length.get(case.ending, record.output_tokens)
    assert record.output_tokens >= len(case.text.encode())
    assert record.finish_reason == ("cancelled" if case.ending in STOPPED else case.ending)
    assert TEXT.startswith(case.text[: len(TEXT)]) or case.ending in STOPPED
    cost = record.cost
    amounts = (cost.gpu_hit_nano, cost.disk_hit_nano, cost.computed_nano, cost.output_nano)
    counts = (*buckets, record.output_tokens)
    assert amounts == tuple(n * price // 1_000_000 for n, price in zip(counts, PRICES, strict=True))
    assert cost.total_nano == sum(amounts)


@pytest.mark.parametrize("origin", ORIGINS)
async def test_q1_q2_q3_every_ending(data_dir: Path, origin: str) -> None:
    numbers = itertools.count()
    async with small_lab(data_dir) as lab:
        for ending in ENDINGS:
            case = Case(lab, ending)
            record = await run(lab, case, origin, next(numbers))
            check_origin(origin, record)
            check_bill(record, case)
            generated = lab.service.counters.generated
            again = await lab.create(**case.command)  # Q2
            assert (again.replay, again.response_id) == (True, record.id)
            now = await lab.record(record.id)  # what was delivered may be told of later
            assert replace(now, delivered=record.delivered) == record
            assert lab.service.counters.generated == generated
        report = await lab.store.sessions_report(ME)
        (total,) = report.totals
        counters = lab.service.counters
        assert (total.prompt_tokens, total.gpu_hit, total.disk_hit, total.computed, total.output_tokens) == (
            counters.prompt_tokens,
            counters.gpu_hit,
            counters.disk_hit,
            counters.computed,
            counters.generated,
        )
        assert (await lab.store.verify(lambda: run_counters(lab.service.counters))).ok
