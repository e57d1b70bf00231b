"""Reading: a few connections, each transaction short, and a gate that the writer can close.

SQLite can empty its write-ahead log only in a moment when nobody reads from it. With enough readers
such a moment never comes by itself and the log grows without bound, so the writer makes one.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from chatd.store.errors import StoreFailure

T = TypeVar("T")


class ReadGate:
    """Counts the readers inside. While it is shut, new ones wait before they begin."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._shut = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._shut)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1

    def shut(self) -> bool:
        """Keeps new readers out; True once none is left inside. Never waits; call it again."""
        with self._changed:
            self._shut = True
            return self._readers == 0

    def open(self) -> None:
        with self._changed:
            self._shut = False
            self._changed.notify_all()


class Readers:
    """Runs read jobs on threads of their own, each in one transaction on one snapshot."""

    def __init__(self, engine: Engine, gate: ReadGate, threads: int) -> None:
        self._engine = engine
        self._gate = gate
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="chatd-reader")

    async def run(self, job: Callable[[Connection], T]) -> T:
        """What ``job`` returns. Cancelled, the job ends by itself and gives its connection back."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read, job)

    def _read(self, job: Callable[[Connection], T]) -> T:
        try:
            with self._gate.reading(), self._engine.connect() as connection, connection.begin():
                return job(connection)
        except DBAPIError as error:
            raise StoreFailure(f"the database could not be read: {error.orig}") from error

    async def close(self) -> None:
        """Waits for the jobs under way, then closes the connections."""
        await asyncio.to_thread(self._pool.shutdown)
        self._engine.dispose()
