"""The disk tier as the scheduler sees it: what it has of a prompt, moves for the next plan, endings. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, takewhile

from chatd.cache.block_tier import (
    BLOCK_LEN,
    Block,
    BlockRead,
    BlocksGone,
    BlockTier,
    BlockWritten,
    Completion,
    NoTier,
)
from chatd.cache.costs import Costs
from chatd.cache.prefix_cache import Lease, PrefixCache
from chatd.cache.radix_node import pack
from chatd.cache.restoring import Restore, Restorer
from chatd.cache.spilling import Spiller
from chatd.engine.messages import TierNote, TierOutcome
from chatd.engine.plan import HostBuffer, PageRestore, PageSpill
from chatd.ids import Namespace

SPILLS_A_STEP = 4
"""Copies beside a step that somebody waits for; else as many as there are buffers."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the disk has of a prompt beyond what memory has: ``blocks``, from number ``first``.

    They bring ``tokens`` more than there are in memory, those of a partly matched page included.
    """

    blocks: tuple[Block, ...]
    first: int
    tokens: int
    load_s: float
    compute_s: float

    def note(self, outcome: TierOutcome, restore_s: float = 0.0, elsewhere: int = 0) -> TierNote:
        load_ms, compute_ms = self.load_s * 1e3, self.compute_s * 1e3
        return TierNote(outcome, self.tokens, load_ms, compute_ms, restore_s * 1e3, elsewhere)


class Tiering:
    """Owned by the scheduler. ``write_through``: blocks are written while they are computed, not after."""

    def __init__(
        self,
        cache: PrefixCache,
        tier: BlockTier,
        take_buffer: Callable[[], HostBuffer | None],
        costs: Costs,
        *,
        write_through: bool = False,
    ) -> None:
        tickets = count(1)
        self.tier = tier
        self.costs = costs
        self.write_through = write_through
        self.spiller = Spiller(cache, tier, take_buffer, tickets)
        self.restorer = Restorer(cache, tier, take_buffer, tickets, costs)
        self.tickets = tickets
        self._cache = cache
        self._gone: dict[int, Callable[[int], None]] = {}

    @classmethod
    def off(cls, cache: PrefixCache) -> "Tiering":
        """Nothing is ever stored or found; costs are measured all the same."""
        return cls(cache, NoTier(), lambda: None, Costs())

    @property
    def on(self) -> bool:
        return self.tier.block_bytes > 0

    @property
    def has_moves(self) -> bool:
        """There is something to copy or to hear of, whether or not anybody waits for a step."""
        return self.spiller.can_go_on or self.restorer.active > 0

    @property
    def copying(self) -> bool:
        """Page copies are under way, of which the runner will tell."""
        return self.spiller.copying > 0 or self.restorer.copying > 0

    def counts(self) -> dict[str, int]:
        """Totals by their names in `EngineCounters`."""
        spills, restores = self.spiller.counts, self.restorer.counts
        return {
            "spilled_blocks": spills.blocks,
            "spilled_bytes": spills.nbytes,
            "spill_failures": spills.failures,
            "dropped_blocks": spills.dropped,
            "restored_blocks": restores.blocks,
            "restored_bytes": restores.nbytes,
            "restore_failures": restores.failures,
            "damaged_blocks": restores.damaged,
        }

    # -- prompts

    def chain(self, ids: Sequence[int], namespace: Namespace) -> list[Block]:
        """The whole blocks of a path."""
        key = pack(ids)
        return self.tier.chain(key, namespace, self._cache.shared_len(key))

    def look(
        self, ids: Sequence[int], blocks: Sequence[Block], memory_len: int, paged_len: int
    ) -> Found | None:
        """What the disk could add to ``memory_len`` tokens in memory, ``paged_len`` of them in whole pages.

        None: nothing.
        """
        first = paged_len // BLOCK_LEN
        usable = blocks[first : (len(ids) - 1) // BLOCK_LEN]
        stored = tuple(takewhile(lambda block: self.tier.has(block.key), usable))
        tokens = (first + len(stored)) * BLOCK_LEN - memory_len
        if tokens <= 0:
            return None
        costs = self.costs
        return Found(stored, first, tokens, costs.load_s(len(stored)), costs.compute_s(tokens))

    def blocks_to_load(self, found: Found) -> int:
        """How many of the blocks that were found are worth loading; the answer is to be followed."""
        return self.costs.blocks_to_load(len(found.blocks), found.tokens)

    def restore(self, ids: Sequence[int], lease: Lease, found: Found, blocks: int, now: float) -> Restore:
        """Begin to load so many of those that were found. A match inside a page is given up for it."""
        self._cache.whole_pages_only(lease)
        return self.restorer.begin(ids, lease, list(found.blocks[:blocks]), found.first, now)

    # -- each step

    def plan(self, now: float, *, idle: bool) -> tuple[list[PageSpill], list[PageRestore]]:
        """Moves for the next step, after all that could evict. ``idle``: nobody waits for the step."""
        restores = self.restorer.plan(now)
        spills = self.spiller.take_urgent()
        if not self.restorer.active:
            spills += self.spiller.plan(1 << 30 if idle else SPILLS_A_STEP)
        return spills, restores

    def copied(self, tickets: Sequence[int], now: float) -> None:
        """The runner's word that these copies have ended."""
        for ticket in tickets:
            if not self.spiller.copied(ticket):
                self.restorer.copied(ticket, now)

    def completed(self, completion: Completion, now: float) -> None:
        """The worker's word that a job has ended."""
        match completion:
            case BlockRead():
                self.restorer.arrived(completion, now)
            case BlockWritten():
                unwanted = self.spiller.written(completion)
                if unwanted is not None:
                    self.forget([[unwanted]])
            case BlocksGone():
                self._gone.pop(completion.ticket)(completion.blocks)

    # -- commands

    def forget(self, paths: list[list[Block]], then: Callable[[int], None] = lambda blocks: None) -> None:
        """Remove these paths' blocks, those on their way included; ``then`` hears how many were stored."""
        if not self.on:
            then(0)
            return
        for path in paths:
            self.spiller.do_not_want(path)
        ticket = next(self.tickets)
        self._gone[ticket] = then
        self.tier.forget(ticket, paths)

    def clear(self, namespace: Namespace | None, then: Callable[[int], None]) -> None:
        """Remove all records of a namespace, or all; ``then`` hears how many."""
        if not self.on:
            then(0)
            return
        ticket = next(self.tickets)
        self._gone[ticket] = then
        self.tier.clear(ticket, namespace)
