"""The engine thread: inbox, step loop, outbox. All decisions are `Scheduler`'s.

    drain inbox -> plan = schedule() -> flight = launch(plan) -> out = commit(plan, flight.wait()) -> post(out)

With a runner that overlaps, the step that is committed is the one launched before: one step flies while
the next is scheduled and launched, and the loop waits for the device once a step. The loop sleeps on the inbox while there is nothing to do. A step that raises ends the requests in
it, not the engine; a scheduler that raises ends all requests and the engine, and says why.
"""

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from chatd.engine.messages import Abort, StepOutput, Submit
from chatd.engine.plan import Done, Flight, Runner, StepPlan
from chatd.engine.scheduler import Scheduler
from chatd.errors import EngineFailure
from chatd.ids import Rid

log = logging.getLogger(__name__)


class _Stop:
    """Inbox message: leave the loop."""


class Engine:
    """Runs a scheduler and a runner on a thread of its own.

    ``post`` is called on the engine thread, at the start and once a step at most, in order; it must not
    block.
    `submit`, `abort` and `stop` may be called from any thread and never wait for a step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        post: Callable[[StepOutput], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._post = post
        self._clock = clock
        self._inbox: SimpleQueue[Submit | Abort | _Stop] = SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="chatd-engine", daemon=True)
        self._busy_since: float | None = None
        self._failure: BaseException | None = None
        self._flying: tuple[StepPlan, Flight] | None = None

    @property
    def capacity_len(self) -> int:
        """The most tokens one request may ever hold, prompt and answer together."""
        return self._scheduler.capacity_len

    @property
    def failure(self) -> BaseException | None:
        """What ended the engine, if something did."""
        return self._failure

    def start(self) -> None:
        self._thread.start()

    def submit(self, submit: Submit) -> None:
        """Queue a request. Its updates come through ``post``."""
        self._inbox.put(submit)

    def abort(self, rid: Rid) -> None:
        """End a request at the next step boundary; no error if it is unknown or over."""
        self._inbox.put(Abort(rid))

    def stop(self, timeout: float) -> None:
        """Leave the loop after the step under way and wait for the thread up to ``timeout`` seconds.

        Requests still under way get no ending: abort them first if they should have one.
        """
        self._inbox.put(_Stop())
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
            self._post(self._scheduler.report())  # the pages there are, before any work
            while self._drain_inbox():
                self._busy_since = self._clock()
                self._step()
                if not self._scheduler.has_work:
                    self._busy_since = None
        except BaseException as error:
            # An invariant of the scheduler is broken: going on could mix up users' KV.
            log.exception("the engine stopped")
            self._failure = error
            failure = EngineFailure("The engine stopped. Restart the server; its log says why.")
            self._post(self._scheduler.give_up(failure))

    def _drain_inbox(self) -> bool:
        """Take all that is there, waiting for one if there is no work. False: leave."""
        while not self._inbox.empty() or not self._scheduler.has_work:
            match self._inbox.get():
                case Submit() as submit:
                    self._scheduler.submit(submit)
                case Abort(rid):
                    self._scheduler.abort(rid)
                case _Stop():
                    return False
        return True

    def _step(self) -> None:
        if self._scheduler.needs_ids:
            self._land()
        plan = self._scheduler.schedule()
        try:
            flight = self._runner.launch(plan) if plan.rows else Done([])
        except Exception as error:
            self._land()
            self._say(self._failed(plan, error))
            return
        if self._runner.overlaps:
            self._land()
        self._flying = plan, flight
        if not (self._runner.overlaps and plan.rows):
            self._land()

    def _land(self) -> None:
        """Wait for the step that flies, if one does, and commit it."""
        if self._flying is None:
            return
        (plan, flight), self._flying = self._flying, None
        try:
            sampled = flight.wait()
        except Exception as error:
            self._say(self._failed(plan, error))
        else:
            self._say(self._scheduler.commit(plan, sampled))

    def _failed(self, plan: StepPlan, error: Exception) -> StepOutput:
        """Whatever the device said, the requests of this step are lost; the others are not."""
        log.error("a step failed", exc_info=error)
        failure = EngineFailure(
            f"The step that computed this answer failed ({type(error).__name__}). Try again."
        )
        return self._scheduler.fail(plan, failure)

    def _say(self, out: StepOutput) -> None:
        if out.updates:
            self._post(out)
