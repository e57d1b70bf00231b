"""The order in which leaves of the tree are evicted: least recently used first."""

from heapq import heapify, heappop, heappush

from chatd.cache.radix_node import RadixNode

_SLACK = 64


class EvictionOrder:
    """A heap of leaves by tick. Entering is O(log n) amortised, and nothing is ever searched for.

    A leaf must be entered whenever it becomes evictable; its ``last_used`` must not change while it is. An
    entry whose leaf was locked, used, given children or removed since is stale and dropped when met.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, RadixNode]] = []
        self._entered = 0
        self._compact_at = _SLACK

    def enter(self, leaf: RadixNode) -> None:
        """Enter an evictable leaf. Once most entries may be stale, all stale ones are dropped."""
        if len(self._heap) >= self._compact_at:
            self._heap = [(leaf.last_used, at, leaf) for at, leaf in enumerate(self.leaves())]
            heapify(self._heap)
            self._entered = len(self._heap)
            self._compact_at = 2 * len(self._heap) + _SLACK
        self._entered += 1
        heappush(self._heap, (leaf.last_used, self._entered, leaf))

    def first(self) -> RadixNode:
        """The evictable leaf not used for longest, which stays in the order. IndexError if there is none."""
        while True:
            tick, _, leaf = self._heap[0]
            if _holds(leaf, tick):
                return leaf
            heappop(self._heap)

    def leaves(self) -> list[RadixNode]:
        """The leaves that are evictable now, each once, first come first among equal ticks."""
        return list(dict.fromkeys(leaf for tick, _, leaf in sorted(self._heap) if _holds(leaf, tick)))


def _holds(leaf: RadixNode, tick: int) -> bool:
    return leaf.evictable and leaf.last_used == tick
