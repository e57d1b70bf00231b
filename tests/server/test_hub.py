"""The flush loop and the readers: stored before seen, one flush at a time, nobody waits for a slow one."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import pytest

from chatd.engine.stream import MAX_HELD_CHARS, Delta, Ended
from chatd.errors import NotReady
from chatd.ids import Rid
from chatd.server.flush import FlushPace, StoreLost
from chatd.server.hub import READ_CHARS, first_stretch
from chatd.server.live import ResponseStream
from chatd.server.service import ServiceSettings
from chatd.store.errors import StoreFailure
from chatd.store.flush_batch import FlushBatch
from chatd.store.records import ResponseStatus, StoredPiece
from chatd.store.store import Store
from chatd.store.stored_pieces import cut_after
from tests.support.chat_lab import ME, ChatLab, chat_lab, read_to_end, saying, until

pytestmark = pytest.mark.usefixtures("blocked_loop")

GREEDY = {"temperature": 0}


class WatchedStore(Store):
    """A store that looks at every batch: one at a time, and the ledger right after each."""

    batches: ClassVar[list[FlushBatch]] = []
    running: ClassVar[int] = 0

    async def flush(self, batch: FlushBatch) -> None:
        assert type(self).running == 0, "two flushes at once"
        type(self).running += 1
        await super().flush(batch)
        self.batches.append(batch)
        report = await self.verify()
        assert report.ok, report.findings
        type(self).running -= 1


class FailingStore(Store):
    """A store whose disk is full while ``failing`` is set."""

    failing: ClassVar[bool] = False
    refused: ClassVar[int] = 0

    async def flush(self, batch: FlushBatch) -> None:
        if self.failing:
            type(self).refused += 1
            raise StoreFailure("the database could not be written: disk is full")
        await super().flush(batch)


@pytest.fixture
async def watched(data_dir: Path) -> AsyncIterator[ChatLab]:
    WatchedStore.batches.clear()
    async with chat_lab(data_dir, store_type=WatchedStore, max_running=8) as lab:
        yield lab


async def test_rows_add_up_to_the_counters_in_every_transaction(watched: ChatLab) -> None:
    """Twelve streams of all kinds at once; `WatchedStore` verifies after each flush."""

    async def one(number: int) -> None:
        started = await watched.create(
            f"number {number}", params={**GREEDY, "max_tokens": 10 + 17 * number, "seed": number}
        )
        if number % 3 == 0:
            await watched.service.cancel(ME, started.response_id)
        await watched.read(started)

    await asyncio.gather(*(one(number) for number in range(12)))
    assert sum(len(batch.ended) for batch in WatchedStore.batches) == 12


async def test_stored_before_seen(data_dir: Path) -> None:
    async with chat_lab(data_dir) as lab:
        lab.runner.before_step = lambda plan: time.sleep(0.002)
        started = await lab.create("hi", params={**GREEDY, "max_tokens": 300})
        stream = await lab.service.subscribe(ME, started.response_id)
        seen = 0
        while not isinstance(event := await stream.get(), Ended):
            if isinstance(event, Delta):
                seen += 1
                record = await lab.record(started.response_id)
                assert record.last_seq >= event.seq
                assert record.output_tokens >= event.seq
        assert seen >= 3


async def next_delta(stream: ResponseStream) -> Delta:
    while not isinstance(event := await stream.get(), Delta):
        pass
    return event


async def test_the_first_piece_comes_at_once_the_others_in_bundles(data_dir: Path) -> None:
    pace = FlushPace(interval_s=1.0, tokens=32)
    async with chat_lab(data_dir, by_hand=True, settings=ServiceSettings(pace=pace)) as lab:
        started = await lab.create("hi", params=GREEDY)
        stream, rid = await lab.service.subscribe(ME, started.response_id), Rid(started.response_id)
        began = time.monotonic()
        lab.hand.say(rid, "a")
        assert await next_delta(stream) == Delta(1, 1, "a")
        assert time.monotonic() - began < 0.9
        lab.hand.say(rid, "b")
        lab.hand.say(rid, "c", "d")
        assert await next_delta(stream) == Delta(2, 4, "bcd")
        assert time.monotonic() - began >= 1.0


async def test_many_tokens_and_endings_do_not_wait_for_the_interval(data_dir: Path) -> None:
    pace = FlushPace(interval_s=60, tokens=32)
    async with chat_lab(data_dir, by_hand=True, settings=ServiceSettings(pace=pace)) as lab:
        started = await lab.create("hi", params=GREEDY)
        stream, rid = await lab.service.subscribe(ME, started.response_id), Rid(started.response_id)
        lab.hand.say(rid, "a")
        assert (await next_delta(stream)).seq == 1
        lab.hand.say(rid, *"b" * 31)
        lab.hand.say(rid, "c")
        assert await next_delta(stream) == Delta(2, 33, "b" * 31 + "c")
        lab.hand.say(rid, "d")
        lab.hand.finish(rid)
        deltas, _ = await read_to_end(stream)
        assert deltas == [Delta(34, 34, "d")]


async def test_n1_stalled_readers_hold_little_and_lose_nothing(data_dir: Path) -> None:
    """Eight responses of 8,000 pieces; half of the readers do not read until all is over."""
    async with chat_lab(data_dir, by_hand=True) as lab:
        started = [await lab.create(f"{number}", params=GREEDY) for number in range(8)]
        streams = [await lab.service.subscribe(ME, one.response_id) for one in started]
        stalled, live = streams[:4], streams[4:]
        reading = [asyncio.ensure_future(read_to_end(stream)) for stream in live]
        most = 0
        for step in range(80):
            for one in started:
                lab.hand.say(
                    Rid(one.response_id), *(f"{step:02}{piece:02} word and word\n" for piece in range(100))
                )
            await asyncio.sleep(0)
            most = max(most, *(stream.held_chars for stream in stalled))
        for one in started:
            lab.hand.finish(Rid(one.response_id))
        texts = ["".join(delta.text for delta in (await reader)[0]) for reader in reading]
        assert len(set(texts)) == 1
        assert len(texts[0]) == 8000 * 19
        most = max(most, *(stream.held_chars for stream in stalled))
        assert most <= MAX_HELD_CHARS
        for stream in stalled:
            deltas, record = await read_to_end(stream)
            assert "".join(delta.text for delta in deltas) == texts[0]
            assert max(len(delta.text) for delta in deltas) < MAX_HELD_CHARS + 19
            assert record.output_tokens == 8000


def test_a_long_row_is_read_back_in_stretches() -> None:
    ends = tuple(range(10, 150_001, 10))
    rows = [StoredPiece(1, 1, "a", (1,)), StoredPiece(2, 15_001, "0123456789" * 15_000, ends)]
    seq, text = 0, ""
    while seq < 15_001:
        rest = [cut_after(row, seq) for row in rows if row.seq > seq]
        delta = first_stretch(rest)
        assert delta.from_seq == seq + 1
        assert 0 < len(delta.text) < READ_CHARS + 10
        seq, text = delta.seq, text + delta.text
    assert text == "a" + "0123456789" * 15_000


async def test_n3_two_tabs_one_stalled(data_dir: Path) -> None:
    async with chat_lab(data_dir, saying("tab " * 500)) as lab:
        started = await lab.create("hi")
        stalled = await lab.service.subscribe(ME, started.response_id)
        live = await lab.service.subscribe(ME, started.response_id)
        deltas, _ = await read_to_end(live)
        assert "".join(delta.text for delta in deltas) == "tab " * 500
        assert not stalled.done
        late, _ = await read_to_end(stalled)
        assert "".join(delta.text for delta in late) == "tab " * 500
        assert len(late) == 1


async def test_a_store_that_fails_pauses_streams_and_loses_nothing(data_dir: Path) -> None:
    async with chat_lab(data_dir, store_type=FailingStore) as lab:
        lab.runner.before_step = lambda plan: time.sleep(0.001)
        started = await lab.create("hi", params={**GREEDY, "max_tokens": 300})
        stream = await lab.service.subscribe(ME, started.response_id)
        while not isinstance(await stream.get(), Delta):
            pass
        FailingStore.failing = True
        try:
            await until(lambda: FailingStore.refused >= 3 and not lab.service.store_healthy)
            with pytest.raises(NotReady):
                await lab.create("more")
            shown, stored = stream.known, await lab.record(started.response_id)
            assert shown <= stored.last_seq < 300
        finally:
            FailingStore.failing = False
        deltas, record = await read_to_end(stream)
        assert record.status is ResponseStatus.INCOMPLETE
        assert lab.service.store_healthy
        whole = await lab.read(started)
        assert len(whole.text) == 300
        assert whole.text.endswith("".join(delta.text for delta in deltas))
        await lab.ask("more", params={**GREEDY, "max_tokens": 2})


async def test_a_store_that_fails_to_the_end_is_said_so(data_dir: Path) -> None:
    """Stopping does not wait for ever; the rows are settled at the next start."""
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012 - the end of the block is what raises
        async with chat_lab(data_dir, store_type=FailingStore) as lab:
            FailingStore.failing = True
            started = await lab.create("hi", params={**GREEDY, "max_tokens": 2})
    FailingStore.failing = False
    assert caught.group_contains(StoreLost)
    await lab.store.close()
    async with chat_lab(data_dir) as lab:
        assert (await lab.read(started)).record.error_code == "server_died"
