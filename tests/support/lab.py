"""A scheduler and a runner stepped by hand, with every structure checked after each action."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from chatd.engine.messages import Finished, Held, Piece, Prefill, StepOutput, Submit, Update
from chatd.engine.plan import Flight, StepPlan
from chatd.engine.scheduler import Scheduler
from chatd.ids import Rid
from tests.support.engines import ChecksumRunner, PagedRunner, request, toy_scheduler
from tests.support.memory_tier import MemoryTier


@dataclass
class Outcome:
    """What one request had to say."""

    updates: list[Update] = field(default_factory=list)
    text: str = ""
    prefill: Prefill | None = None
    finished: Finished | None = None

    def take(self, update: Update) -> None:
        assert self.finished is None, "nothing follows an ending"
        self.updates.append(update)
        match update:
            case Piece(seq=seq, text=text):
                assert seq == 1 + sum(isinstance(u, Piece) for u in self.updates[:-1])
                self.text += text
            case Prefill():
                assert self.prefill is None, "buckets are reported once"
                self.prefill = update
            case Finished():
                self.finished = update

    @property
    def done(self) -> Finished:
        assert self.finished is not None
        return self.finished

    @property
    def prefilled(self) -> Prefill:
        assert self.prefill is not None
        return self.prefill

    @property
    def hit(self) -> int:
        return self.prefilled.gpu_hit


class Lab:
    """Drives ``scheduler`` over ``runner`` on the test's own thread."""

    def __init__(self, scheduler: Scheduler | None = None, runner: PagedRunner | None = None) -> None:
        self.scheduler = scheduler or toy_scheduler()
        cache = self.scheduler.cache
        self.runner = runner or ChecksumRunner(cache.total_pages, cache.page_size)
        self.outcomes: dict[Rid, Outcome] = {}
        self.answers: list[Update] = []
        """To cache commands."""
        self.last = StepOutput(())
        self.now = 0.0
        self.work = 1 << 30
        """How many jobs of the disk are done between two steps."""
        self._flying: tuple[StepPlan, Flight] | None = None

    def submit(self, submit: Submit) -> Outcome:
        self.outcomes[submit.rid] = Outcome()
        self.scheduler.submit(submit)
        self.scheduler.check()
        return self.outcomes[submit.rid]

    def abort(self, rid: str) -> None:
        self.scheduler.abort(Rid(rid))
        self.scheduler.check()

    def step(self) -> StepOutput:
        """Schedule and launch; commit what was launched, or with overlap what was launched before that."""
        self.now += 0.01
        self.disk_works()
        if self._flying and self.scheduler.needs_ids:
            self._commit()
        plan = self.scheduler.schedule(self.now)
        self.scheduler.check()
        assert sum(row.extend_len for row in plan.rows) <= self.scheduler.limits.step_tokens
        launched = plan, self.runner.launch(plan)
        if self._flying:
            self._commit()
        self._flying = launched
        if not (self.runner.overlaps and plan.rows):
            self._commit()
        self.scheduler.tiering.copied(self.runner.copies_done(wait=False), self.now)
        self.scheduler.check()
        return self.last

    def disk_works(self) -> None:
        """The worker's completions come in."""
        tier = self.scheduler.tiering.tier
        if not isinstance(tier, MemoryTier):
            return
        for completion in tier.work(self.work):
            self.scheduler.tiering.completed(completion, self.now)
            self.scheduler.check()

    def _commit(self) -> None:
        assert self._flying
        plan, flight = self._flying
        self._flying = None
        self.last = self.scheduler.commit(plan, flight.wait())
        self.scheduler.check()
        for update in self.last.updates:
            if update.rid in self.outcomes:
                self.outcomes[update.rid].take(update)
            else:
                self.answers.append(update)

    def run(self, max_steps: int = 20_000) -> None:
        """Step until nothing is left to do."""
        for _ in range(max_steps):
            if not (self.scheduler.has_work or self._writes):
                return
            self.step()
        raise AssertionError("the scheduler never came to rest")

    @property
    def _writes(self) -> bool:
        tiering = self.scheduler.tiering
        if not self.work:
            return False
        return tiering.restorer.active > 0 or (tiering.tier.accepts and tiering.spiller.queue_len > 0)

    def answer(self, submit: Submit) -> Outcome:
        outcome = self.submit(submit)
        self.run()
        return outcome

    def assert_at_rest(self) -> None:
        cache = self.scheduler.cache
        assert not self.scheduler.queues.running
        assert not self.scheduler.queues.waiting
        assert not self.scheduler.queues.restoring
        assert cache.free_pages + cache.evictable_pages + cache.pinned_pages == cache.total_pages
        for outcome in self.outcomes.values():
            assert outcome.finished is not None
            generated = [u.generated for u in outcome.updates if isinstance(u, Piece | Held)]
            assert generated == sorted(generated)


def reference(submit: Submit) -> str:
    """The same request alone on a cold server with pages to spare, in one chunk."""
    pages = 2 + (len(submit.prompt_ids) + submit.max_tokens) // 16
    lab = Lab(toy_scheduler(pages + 1, 16, step_tokens=8192, context_length=8192))
    return lab.answer(submit).text


def prompt(seed: int, length: int) -> list[int]:
    """Printable, reproducible, and different for different seeds from the first token on."""
    return [32 + (seed * 7919 + i * i * 31 + i * seed) % 95 for i in range(length)]


def counted(prefix: str, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Submit]:
    return [request(f"{prefix}{i}", ids, max_tokens) for i, ids in enumerate(prompts)]
