"""Bringing blocks of a prompt back from disk into the pages of a lease. Pure.

    begin -> read jobs, as buffers allow -> arrived -> PageRestore in a plan -> copied -> inserted in the tree

- Blocks are applied in order, so what is restored is always a prefix. It can be matched by others only once
  its copy is acknowledged.
- A block that does not come ends the restore there: the rest is computed.
- A lease whose pages are being copied to is let go only when the copies have ended, whatever became of
  its request.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from chatd.cache.block_tier import BLOCK_LEN, Block, BlockRead, BlockTier, ReadOutcome
from chatd.cache.costs import Costs
from chatd.cache.prefix_cache import Lease, PrefixCache
from chatd.engine.messages import TierOutcome
from chatd.engine.plan import HostBuffer, PageRestore

STUCK_S = 5.0
"""After so long without a block arriving a restore gives up and what is missing is computed."""

_OUTCOMES = {
    ReadOutcome.MISSING: TierOutcome.NOTHING,
    ReadOutcome.DAMAGED: TierOutcome.DAMAGED,
    ReadOutcome.FAILED: TierOutcome.FAILED,
}


@dataclass(slots=True, eq=False)
class Restore:
    """``blocks`` go on from block number ``first`` of ``ids``; ``start_len`` tokens were in memory.

    ``done_len`` tokens have KV in ``lease`` now. It has ended once ``ended`` is set; ``outcome`` then
    says why no more came than did.
    """

    ids: Sequence[int]
    lease: Lease
    blocks: list[Block]
    first: int
    start_len: int
    began: float
    done_len: int
    moved: float
    outcome: TierOutcome = TierOutcome.LOADED
    asked: int = 0
    applied: int = 0
    acked: int = 0
    arrived: dict[int, HostBuffer] = field(default_factory=dict)
    copied: set[int] = field(default_factory=set)
    flying: int = 0
    cancelled: bool = False
    ended: bool = False

    @property
    def target_len(self) -> int:
        """How far it will come, as far as is known."""
        return (self.first + len(self.blocks)) * BLOCK_LEN

    def cut(self, count: int, outcome: TierOutcome) -> None:
        """Only the first ``count`` blocks will come."""
        if count < len(self.blocks):
            del self.blocks[count:]
            self.outcome = outcome
        for i in [i for i in self.arrived if i >= len(self.blocks)]:
            self.arrived.pop(i).release()


@dataclass(slots=True)
class RestoreCounts:
    blocks: int = 0
    nbytes: int = 0
    failures: int = 0
    damaged: int = 0


class Restorer:
    """All restores under way. ``take_buffer`` and ``tickets`` are shared with the spills."""

    def __init__(
        self,
        cache: PrefixCache,
        tier: BlockTier,
        take_buffer: Callable[[], HostBuffer | None],
        tickets: Iterator[int],
        costs: Costs,
    ) -> None:
        self.counts = RestoreCounts()
        self._cache = cache
        self._tier = tier
        self._take_buffer = take_buffer
        self._tickets = tickets
        self._costs = costs
        self._active: list[Restore] = []
        self._reading: dict[int, tuple[Restore, int, HostBuffer]] = {}
        self._copying: dict[int, tuple[Restore, int, HostBuffer]] = {}

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def copying(self) -> int:
        return len(self._copying)

    def leases(self) -> list[Lease]:
        """Of cancelled restores whose pages are still being written."""
        return [restore.lease for restore in self._active if restore.cancelled]

    def begin(self, ids: Sequence[int], lease: Lease, blocks: list[Block], first: int, now: float) -> Restore:
        """Restore ``blocks`` into ``lease``, which ends on a page border within the first of them."""
        start_len = lease.cached_len
        restore = Restore(ids, lease, blocks, first, start_len, now, start_len, now)
        self._active.append(restore)
        return restore

    def cancel(self, restore: Restore) -> None:
        """Nobody wants it any more. Its lease is released now, or when its last copy has ended."""
        restore.cancelled = True
        restore.cut(restore.applied, restore.outcome)
        self._settle(restore, restore.moved)

    # -- each step

    def plan(self, now: float) -> list[PageRestore]:
        """Ask for blocks, and place those that have come."""
        moves: list[PageRestore] = []
        for restore in list(self._active):
            if now - restore.moved > STUCK_S:
                restore.cut(restore.applied, TierOutcome.FAILED)
            self._ask(restore)
            while restore.applied in restore.arrived:
                move = self._apply(restore)
                if move is None:
                    restore.cut(restore.applied, TierOutcome.NO_PAGES)
                    break
                moves.append(move)
            self._settle(restore, now)
        return moves

    def _ask(self, restore: Restore) -> None:
        while restore.asked < len(restore.blocks) and not restore.cancelled:
            buffer = self._take_buffer()
            if buffer is None:
                return
            ticket = next(self._tickets)
            self._reading[ticket] = restore, restore.asked, buffer
            self._tier.read(ticket, restore.blocks[restore.asked], buffer)
            restore.asked += 1

    def _apply(self, restore: Restore) -> PageRestore | None:
        i = restore.applied
        begin_len = (restore.first + i) * BLOCK_LEN
        skip = max(0, restore.start_len - begin_len) // self._cache.page_size
        num_pages = BLOCK_LEN // self._cache.page_size - skip
        if not self._cache.grow(restore.lease, num_pages):
            return None
        buffer, ticket = restore.arrived.pop(i), next(self._tickets)
        restore.applied += 1
        restore.flying += 1
        self._copying[ticket] = restore, i, buffer
        return PageRestore(ticket, tuple(restore.lease.pages[-num_pages:]), buffer, skip)

    # -- what comes back

    def arrived(self, read: BlockRead, now: float) -> None:
        restore, i, buffer = self._reading.pop(read.ticket)
        if i >= len(restore.blocks) or restore.cancelled:
            buffer.release()
        elif read.outcome is ReadOutcome.OK:
            restore.arrived[i] = buffer
            restore.moved = now
        else:
            buffer.release()
            restore.cut(i, _OUTCOMES[read.outcome])
        self.counts.damaged += read.outcome is ReadOutcome.DAMAGED
        self.counts.failures += read.outcome is ReadOutcome.FAILED

    def copied(self, ticket: int, now: float) -> bool:
        """A block is in its pages. False if the ticket is not one of these."""
        if ticket not in self._copying:
            return False
        restore, i, buffer = self._copying.pop(ticket)
        buffer.release()
        restore.flying -= 1
        restore.copied.add(i)
        restore.moved = now
        self.counts.blocks += 1
        self.counts.nbytes += self._tier.block_bytes
        while restore.acked in restore.copied:
            restore.acked += 1
            restore.done_len = (restore.first + restore.acked) * BLOCK_LEN
        self._cache.insert(restore.lease, restore.ids, restore.done_len)
        self._settle(restore, now)
        return True

    def _settle(self, restore: Restore, now: float) -> None:
        """End it if nothing of it is under way or to come."""
        if restore.ended or restore.flying or (restore.acked < len(restore.blocks) and not restore.cancelled):
            return
        restore.ended = True
        self._active.remove(restore)
        if restore.acked:
            self._costs.restore_took(restore.acked, now - restore.began)
        if restore.cancelled:
            self._cache.release(restore.lease, restore.ids, restore.done_len)
