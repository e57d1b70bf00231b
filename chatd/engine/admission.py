"""Who starts: twins, pages, restores, and what a request found when it started. Pure.

    waiting --admit--> running
           \\--admit--> restoring --end_restores--> running

- A request waits while an older one is computing, or loading, a prefix that it could share (twins).
- It needs the pages of what it has and one token more; one that was preempted those of all it may become.
- If the disk has more of its prompt than memory, and loading that is estimated to be faster than computing
  it, the request restores first: it holds its lease and has no row until it runs.
"""

from chatd.cache.block_tier import BLOCK_LEN
from chatd.cache.prefix_cache import Lease, PrefixCache
from chatd.cache.restoring import Restore
from chatd.cache.tiering import Tiering
from chatd.engine.limits import SchedulerLimits
from chatd.engine.messages import Prefill, Queued, Restoring, TierNote, TierOutcome
from chatd.engine.outbox import Outbox
from chatd.engine.queues import Queues
from chatd.engine.request import Req, common_prefix_len


class Admission:
    """A part of the scheduler, over its queues and its cache."""

    def __init__(
        self, queues: Queues, cache: PrefixCache, tiering: Tiering, limits: SchedulerLimits, out: Outbox
    ) -> None:
        self._queues = queues
        self._cache = cache
        self._tiering = tiering
        self._limits = limits
        self._out = out

    @property
    def is_full(self) -> bool:
        return len(self._queues.active) >= self._limits.max_running

    def waits_for_twin(self, req: Req) -> bool:
        """Is an older request bringing whole pages that this one would find by waiting?"""
        if not self._cache.enabled:
            return False
        page_size = self._cache.page_size
        for other in self._queues.active:
            if other.submit.namespace != req.submit.namespace or other.remaining_len <= 1:
                continue
            common = common_prefix_len(other.ids, req.ids) // page_size * page_size
            if common > other.kv_len and common > self._cache.match_len(req.ids, req.submit.namespace):
                return True
        return False

    def admit(self, req: Req, now: float) -> bool:
        """Lease what memory has of ``req`` and make it running or restoring, if it can have its pages."""
        lease = self._cache.acquire(req.ids, req.submit.namespace)
        if not self._affordable(req, lease):
            self._cache.release(lease, req.ids, lease.cached_len)
            return False
        req.position = 0
        if req.queue_s is None:
            req.queue_s = max(0.0, now - req.came)
        if not self._try_restore(req, lease, now):
            self._run(req, lease)
        return True

    def end_restores(self, now: float) -> None:
        """Those that have all that will come are going to run."""
        for req in list(self._queues.restoring):
            restore = req.restore
            assert restore is not None
            if restore.acked and restore.done_len != req.restored_len:
                req.restored_len = restore.done_len
                self._out.say(Restoring(req.rid, req.restored_len, restore.target_len))
            if restore.ended:
                self._end_restore(req, restore, now)

    def report_positions(self) -> None:
        for position, req in enumerate(self._queues.waiting, 1):
            if req.position != position:
                req.position = position
                self._out.say(Queued(req.rid, position))

    # -- inside

    def _affordable(self, req: Req, lease: Lease) -> bool:
        """Do free and evictable pages cover it and all that is active?"""
        to_the_limit = req.preemptions > 0
        leases = [(other, other.lease) for other in self._queues.active if other.lease is not None]
        wanted = sum(
            max(0, self._pages(self._reserved_len(one, to_the_limit)) - len(held.pages))
            for one, held in [(req, lease), *leases]
        )
        return wanted <= self._cache.free_pages + self._cache.evictable_pages

    def _reserved_len(self, req: Req, to_the_limit: bool) -> int:
        return self._limits.most_len(req) if to_the_limit else len(req.ids) + 1

    def _pages(self, length: int) -> int:
        return -(-length // self._cache.page_size)

    def _run(self, req: Req, lease: Lease) -> None:
        had_len = req.kv_len
        self._queues.move(req, self._queues.running)
        req.take(lease)
        self._account(req, had_len)

    def _try_restore(self, req: Req, lease: Lease, now: float) -> bool:
        if not self._tiering.on:
            return False
        if req.blocks is None:
            req.blocks = self._tiering.chain(req.ids, req.submit.namespace)
        req.found = self._tiering.look(req.ids, req.blocks, lease.cached_len, lease.matched_len)
        blocks = self._tiering.blocks_to_load(req.found) if req.found is not None else 0
        if req.found is None or not blocks:
            return False
        self._queues.move(req, self._queues.restoring)
        req.lease, req.restored_len = lease, 0
        req.restore = self._tiering.restore(req.ids, lease, req.found, blocks, now)
        return True

    def _end_restore(self, req: Req, restore: Restore, now: float) -> None:
        lease = restore.lease
        lease.cached_len = restore.done_len
        req.disk_hit = restore.done_len - restore.start_len
        req.restore_s = now - restore.began
        req.outcome = restore.outcome
        if restore.outcome is TierOutcome.LOADED and req.found and req.disk_hit < req.found.tokens:
            req.outcome = TierOutcome.CHEAPER
        self._run(req, lease)
        req.restore = None

    def _account(self, req: Req, had_len: int) -> None:
        """Report the prompt's buckets, the first time; later what has to be computed again."""
        counts = self._out.counts
        if req.admitted:
            again = max(0, had_len - req.kv_len)
            req.recomputed += again
            counts["recomputed"] += again
            return
        req.admitted = True
        gpu_hit, computed = req.kv_len - req.disk_hit, req.prompt_len - req.kv_len
        counts["prompt_tokens"] += req.prompt_len
        counts["gpu_hit"] += gpu_hit
        counts["disk_hit"] += req.disk_hit
        counts["computed"] += computed
        if self._tiering.on:
            counts["disk_asked"] += req.prompt_len - gpu_hit
            self._tiering.tier.use((req.blocks or [])[: req.kv_len // BLOCK_LEN])
        buckets = (req.prompt_len, gpu_hit, req.disk_hit, computed)
        self._out.say(Prefill(req.rid, *buckets, self._note(req), req.queue_s or 0.0))

    def _note(self, req: Req) -> TierNote:
        elsewhere = self._cache.elsewhere_len(req.ids, req.submit.namespace)
        if req.found is not None:
            return req.found.note(req.outcome or TierOutcome.CHEAPER, req.restore_s, elsewhere)
        outcome = TierOutcome.NOTHING if self._tiering.on else TierOutcome.OFF
        return TierNote(outcome, elsewhere=elsewhere)
