"""Which blocks are written to disk, and when. Pure: it makes page moves and jobs, and hears how they end.

    want (a turn ended) -> [queue, newest first] -> PageSpill in a plan -> copied -> write job -> written
    on_evict (pages go)  -------------------------> PageSpill in this plan -> copied -> ...

- From the queue a block is taken while nothing is restored, a few at a time; its path is held until the copy
  is made.
- A block that is evicted before it was stored is copied in the plan that evicts it, before anything
  overwrites its pages; if no buffer is free then, it is dropped and counted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chatd.cache.block_tier import BLOCK_LEN, Block, BlockTier, BlockWritten
from chatd.cache.prefix_cache import Hold, PrefixCache
from chatd.cache.radix_node import ID_BYTES
from chatd.cache.radix_tree import Evicted
from chatd.engine.plan import HostBuffer, PageSpill
from chatd.ids import Namespace

MOST_WANTED = 1024
"""Paths that wait to be written; beyond it the oldest are forgotten (and counted when they are evicted)."""
BLOCK_BYTES = BLOCK_LEN * ID_BYTES


@dataclass(slots=True)
class Spill:
    """A block on its way: first its pages are copied to ``buffer``, then that is written."""

    block: Block
    buffer: HostBuffer
    hold: Hold | None


@dataclass(slots=True)
class _Wanted:
    namespace: Namespace
    key: bytes
    blocks: list[Block] | None = None


@dataclass(slots=True)
class SpillCounts:
    blocks: int = 0
    nbytes: int = 0
    failures: int = 0
    dropped: int = 0


class Spiller:
    """``take_buffer`` and ``tickets`` are shared with the restores."""

    def __init__(
        self,
        cache: PrefixCache,
        tier: BlockTier,
        take_buffer: Callable[[], HostBuffer | None],
        tickets: Iterator[int],
    ) -> None:
        self.counts = SpillCounts()
        self._cache = cache
        self._tier = tier
        self._take_buffer = take_buffer
        self._tickets = tickets
        self._wanted: dict[object, _Wanted] = {}
        self._copying: dict[int, Spill] = {}
        self._writing: dict[int, Block] = {}
        self._under_way: set[bytes] = set()
        self._unwanted: set[bytes] = set()
        self._urgent: list[PageSpill] = []

    @property
    def queue_len(self) -> int:
        """Paths that wait, and blocks on their way."""
        return len(self._wanted) + len(self._copying) + len(self._writing)

    @property
    def waits(self) -> bool:
        """Something is to be written that nothing is done about yet."""
        return bool(self._wanted)

    @property
    def can_go_on(self) -> bool:
        """Something waits and could be written now."""
        return bool(self._wanted) and self._tier.accepts

    @property
    def copying(self) -> int:
        return len(self._copying)

    @property
    def writing(self) -> int:
        return len(self._writing)

    # -- what should be stored

    def want(self, of: object, namespace: Namespace, key: bytes) -> None:
        """Store the whole blocks of a packed path, before earlier ones. ``of`` has one path at a time."""
        if not self._tier.block_bytes:
            return
        self._wanted.pop(of, None)
        self._wanted[of] = _Wanted(namespace, key)
        while len(self._wanted) > MOST_WANTED:
            del self._wanted[next(iter(self._wanted))]

    def want_all(self) -> int:
        """Store whatever is cached, most recently used first; how many blocks that is, those on their way
        included.
        """
        leaves = [node for node in self._cache.nodes() if not node.children]
        for leaf in sorted(leaves, key=lambda node: node.last_used):
            self.want(leaf, leaf.namespace, self._cache.key_to(leaf))
        blocks = {block.key for wanted in self._wanted.values() for block in self._blocks(wanted)}
        return sum(not self._tier.has(key) for key in blocks | self._under_way)

    def do_not_want(self, blocks: list[Block]) -> None:
        """These are forgotten: what of them is on its way is to go again once it is written."""
        gone = {block.key for block in blocks}
        self._unwanted |= gone & self._under_way
        for of, wanted in list(self._wanted.items()):
            if not gone.isdisjoint(block.key for block in self._blocks(wanted)):
                del self._wanted[of]

    # -- plans

    def plan(self, limit: int) -> list[PageSpill]:
        """At most ``limit`` copies of wanted blocks for the next step."""
        spills: list[PageSpill] = []
        while self._wanted and self._tier.accepts and len(spills) < limit:
            of = next(reversed(self._wanted))
            wanted = self._wanted[of]
            found = self._next(wanted)
            if found is None:
                self._wanted.pop(of)
                continue
            buffer = self._take_buffer()
            if buffer is None:
                self._cache.let_go(found[1])
                break
            block, hold = found
            spills.append(self._begin(block, hold.pages[-self._block_pages :], buffer, hold))
        return spills

    def take_urgent(self) -> list[PageSpill]:
        """Copies of what this plan's evictions push out."""
        urgent, self._urgent = self._urgent, []
        return urgent

    def on_evict(self, evicted: Evicted) -> None:
        """Save the whole blocks that these pages belong to, if they are not stored."""
        size = self._cache.page_size
        first_gone = (len(evicted.path) - len(evicted.pages)) * size
        end_len = len(evicted.key) // ID_BYTES // BLOCK_LEN * BLOCK_LEN
        if first_gone >= end_len:
            return
        key = evicted.key[: end_len * ID_BYTES]
        blocks = self._tier.chain(key, evicted.namespace, self._cache.shared_len(key))
        for i in range(first_gone // BLOCK_LEN, len(blocks)):
            if not self._is_stored(blocks[i]):
                pages = evicted.path[i * self._block_pages : (i + 1) * self._block_pages]
                self._save(blocks[i], pages)

    def _save(self, block: Block, pages: tuple[int, ...]) -> None:
        buffer = self._take_buffer() if self._tier.accepts else None
        if buffer is None:
            self.counts.dropped += 1
        else:
            self._urgent.append(self._begin(block, pages, buffer, None))

    # -- how they end

    def copied(self, ticket: int) -> bool:
        """False if it is not one of these."""
        spill = self._copying.pop(ticket, None)
        if spill is None:
            return False
        if spill.hold is not None:
            self._cache.let_go(spill.hold)
        self._writing[ticket] = spill.block
        self._tier.write(ticket, spill.block, spill.buffer)
        return True

    def written(self, done: BlockWritten) -> Block | None:
        """The block, if it was stored but is to be forgotten again."""
        block = self._writing.pop(done.ticket)
        self._under_way.discard(block.key)
        unwanted = block.key in self._unwanted
        self._unwanted.discard(block.key)
        if not done.ok:
            self.counts.failures += 1
            return None
        self.counts.blocks += 1
        self.counts.nbytes += self._tier.block_bytes
        return block if unwanted else None

    # -- inside

    @property
    def _block_pages(self) -> int:
        return BLOCK_LEN // self._cache.page_size

    def _begin(
        self, block: Block, pages: tuple[int, ...], buffer: HostBuffer, hold: Hold | None
    ) -> PageSpill:
        ticket = next(self._tickets)
        self._copying[ticket] = Spill(block, buffer, hold)
        self._under_way.add(block.key)
        return PageSpill(ticket, pages, buffer)

    def _next(self, wanted: _Wanted) -> tuple[Block, Hold] | None:
        """Its first block that is not stored, with its path held. None: nothing is left to be done."""
        for i, block in enumerate(self._blocks(wanted)):
            if not self._is_stored(block):
                hold = self._cache.hold(wanted.key[: (i + 1) * BLOCK_BYTES], wanted.namespace)
                return None if hold is None else (block, hold)
        return None

    def _blocks(self, wanted: _Wanted) -> list[Block]:
        if wanted.blocks is None:
            shared_len = self._cache.shared_len(wanted.key)
            wanted.blocks = self._tier.chain(wanted.key, wanted.namespace, shared_len)
        return wanted.blocks

    def _is_stored(self, block: Block) -> bool:
        return block.key in self._under_way or self._tier.has(block.key)
