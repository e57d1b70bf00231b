"""The one thread that touches the disk tier's files: it carries out jobs and posts completions."""

import threading
from collections.abc import Callable
from functools import partial
from typing import assert_never

from chatd.cache.block_tier import BlockRead, BlocksGone, BlockWritten, Completion, ReadOutcome
from chatd.cache.disk.failures import Suspension
from chatd.cache.disk.housekeeping import Housekeeping
from chatd.cache.disk.jobs import Call, Clear, Forget, Job, Jobs, Read, Use, Write
from chatd.cache.disk.rates import Rate
from chatd.cache.disk.room import NoRoom
from chatd.cache.disk.store import Store

Post = Callable[[Completion], None]


class Worker:
    """Owns ``store`` from `start` to the end of `join`. Every job with a ticket is answered by one post.

    ``failure`` is a fault of ours that ended the tier's work; from then on jobs are answered as failed,
    and the server goes on without the tier.
    """

    def __init__(
        self, store: Store, keeping: Housekeeping, jobs: Jobs, writing: Suspension, timer: Callable[[], float]
    ) -> None:
        self._store = store
        self._keeping = keeping
        self._jobs = jobs
        self._writing = writing
        self._timer = timer
        self._post: Post = _nobody
        self._write_until = float("inf")
        self._thread = threading.Thread(target=self._main, name="chatd-disk", daemon=True)
        self.read_rate = Rate()
        self.write_rate = Rate()
        self.failure: Exception | None = None

    def start(self, post: Post) -> None:
        self._post = post
        self._thread.start()

    def refuse(self, job: Job) -> None:
        """Answer a job that came after `stop`, as failed, on the caller's thread."""
        self._fail(job)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_me(self) -> bool:
        """Whether the caller is the worker."""
        return threading.current_thread() is self._thread

    def stop(self, budget_s: float) -> None:
        """Take no more jobs, and finish those that wait; writes only for ``budget_s``, later ones fail."""
        self._write_until = self._timer() + budget_s
        self._jobs.close()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end. False if a call to the disk did not come back in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        wait_s = 0.0
        while True:
            job = self._jobs.take(wait_s)
            if job is not None:
                self._guard(partial(self._carry_out, job), otherwise=partial(self._fail, job))
                wait_s = 0.0
            elif self._jobs.closing:
                self._guard(self._keeping.finish, otherwise=_nothing)
                return
            elif self.failure is None:
                wait_s = self._idle()
            else:
                wait_s = 3600.0

    def _guard(self, what: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """Nobody may wait for ever for an answer because of a fault of ours: it becomes ``failure``."""
        if self.failure is not None:
            otherwise()
            return
        try:
            what()
        except Exception as error:
            self.failure = error
            otherwise()

    def _idle(self) -> float:
        waits: list[float] = []
        self._guard(lambda: waits.append(self._keeping.step()), otherwise=_nothing)
        return waits[0] if waits else 0.0

    # -- jobs

    def _carry_out(self, job: Job) -> None:
        match job:
            case Read():
                self._read(job)
            case Write():
                self._write(job)
            case Use(keys):
                self._store.use(keys)
            case Forget(ticket, paths):
                self._gone(ticket, self._store.forget(paths))
            case Clear(ticket, namespace):
                self._gone(ticket, self._store.clear(namespace))
            case Call(run):
                run()
            case _:
                assert_never(job)

    def _fail(self, job: Job) -> None:
        match job:
            case Read(ticket):
                self._post(BlockRead(ticket, ReadOutcome.FAILED, 0.0))
            case Write(ticket):
                job.buffer.release()
                self._post(BlockWritten(ticket, False, 0.0))
            case Forget(ticket) | Clear(ticket):
                self._post(BlocksGone(ticket, 0))
            case Call():
                job.fail()
            case Use():
                pass

    def _read(self, job: Read) -> None:
        began = self._timer()
        outcome = self._store.fetch(job.block, job.buffer.view)
        ended = self._timer()
        if outcome is ReadOutcome.OK:
            took_s = ended - job.handed_in
            self.read_rate = self.read_rate.measured(self._store.body_len, ended - began, took_s)
        self._post(BlockRead(job.ticket, outcome, ended - job.handed_in))

    def _write(self, job: Write) -> None:
        began = self._timer()
        may = not job.refused and not self._writing.active and began < self._write_until
        stored_before = self._store.events["stored"]
        ok = may and self._put(job)
        ended = self._timer()
        if self._store.events["stored"] > stored_before:
            took_s = ended - job.handed_in
            self.write_rate = self.write_rate.measured(self._store.body_len, ended - began, took_s)
        job.buffer.release()
        self._post(BlockWritten(job.ticket, ok, ended - job.handed_in))
        self._keeping.after_write()

    def _put(self, job: Write) -> bool:
        try:
            self._store.put(job.block, job.buffer.view)
        except OSError as error:
            self._writing.failed(self._store.failures.add("write", error))
            return False
        except NoRoom:
            self._store.failures.counts["write NoRoom"] += 1
            return False
        self._writing.succeeded()
        return True

    def _gone(self, ticket: int, blocks: int) -> None:
        self._keeping.soon()
        self._post(BlocksGone(ticket, blocks))


def _nobody(completion: Completion) -> None:
    raise AssertionError("nobody listens yet")


def _nothing() -> None:
    pass
