"""One writer, several readers, cancellation anywhere, and a log that stays small (P1, P2)."""

import asyncio
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, select, text

from chatd.errors import Conflict
from chatd.ids import ResponseId
from chatd.store import log_keeper
from chatd.store.connect import driver_of
from chatd.store.schema import conversations, messages, responses
from chatd.store.store import DATABASE_NAME, Store, StoreFailure
from tests.store.scribe import NS, Scribe, asked, opened, said
from tests.support.patience import NOISE_S

MIB = 2**20


def insert(name: str) -> Callable[[Connection], str]:
    """A job that writes one conversation."""

    def job(conn: Connection) -> str:
        row = {"id": name, "namespace": NS, "title": name, "hidden": 0, "created_at": 1, "updated_at": 1}
        conn.execute(conversations.insert(), [row])
        return name

    return job


class Held:
    """A job that stops in the middle of its transaction until it is let go."""

    def __init__(self, name: str) -> None:
        self.inside = threading.Event()
        self.go = threading.Event()
        self._name = name

    def __call__(self, conn: Connection) -> None:
        insert(self._name + "-1")(conn)
        self.inside.set()
        assert self.go.wait(10)
        insert(self._name + "-2")(conn)


async def titles(store: Store) -> set[str]:
    page = await store.list_conversations(NS, limit=200)
    return {conversation.title for conversation in page.conversations}


def log_bytes(data_dir: Path) -> int:
    wal = data_dir / f"{DATABASE_NAME}-wal"
    return wal.stat().st_size if wal.exists() else 0


def reading(store: Store) -> int:
    """Connections that readers have out."""
    return store._readers._engine.pool.checkedout()  # type: ignore[attr-defined, no-any-return]


async def until(holds: Callable[[], bool], within_s: float) -> bool:
    """For what another thread does by itself and tells nobody."""
    for _ in range(round(within_s / 0.01)):
        if holds():
            return True
        await asyncio.sleep(0.01)
    return holds()


