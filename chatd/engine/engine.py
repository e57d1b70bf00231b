"""The engine thread: inbox, step loop, outbox. All decisions are `Scheduler`'s.

    drain inbox -> plan = schedule() -> flight = launch(plan)
                -> out = commit(plan, flight.wait()) -> post(out)

With a runner that overlaps, the step that is committed is the one launched before: one step flies while
the next is scheduled and launched, and the loop waits for the device once a step. The disk worker's
completions come through the inbox too. The loop sleeps on the inbox while there is nothing to do. A step
that raises ends the requests in it, not the engine; a scheduler that raises ends all requests and the
engine, and says why.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from chatd.cache.block_tier import BlockRead, BlocksGone, BlockWritten, Completion
from chatd.engine.cache_desk import CacheDesk
from chatd.engine.messages import Abort, CacheCommand, StepOutput, Submit
from chatd.engine.plan import Done, Flight, Runner, StepPlan
from chatd.engine.scheduler import Scheduler
from chatd.errors import EngineFailure
from chatd.ids import Rid

log = logging.getLogger(__name__)

WAKE_S = 1.0
"""How often a loop that waits for the disk looks whether it has waited too long, or may write again."""

WriteProgress = Callable[[int, int], None]
"""Told how many blocks are written and how many there are to write. Called on the engine thread."""


@dataclass(frozen=True, slots=True)
class _Came:
    """Inbox message: a request, and the second when it was handed in."""

    submit: Submit
    at: float


@dataclass(frozen=True, slots=True)
class _Stop:
    """Inbox message: leave the loop, after writing what is cached for at most ``write_s`` seconds."""

    write_s: float
    progress: WriteProgress


class Engine:
    """Runs a scheduler and a runner on a thread of its own.

    ``post`` is called on the engine thread, in order: at the start, once a step at most, and when an idle
    engine has written to disk. It must not block. `submit`, `abort`, `send` and `stop` may be called from
    any thread and never wait for a step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        post: Callable[[StepOutput], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._tiering = scheduler.tiering
        self._desk = CacheDesk(scheduler)
        self._runner = runner
        self._post = post
        self._clock = clock
        self._inbox: SimpleQueue[_Came | Abort | CacheCommand | Completion | _Stop] = SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="chatd-engine", daemon=True)
        self._busy_since: float | None = None
        self._failure: BaseException | None = None
        self._flying: tuple[StepPlan, Flight] | None = None
        self._landed_at = 0.0
        self._starved = False
        self._unsaid = False

    @property
    def capacity_len(self) -> int:
        """The most tokens one request may ever hold, prompt and answer together."""
        return self._scheduler.capacity_len

    @property
    def failure(self) -> BaseException | None:
        """What ended the engine, if something did."""
        return self._failure

    def start(self) -> None:
        self._tiering.tier.start(self._inbox.put)
        self._thread.start()

    def submit(self, submit: Submit) -> None:
        """Queue a request. Its updates come through ``post``."""
        self._inbox.put(_Came(submit, self._clock()))

    def abort(self, rid: Rid) -> None:
        """End a request at the next step boundary; no error if it is unknown or over."""
        self._inbox.put(Abort(rid))

    def send(self, command: CacheCommand) -> None:
        """Have a command carried out at the next step boundary. Its answer comes through ``post``."""
        self._inbox.put(command)

    def stop(
        self, timeout: float, *, write_s: float = 0.0, progress: WriteProgress = lambda done, total: None
    ) -> None:
        """Leave the loop after the step under way and wait for the thread up to ``timeout`` seconds.

        Before it leaves, what is cached and not on disk is written there, newest first, for at most
        ``write_s`` seconds. Requests still under way get no ending: abort them first if they should have one.
        """
        self._inbox.put(_Stop(write_s, progress))
        if self._thread.is_alive():
            self._thread.join(timeout)

    def stalled_for(self) -> float:
        """Seconds since the loop last came round while it had work; 0.0 when it is idle."""
        if self._failure is not None:
            return float("inf")
        since = self._busy_since
        return 0.0 if since is None else max(0.0, self._clock() - since)

    def _main(self) -> None:
        try:
            self._report()  # the pages there are, before any work
            while (stop := self._drain_inbox()) is None:
                self._busy_since = self._landed_at = self._clock()
                self._step()
                if not self._scheduler.has_work or self._starved:
                    self._busy_since = None
            self._write_all(stop)
        except BaseException as error:
            # An invariant of the scheduler is broken: going on could mix up users' KV.
            log.exception("the engine stopped")
            self._failure = error
            failure = EngineFailure("The engine stopped. Restart the server; its log says why.")
            self._post(self._scheduler.give_up(failure))

    # -- the inbox

    def _drain_inbox(self) -> _Stop | None:
        """Take all that is there, waiting for one if there is nothing to do. Not None: leave."""
        while not self._inbox.empty() or self._nothing_to_do():
            if self._unsaid and self._inbox.empty():
                self._report()
            try:
                message = self._inbox.get(timeout=self._patience_s)
            except Empty:
                return None
            self._starved = False
            if isinstance(message, _Stop):
                return message
            self._take(message)
        return None

    @property
    def _patience_s(self) -> float | None:
        """How long to sleep if nobody says anything: a full disk does not say when it has room again."""
        return WAKE_S if self._scheduler.has_work or self._tiering.spiller.waits else None

    def _nothing_to_do(self) -> bool:
        return self._starved or not (self._scheduler.has_work or self._tiering.has_moves)

    def _take(self, message: _Came | Abort | CacheCommand | Completion) -> None:
        match message:
            case _Came(submit, at):
                self._scheduler.submit(submit, at)
            case Abort(rid):
                self._scheduler.abort(rid)
            case BlockRead() | BlockWritten() | BlocksGone():
                self._tiering.completed(message, self._clock())
                self._unsaid = True
            case _:
                self._desk.take(message, self._clock())

    # -- a step

    def _step(self) -> None:
        if self._scheduler.needs_ids:
            self._land()
        plan = self._plan()
        try:
            flight = Done([]) if plan.is_empty else self._runner.launch(plan)
        except Exception as error:
            self._land()
            self._say(self._failed(plan, error))
            return
        if self._runner.overlaps:
            self._land()
        self._flying = plan, flight
        if not (self._runner.overlaps and plan.rows):
            self._land()
        self._copies_done(wait=plan.is_empty)
        # Nothing was launched and nobody was heard of: until the disk's next word there is nothing to do.
        self._starved = plan.is_empty and not self._tiering.copying and not self._scheduler.can_run

    def _plan(self) -> StepPlan:
        plan = self._scheduler.schedule(self._clock())
        self._desk.tend()
        return plan

    def _land(self) -> None:
        """Wait for the step that flies, if one does, and commit it."""
        if self._flying is None:
            return
        (plan, flight), self._flying = self._flying, None
        try:
            sampled = flight.wait()
        except Exception as error:
            self._say(self._failed(plan, error))
            return
        now = self._clock()
        self._scheduler.step_took(plan, now - self._landed_at)
        self._landed_at = now
        self._say(self._scheduler.commit(plan, sampled))

    def _copies_done(self, *, wait: bool) -> None:
        if self._tiering.copying:
            self._tiering.copied(self._runner.copies_done(wait=wait), self._clock())

    def _failed(self, plan: StepPlan, error: Exception) -> StepOutput:
        """Whatever the device said, the requests of this step are lost; the others are not."""
        log.error("a step failed", exc_info=error)
        failure = EngineFailure(
            f"The step that computed this answer failed ({type(error).__name__}). Try again."
        )
        return self._scheduler.fail(plan, failure)

    def _say(self, out: StepOutput) -> None:
        if out.updates:
            self._unsaid = False
            self._post(out)

    def _report(self) -> None:
        """Counters moved although there was no step that had something to say."""
        self._unsaid = False
        self._post(self._scheduler.report())

    # -- the end

    def _write_all(self, stop: _Stop) -> None:
        """Write what is cached, most recently used first, until all is written or the time is up."""
        self._land()
        until = self._clock() + stop.write_s
        spiller = self._tiering.spiller
        done, total = spiller.counts.blocks, spiller.want_all()
        while total and spiller.queue_len and (left := until - self._clock()) > 0:
            plan = self._plan()
            if not plan.is_empty:
                self._runner.launch(plan).wait()
            self._copies_done(wait=plan.is_empty)
            try:
                message = self._inbox.get(timeout=left) if plan.is_empty else self._inbox.get_nowait()
            except Empty:
                continue
            if isinstance(message, BlockRead | BlockWritten | BlocksGone):
                self._tiering.completed(message, self._clock())
            stop.progress(spiller.counts.blocks - done, total)
        self._report()
