"""The index of stored records: what is where, what hangs under what, and what goes first.

Laws, for every stored record:

- its parent, if stored, was used at least as lately and is kept at least as long: so what goes first is
  always a leaf, and no chain is left without its beginning;
- `children` counts the stored records under a key, also while that key itself is not stored (paths are
  written from their ends).

Changed by the worker alone. Look-ups may be made from any thread: each is one look into a dict.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from chatd.cache.disk.rules import Rules
from chatd.cache.disk.segment import Segment
from chatd.cache.page_pool import require
from chatd.ids import Namespace

_SLACK = 64


@dataclass(slots=True, eq=False)
class Entry:
    """Times are whole seconds of the wall clock: a path that is read block by block is used at one time.

    ``parent`` is empty for a path's first block. ``kept_until`` is when it expires.
    """

    key: bytes
    parent: bytes
    namespace: Namespace
    segment: Segment
    slot: int
    written_at: int
    last_used: int
    kept_until: float = math.inf


class Index:
    """Entries by key. Of these `oldest` offers those of ``fingerprint``, least recently used first."""

    def __init__(self, fingerprint: bytes, rules: Rules) -> None:
        self.fingerprint = fingerprint
        self._rules = rules
        self._entries: dict[bytes, Entry] = {}
        self._children: dict[bytes, int] = {}
        self._order: list[tuple[int, int, Entry]] = []
        self._entered = 0
        self._compact_at = _SLACK
        self.uses = 0
        """How often `use` was called."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Entry | None:
        return self._entries.get(key)

    def children(self, key: bytes) -> int:
        """How many stored records have this parent."""
        return self._children.get(key, 0)

    def entries(self) -> list[Entry]:
        """All of them now. From any thread."""
        return list(self._entries.values())

    def is_expired(self, entry: Entry, now: float) -> bool:
        return entry.kept_until < now and not self._rules.is_pinned(entry.key)

    # -- changes

    def add(self, entry: Entry) -> None:
        """Enter a new record, used now."""
        require(entry.key not in self._entries, "a record is stored twice")
        self._entries[entry.key] = entry
        self.hold(entry.parent)
        entry.kept_until = entry.last_used + self._rules.ttl(entry.namespace)
        self._raise_above(entry)
        self._enter(entry)

    def remove(self, entry: Entry) -> None:
        """Take it out; what hangs under it stays."""
        require(self._entries.pop(entry.key, None) is entry, "a record is removed that is not stored")
        self.let_go(entry.parent)

    def hold(self, parent: bytes) -> None:
        """Count a child that is about to be stored: its parent must not be evicted to make room for it."""
        if parent:
            self._children[parent] = self._children.get(parent, 0) + 1

    def let_go(self, parent: bytes) -> None:
        """The child is gone, or was not stored after all."""
        if not parent:
            return
        left = self._children[parent] - 1
        if left:
            self._children[parent] = left
            return
        del self._children[parent]
        above = self._entries.get(parent)
        if above is not None:
            self._enter(above)

    def use(self, entry: Entry, now: int) -> None:
        """It is recently used, and so is all above it. Stops where that is so already."""
        self.uses += 1
        kept_until = now + self._rules.ttl(entry.namespace)
        if now > entry.last_used or kept_until > entry.kept_until:
            entry.last_used = max(now, entry.last_used)
            entry.kept_until = max(kept_until, entry.kept_until)
            self._enter(entry)
        self._raise_above(entry)

    def _raise_above(self, entry: Entry) -> None:
        above = self._entries.get(entry.parent)
        while above and (above.last_used < entry.last_used or above.kept_until < entry.kept_until):
            above.last_used = max(above.last_used, entry.last_used)
            above.kept_until = max(above.kept_until, entry.kept_until)
            entry, above = above, self._entries.get(above.parent)

    def restore(self, entries: Iterable[Entry]) -> None:
        """Enter what a start found, into an empty index."""
        for entry in entries:
            self._entries[entry.key] = entry
            self.hold(entry.parent)
        self.restore_order()

    def restore_order(self) -> None:
        """Work out again what follows from `Rules` and from when records were used: O(n log n)."""
        for entry in self._entries.values():
            entry.kept_until = entry.last_used + self._rules.ttl(entry.namespace)
        for when in (_last_used, _kept_until):
            for entry in sorted(self._entries.values(), key=when, reverse=True):
                self._raise_above(entry)
        self._order.clear()
        self._compact()

    # -- what goes first

    def oldest(self) -> Entry | None:
        """The leaf of ``fingerprint`` that was not used for longest; None if all that is stored is pinned."""
        while self._order:
            when, _, entry = self._order[0]
            if self._may_go(entry) and entry.last_used == when:
                return entry
            heappop(self._order)
        return None

    def unpinned(self, keys: Iterable[bytes]) -> None:
        """These may be evicted again."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None:
                self._enter(entry)

    def expired(self, now: float) -> Iterator[Entry]:
        """Leaves that are expired, and then what has become a leaf by their removal: remove each."""
        found = [one for one in self.entries() if self.is_expired(one, now)]
        for entry in sorted(found, key=_kept_until):
            above: Entry | None = entry
            while above and self.get(above.key) is above and not self.children(above.key):
                if not self.is_expired(above, now):
                    break
                yield above
                above = self._entries.get(above.parent)

    def _may_go(self, entry: Entry) -> bool:
        return (
            self._entries.get(entry.key) is entry
            and entry.key not in self._children
            and entry.segment.label.fingerprint == self.fingerprint
            and not self._rules.is_pinned(entry.key)
        )

    def _enter(self, entry: Entry) -> None:
        """Put it in the order if it may go. Entries that were overtaken since are dropped when met."""
        if not self._may_go(entry):
            return
        if len(self._order) >= self._compact_at:
            self._compact()
            return
        self._entered += 1
        heappush(self._order, (entry.last_used, self._entered, entry))

    def _compact(self) -> None:
        leaves = [one for one in self._entries.values() if self._may_go(one)]
        self._order = [(one.last_used, at, one) for at, one in enumerate(leaves)]
        heapify(self._order)
        self._entered = len(leaves)
        self._compact_at = 2 * len(leaves) + _SLACK

    # -- for tests

    def check(self) -> None:
        """Work everything out again from the entries."""
        counted: dict[bytes, int] = {}
        for entry in self._entries.values():
            if entry.parent:
                counted[entry.parent] = counted.get(entry.parent, 0) + 1
            above = self._entries.get(entry.parent)
            if above is not None:
                require(above.last_used >= entry.last_used, "a record was used after its parent")
                require(above.kept_until >= entry.kept_until, "a record is kept longer than its parent")
        require(counted == self._children, "children are counted wrongly")
        entered = {one.key for when, _, one in self._order if one.last_used == when}
        for entry in self._entries.values():
            require(not self._may_go(entry) or entry.key in entered, "a leaf is not in the order")


def _last_used(entry: Entry) -> int:
    return entry.last_used


def _kept_until(entry: Entry) -> float:
    return entry.kept_until