async def test_p2_a_write_cancelled_inside_its_transaction_is_stored_whole(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        held = Held("held")
        task = asyncio.create_task(store._write(held))
        await asyncio.to_thread(held.inside.wait, 10)
        waiting = asyncio.create_task(store._write(insert("queued")))
        await asyncio.sleep(0)
        task.cancel()
        waiting.cancel()
        await asyncio.wait([task, waiting])
        assert task.cancelled()
        assert waiting.cancelled()
        assert await titles(store) == set(), "nothing of a transaction is seen before its commit"
        held.go.set()
        await store._write(insert("after"))
        assert await titles(store) == {"held-1", "held-2", "queued", "after"}


async def test_p2_a_read_cancelled_inside_gives_its_connection_back(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        inside, go = threading.Event(), threading.Event()

        def job(conn: Connection) -> None:
            conn.execute(select(func.count()).select_from(messages))
            inside.set()
            assert go.wait(10)

        task = asyncio.create_task(store._read(job))
        await asyncio.to_thread(inside.wait, 10)
        assert reading(store) == 1
        task.cancel()
        await asyncio.wait([task])
        go.set()
        assert await until(lambda: reading(store) == 0, 5)


async def test_p2_a_thousand_tasks_cancelled_at_random(data_dir: Path) -> None:
    count = 1000
    dice = random.Random(2)
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        home = (await scribe.answer(asked("r", *said(("user", "q"))), "a")).conversation_id

        begun: list[int] = []

        async def work(n: int) -> None:
            kind = n % 4
            if kind == 0:
                begun.append(n)
                await store.begin_response(asked(f"r{n}", *said(("user", f"q{n}")), key=f"k{n}"))
            elif kind == 1:
                await store.conversation(NS, home)
            elif kind == 2:
                await store.create_conversation(NS, f"c{n}", system="be brief")
            else:
                await store.list_conversations(NS)

        async def cancelled(n: int) -> bool:
            task = asyncio.create_task(work(n))
            for _ in range(dice.randrange(12)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            return task.cancelled()

        outcomes = [
            outcome
            for start in range(0, count, 50)
            for outcome in await asyncio.gather(*(cancelled(n) for n in range(start, start + 50)))
        ]
        assert True in outcomes
        began = time.monotonic()
        await store.create_conversation(NS, "a writer gets in")
        assert time.monotonic() - began <= 1.0 + NOISE_S
        assert await until(lambda: reading(store) == 0, 5)
        await _check_whole(store, len(begun))


async def _check_whole(store: Store, count: int) -> None:
    """Each begun response has its two messages and its row, or nothing."""

    def counts(conn: Connection) -> tuple[int, int, int]:
        asked_count = select(func.count()).where(messages.c.role == "user")
        empty = select(func.count()).where(messages.c.status == "streaming")
        opened_count = select(func.count()).where(responses.c.status == "open")
        a, b, c = (conn.execute(query).scalar_one() for query in (asked_count, empty, opened_count))
        return a, b, c

    questions, streaming, opened_count = await store._read(counts)
    assert questions - 1 == streaming == opened_count
    assert opened_count == count, "what was asked for is stored, cancelled or not"
    report = await store.verify()
    assert report.ok, report.findings[:3]


async def test_jobs_that_wait_share_a_commit_and_fail_alone(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        held = Held("held")
        first = asyncio.create_task(store._write(held))
        await asyncio.to_thread(held.inside.wait, 10)
        states: list[int] = []

        def seen(name: str) -> Callable[[Connection], str]:
            def job(conn: Connection) -> str:
                states.append(conn.execute(text("PRAGMA data_version")).scalar_one())
                return insert(name)(conn)

            return job

        def conflict(conn: Connection) -> None:
            insert("half")(conn)
            raise Conflict("no")

        jobs = [seen("a"), conflict, seen("b"), insert("held-1"), seen("c")]
        tasks = [asyncio.create_task(store._write(job)) for job in jobs]
        await asyncio.sleep(0)
        held.go.set()
        await first
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [str(outcome) for outcome in outcomes if isinstance(outcome, str)] == ["a", "b", "c"]
        assert isinstance(outcomes[1], Conflict)
        assert isinstance(outcomes[3], StoreFailure)
        assert await titles(store) == {"held-1", "held-2", "a", "b", "c"}


async def test_a_full_disk_fails_the_batch_and_serves_again(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        await scribe.ask(asked("r1", *said(("user", "q"))))
        scribe.admit(ResponseId("r1"))
        scribe.say(ResponseId("r1"), "x" * 200_000)
        batch = scribe.batch()

        def pages(most: int) -> Callable[[Connection], None]:
            def job(conn: Connection) -> None:
                conn.execute(text(f"PRAGMA max_page_count = {most}"))

            return job

        await store._write(pages(1))
        with pytest.raises(StoreFailure, match="full"):
            await store.flush(batch)
        assert await store.pieces_after(ResponseId("r1"), 0) == []
        assert (await store.verify()).ok
        await store._write(pages(2**30))
        await store.flush(batch)
        assert len(await store.pieces_after(ResponseId("r1"), 0)) == 1
        assert (await store.verify()).ok


async def test_an_error_of_the_driver_itself_is_the_databases(data_dir: Path) -> None:
    """A flush goes to the driver past SQLAlchemy; who waits for it must not learn of other kinds of error."""

    def wrong(conn: Connection) -> None:
        driver_of(conn).execute("INSERT INTO engine_runs (id) VALUES (1)")

    async with opened(data_dir) as store:
        with pytest.raises(StoreFailure, match="could not be written: NOT NULL"):
            await store._write(wrong)
        await store._write(insert("after"))
        assert await titles(store) == {"after"}


async def test_another_process_that_holds_the_lock_is_waited_for(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        with closing(sqlite3.connect(data_dir / DATABASE_NAME, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            task = asyncio.create_task(store.create_conversation(NS, "patient"))
            done, _ = await asyncio.wait([task], timeout=0.2)
            assert not done
            other.execute("ROLLBACK")
        assert (await task).title == "patient"


async def test_readers_cannot_write(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        with pytest.raises(StoreFailure, match="readonly"):
            await store._read(insert("no"))


async def test_the_log_is_emptied_under_steady_readers(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_keeper, "LIMIT_BYTES", MIB)
    async with opened(data_dir) as store:
        store._writer._log_keeper._due_bytes = MIB
        stop = False

        async def reader() -> None:
            while not stop:
                await store.list_conversations(NS)

        readers = [asyncio.create_task(reader()) for _ in range(6)]
        largest = 0
        for n in range(200):
            await store.create_conversation(NS, f"c{n}", system="x" * 100_000)
            largest = max(largest, log_bytes(data_dir))
        stop = True
        await asyncio.gather(*readers)
        assert MIB < largest < 12 * MIB, "20 MB were written"


async def test_a_reader_that_stays_does_not_stop_the_writer(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_keeper, "PATIENCE_S", 0.1)
    async with opened(data_dir, idle_s=0.05) as store:
        store._writer._log_keeper._due_bytes = MIB
        inside, go = threading.Event(), threading.Event()

        def stay(conn: Connection) -> None:
            conn.execute(select(func.count()).select_from(messages)).all()
            inside.set()
            assert go.wait(15)

        staying = asyncio.create_task(store._read(stay))
        await asyncio.to_thread(inside.wait, 10)
        for n in range(40):
            await store.create_conversation(NS, f"c{n}", system="x" * 100_000)
        assert log_bytes(data_dir) > 3 * MIB
        assert len(await titles(store)) == 40, "the gate opens again for others"
        go.set()
        await staying
        assert await until(lambda: log_bytes(data_dir) == 0, 10)


async def test_p1_writers_and_readers(data_dir: Path) -> None:
    # On a busy machine a thread waits long for a core; a starved writer waits for whole readers.
    await _writers_and_readers(data_dir, seconds=4, p99_s=1.0 + NOISE_S)


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_p1_writers_and_readers_for_ten_minutes(data_dir: Path) -> None:
    await _writers_and_readers(data_dir, seconds=600, p99_s=0.05)


async def _writers_and_readers(data_dir: Path, *, seconds: float, p99_s: float) -> None:
    """32 streams that flush ten times a second, 8 readers that stay 0.3 s each; nothing is refused."""
    took: list[float] = []
    largest = 0
    async with opened(data_dir, idle_s=0.2) as store:
        scribe = await Scribe.begin(store)
        stop_at = time.monotonic() + seconds

        async def writer(n: int) -> None:
            nonlocal largest
            rid, turn = ResponseId(f"w{n}"), 0
            await scribe.ask(asked(rid, *said(("user", f"q{n}"))))
            scribe.admit(rid)
            while time.monotonic() < stop_at:
                turn += 1
                scribe.say(rid, "word " * 200)
                began = time.monotonic()
                await scribe.flush()
                took.append(time.monotonic() - began)
                largest = max(largest, log_bytes(data_dir))
                await asyncio.sleep(0.1)
            scribe.end(rid)
            await scribe.flush()

        def stay(conn: Connection) -> None:
            query = select(func.sum(responses.c.last_seq))
            seen = conn.execute(query).scalar_one()
            time.sleep(0.3)
            assert conn.execute(query).scalar_one() == seen, "a reader keeps its snapshot"

        async def reader(n: int) -> None:
            while time.monotonic() < stop_at:
                await store._read(stay)

        await asyncio.gather(*map(writer, range(32)), *map(reader, range(8)))
        assert await until(lambda: log_bytes(data_dir) <= 4 * MIB, 10)
        report = await store.verify()
        assert report.ok, report.findings[:3]
    took.sort()
    p99 = took[int(len(took) * 0.99)]
    assert p99 <= p99_s, f"{len(took)} commits, p50 {took[len(took) // 2]:.4f} s, p99 {p99:.4f} s"
    assert largest <= 64 * MIB
