"""Schedulers with a disk tier in memory, for tests."""

from chatd.cache.costs import Costs
from chatd.cache.prefix_cache import PrefixCache
from chatd.cache.tiering import Tiering
from chatd.engine.cache_desk import CacheDesk
from chatd.engine.messages import CacheCommand, StepOutput
from chatd.engine.scheduler import Scheduler, SchedulerLimits
from chatd.text.answer import AnswerText
from tests.support.engines import ChecksumRunner, toy_tokenizer
from tests.support.lab import Lab
from tests.support.memory_tier import MemoryTier

BLOCK_BYTES = 64 * 8


class TierLab(Lab):
    """A lab whose scheduler has a `MemoryTier`. Another one on the same ``tier`` is a restarted server."""

    def __init__(
        self,
        num_pages: int = 64,
        page_size: int = 16,
        *,
        tier: MemoryTier | None = None,
        step_tokens: int = 64,
        max_running: int = 16,
        overlaps: bool = False,
        write_through: bool = False,
        num_buffers: int = 8,
        costs: Costs | None = None,
        evict: bool = True,
    ) -> None:
        self.tier = tier or MemoryTier(BLOCK_BYTES)
        runner = ChecksumRunner(num_pages, page_size, overlaps=overlaps, num_buffers=num_buffers)
        # Loading is nearly free unless a test says otherwise.
        costs = costs or Costs(load_block_s=1e-6, compute_token_s=1.0)
        cache = PrefixCache(num_pages, page_size)
        self.tiering = Tiering(cache, self.tier, runner.take_buffer, costs, write_through=write_through)
        if evict:
            cache.on_evict = self.tiering.spiller.on_evict
        tokenizer = toy_tokenizer()
        scheduler = Scheduler(
            cache,
            SchedulerLimits(step_tokens, max_running, 4096),
            lambda stop: AnswerText(tokenizer, stop),
            tokenizer.special_ids,
            self.tiering,
        )
        super().__init__(scheduler, runner)
        self.desk = CacheDesk(scheduler)

    def step(self) -> StepOutput:
        out = super().step()
        self.desk.tend()
        self.scheduler.check()
        return out

    def take(self, command: CacheCommand) -> None:
        self.desk.take(command, self.now)
        self.scheduler.check()

    def assert_at_rest(self) -> None:
        assert not self.runner.buffers_out
        super().assert_at_rest()

    def restarted(self, num_pages: int = 64, page_size: int = 16, **options: object) -> "TierLab":
        """A new server over the same disk."""
        return TierLab(num_pages, page_size, tier=self.tier, **options)  # type: ignore[arg-type]
