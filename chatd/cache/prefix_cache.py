"""Leases of KV pages for prompts: the one door to the page pool and the radix tree.

Who owns the pages of a lease, by half-open intervals of tokens; all borders but two are page boundaries::

    0           matched_len      tree_len             kv_len             capacity
    [--- tree, ---)[--- tree, ---)[--- request, -------)[--- request, ---)
        matched        inserted        KV written           still empty
                 ^ cached_len: matched_len and, where slots were copied, the part of a page after it

- Left of ``tree_len`` pages are the tree's and may be in many leases at once. They stay because the lease
  holds ``node``, whose path they are. Right of it they are this request's own and in no other list.
- `grow` moves ``capacity``. `insert` moves ``tree_len`` over whole written pages: each becomes the tree's or,
  where the tree has that page already, is freed and its place taken by the tree's.
- `release` does what `insert` does, gives the tree a partly written last page as a tail or frees it, frees
  what is right of that and lets ``node`` go. So every page the request ever took ends as the tree's or free.
- `purge` detaches what lies in [matched_len, tree_len), frees all right of it and lets ``node`` go.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from chatd.cache.page_pool import PagePool, require
from chatd.cache.radix_node import ID_BYTES, SHARED, RadixNode, common_len, crossing_floor, pack
from chatd.cache.radix_tree import Evicted, Match, RadixTree
from chatd.engine.plan import PageCopy
from chatd.ids import Namespace


def drop(evicted: Evicted) -> None:
    """What becomes of evicted pages: nothing, they are forgotten."""


@dataclass(slots=True, eq=False)
class Lease:
    """A pinned prefix plus own pages, for one running request. Changed by its `PrefixCache` only.

    ``pages`` is the page-table row, valid until the next call with this lease. ``cached_len`` tokens have KV
    from the start, once ``copy``, if there is one, is carried out: before the first forward pass and before
    the next insert, release or purge of this lease (until then its source is safe). The rest is the cache's.
    """

    namespace: Namespace
    pages: list[int]
    cached_len: int
    node: RadixNode
    matched_len: int
    tree_len: int
    shareable_len: int
    writers: frozenset[int]
    serial: int
    copy: PageCopy | None = None
    source: RadixNode | None = field(default=None, repr=False)
    tainted: bool = False
    released: bool = False


@dataclass(slots=True, eq=False)
class Hold:
    """Keeps the pages of a path in the tree, for reading them. Ended by `PrefixCache.let_go`."""

    node: RadixNode
    pages: tuple[int, ...]


class PrefixCache:
    """Pages for prompts, reusing the KV of what was computed before under the same namespace.

    Not thread-safe: it belongs to the engine thread. With ``enabled=False`` nothing is ever matched or kept.
    ``on_evict`` decides what becomes of pages pushed out by pressure; it must not call back into the cache.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        enabled: bool = True,
        on_evict: Callable[[Evicted], None] = drop,
    ) -> None:
        self._pool = PagePool(num_pages, page_size)
        self._tree = RadixTree(page_size, self._pool.free)
        self.enabled = enabled
        self.on_evict = on_evict
        self._shared: list[bytes] = []
        self._live: dict[int, Lease] = {}
        self._holds: list[Hold] = []
        self._namespaces: set[Namespace] = set()
        self._serial = 0
        self.evicted_pages = 0

    @property
    def page_size(self) -> int:
        return self._pool.page_size

    @property
    def total_pages(self) -> int:
        return self._pool.num_pages

    @property
    def free_pages(self) -> int:
        return self._pool.num_free

    @property
    def evictable_pages(self) -> int:
        """Pages of the tree that no lease holds: free plus these is what `grow` can get."""
        return self._tree.evictable_pages

    def match_len(self, ids: Sequence[int], namespace: Namespace) -> int:
        """The ``cached_len`` that `acquire` would give now. Changes nothing, not even the LRU order."""
        return self._match(pack(ids), namespace).total_len

    def match_lens(self, ids: Sequence[int], namespace: Namespace) -> tuple[int, int]:
        """As `match_len`, and how many of those tokens lie in whole pages."""
        match = self._match(pack(ids), namespace)
        return match.total_len, match.full_len

    def acquire(self, ids: Sequence[int], namespace: Namespace) -> Lease:
        """Pin the longest cached prefix of ``ids``: ``cached_len`` is at most ``len(ids) - 1``.

        Where the match ends inside a page, its slots are to be copied into a page of the lease (``copy``);
        if no page can be had for that, ``cached_len`` ends where whole pages do. Only what was matched
        counts as used. The lease must be ended by `release` or `purge`.
        """
        key = pack(ids)
        match = self._match(key, namespace)
        node = match.node
        if match.full_len < node.end_len:
            node = self._tree.split(node, (match.full_len - node.start_len) // self.page_size)
        self._tree.lock(node)
        self._serial += 1
        lease = Lease(
            namespace=namespace,
            pages=self._tree.pages_to(node),
            cached_len=match.full_len,
            node=node,
            matched_len=match.full_len,
            tree_len=match.full_len,
            shareable_len=self._shareable_len(key),
            writers=frozenset({self._serial}),
            serial=self._serial,
        )
        self._live[lease.serial] = lease
        self._namespaces.add(namespace)
        if match.slots:
            self._copy_slots(lease, match)
        return lease

    def grow(self, lease: Lease, num_pages: int) -> bool:
        """Append ``num_pages`` fresh own pages, evicting if need be. False: too few, and nothing changed."""
        require(not lease.released, "an ended lease cannot grow")
        pages = self._alloc(num_pages)
        if pages is None:
            return False
        lease.pages += pages
        return True

    def insert(self, lease: Lease, ids: Sequence[int], kv_len: int) -> None:
        """Let others match the whole pages of ``ids[:kv_len]``, whose KV is written.

        ``ids`` must go on from those the lease was made with. Entries of ``lease.pages`` may change. Of a
        prompt that is marked as shared, whole stretches up to a crossing are inserted.
        """
        require(not lease.released, "an ended lease cannot insert")
        self._let_source_go(lease)
        self._store(lease, ids, kv_len, final=False)

    def release(self, lease: Lease, ids: Sequence[int], kv_len: int) -> None:
        """End the lease and keep the KV of ``ids[:kv_len]`` for others, a partly filled last page included.

        ``kv_len`` counts what was really written; up to ``cached_len`` nothing is new and nothing is kept. A
        second call does nothing. ``lease.pages`` is empty afterwards.
        """
        if lease.released:
            return
        self._let_source_go(lease)
        if kv_len > lease.cached_len:
            self._store(lease, ids, kv_len, final=True)
        self._end(lease)

    def purge(self, lease: Lease) -> None:
        """End the lease because its KV is bad: nothing it put on its path can be matched again.

        Nor can what was computed from that: what others put below it, or after slots copied out of it. Leases
        that matched it work on, but nothing they add is kept. Pages are freed when the last lease lets go.
        """
        if lease.released:
            return
        self._let_source_go(lease)
        bad = [node for node in self._tree.path(lease.node) if node.start_len >= lease.matched_len]
        bad += reversed([node for node in self._tree.walk() if lease.serial in node.writers])
        for node in reversed(bad):
            if node.attached:
                self._tree.detach(node)
        for other in self._live.values():
            other.tainted |= lease.serial in other.writers
        self._end(lease)

    def share(self, ids: Sequence[int]) -> None:
        """Mark ``ids`` as a prompt prefix that every namespace may match, in stretches of 64 tokens.

        What is computed from now on goes under the shared root; private copies made before stay private.
        """
        key = pack(ids)[: crossing_floor(len(ids)) * ID_BYTES]
        if key and key not in self._shared:
            self._shared.append(key)

    def whole_pages_only(self, lease: Lease) -> None:
        """Give up what would be copied into the lease's last page, before the copy is planned."""
        require(lease.tree_len == lease.matched_len, "a lease that was inserted cannot shrink")
        if lease.copy is not None:
            self._let_source_go(lease)
            self._pool.free([lease.pages.pop()])
            lease.cached_len = lease.matched_len

    # -- what the tiers below and the operator ask

    def shared_len(self, key: bytes) -> int:
        """How many leading tokens of a packed path every namespace may match."""
        return self._shareable_len(key)

    def hold(self, key: bytes, namespace: Namespace, *, exact: bool = False) -> Hold | None:
        """Keep the whole pages of a packed path where they are. None if the tree lacks some of them.

        Does not count as a use. Without ``exact`` it may hold more: the whole edge in which the path ends.
        """
        match = self._tree.match(key, namespace, len(key) // ID_BYTES)
        num_pages = len(key) // ID_BYTES // self.page_size
        if match.full_len < num_pages * self.page_size:
            return None
        node = match.node
        if exact and match.full_len < node.end_len:
            node = self._tree.split(node, (match.full_len - node.start_len) // self.page_size)
        hold = Hold(node, tuple(self._tree.pages_to(node)[:num_pages]))
        self._tree.lock(hold.node)
        self._holds.append(hold)
        return hold

    @property
    def pinned_pages(self) -> int:
        """Pages that holds alone keep from being evicted, if there are no leases."""
        return sum(self.held_pages(self._holds).values())

    def held_pages(self, holds: Iterable[Hold]) -> dict[Namespace, int]:
        """Pages of the paths that these keep, each once, by the namespace they belong to."""
        counts: dict[Namespace, int] = {}
        for node in {node for hold in holds for node in self._tree.path(hold.node)}:
            counts[node.namespace] = counts.get(node.namespace, 0) + len(node.pages)
        return counts

    def let_go(self, hold: Hold) -> None:
        self._holds.remove(hold)
        self._tree.unlock(hold.node)

    def forget(self, key: bytes, namespace: Namespace, from_len: int = 0) -> int:
        """Remove what is cached of a packed path from ``from_len`` tokens on; the tokens that went.

        What another path needs too, or a lease holds, stays.
        """
        before = self._tree.evictable_pages
        match = self._tree.match(key, namespace, len(key) // ID_BYTES)
        if match.source is not match.node:
            if match.source.num_tokens == match.slots:
                self._tree.prune(match.source, namespace, from_len)
            self._tree.prune(match.node, namespace, from_len)
        elif match.full_len + match.slots == match.node.end_len:
            self._tree.prune(match.node, namespace, from_len)
        return (before - self._tree.evictable_pages) * self.page_size

    def clear(self, namespace: Namespace | None) -> int:
        """Remove all that no lease holds, of one namespace or all; the tokens that went."""
        before = self._tree.evictable_pages
        self._tree.clear(namespace)
        return (before - self._tree.evictable_pages) * self.page_size

    def elsewhere_len(self, ids: Sequence[int], namespace: Namespace) -> int:
        """The most tokens that another namespace would match. Never to be told to a client."""
        key = pack(ids)
        others = (other for other in self._namespaces if other != namespace)
        return max((self._match(key, other).total_len for other in others), default=0)

    def nodes(self) -> Iterator[RadixNode]:
        """Every node but the root, parents first. Not to be gone on with after a change."""
        return self._tree.walk()

    def key_to(self, node: RadixNode) -> bytes:
        """The packed ids from the root to the end of ``node``."""
        return self._tree.key_to(node)

    # -- inside

    def _match(self, key: bytes, namespace: Namespace) -> Match:
        require(namespace != SHARED, "a request needs a namespace of its own")
        limit_len = max(len(key) // ID_BYTES - 1, 0) if self.enabled else 0
        return self._tree.match(key, namespace, limit_len)

    def _shareable_len(self, key: bytes) -> int:
        return max((crossing_floor(common_len(key, mark)) for mark in self._shared), default=0)

    def _alloc(self, num_pages: int) -> list[int] | None:
        missing = num_pages - self._pool.num_free
        if missing > self._tree.evictable_pages:
            return None
        if missing > 0:
            self._tree.evict(missing, self.on_evict)
            self.evicted_pages += missing
        return self._pool.alloc(num_pages)

    def _copy_slots(self, lease: Lease, match: Match) -> None:
        source = match.source
        if len(source.pages) > 1:
            # Hold no more than the page that is read: a longer edge could be split under the lease, and
            # pages held for nothing could keep a request of the pool's full size from ever running.
            source = self._tree.split(source, 1)
        self._tree.lock(source)
        page = self._alloc(1)
        if page is None:
            self._tree.unlock(source)
            return
        if match.slots == source.num_tokens:
            self._tree.touch(source)
        lease.pages += page
        lease.cached_len += match.slots
        lease.copy = PageCopy(source.pages[0], page[0], match.slots)
        lease.source = source
        lease.writers |= {writer for writer in source.writers if writer in self._live}

    def _let_source_go(self, lease: Lease) -> None:
        if lease.source is not None:
            self._tree.unlock(lease.source)
            lease.source = None
            lease.copy = None

    def _store(self, lease: Lease, ids: Sequence[int], kv_len: int, *, final: bool) -> None:
        size = self.page_size
        if kv_len > min(len(ids), len(lease.pages) * size):
            raise ValueError(f"kv_len {kv_len} is beyond {len(ids)} ids or {len(lease.pages)} pages")
        if not (self.enabled and lease.node.attached and not lease.tainted):
            return
        full_len = kv_len - kv_len % size
        if lease.node.namespace == SHARED:
            self._insert_pages(lease, SHARED, ids, min(crossing_floor(full_len), lease.shareable_len))
            if lease.tree_len < lease.shareable_len and not final:
                return
        self._insert_pages(lease, lease.namespace, ids, full_len)
        if final and kv_len > max(full_len, lease.tree_len):
            self._keep_tail(lease, pack(ids[full_len:kv_len]))

    def _insert_pages(self, lease: Lease, namespace: Namespace, ids: Sequence[int], end_len: int) -> None:
        if end_len <= lease.tree_len:
            return
        span = slice(lease.tree_len // self.page_size, end_len // self.page_size)
        own = lease.pages[span]
        node, pages = self._tree.insert(
            lease.node,
            namespace,
            pack(ids[lease.tree_len : end_len]),
            own,
            floor_len=lease.matched_len,
            writers=lease.writers,
        )
        self._tree.lock(node, above=lease.node)
        lease.pages[span] = pages
        self._pool.free([mine for mine, kept in zip(own, pages, strict=True) if mine != kept])
        lease.node = node
        lease.tree_len = end_len

    def _keep_tail(self, lease: Lease, key: bytes) -> None:
        at = lease.tree_len // self.page_size
        if self._tree.add_tail(lease.node, lease.namespace, key, lease.pages[at], lease.writers):
            del lease.pages[at]

    def _end(self, lease: Lease) -> None:
        self._pool.free(lease.pages[lease.tree_len // self.page_size :])
        self._tree.touch(lease.node)
        self._tree.unlock(lease.node)
        del self._live[lease.serial]
        lease.pages = []
        lease.released = True

    # -- checking

    def check(self, leases: Iterable[Lease] = ()) -> None:
        """Recompute every count by walking; ``leases`` are all that live. Raises `BrokenInvariant`."""
        live = list(leases)
        require({lease.serial for lease in live} == set(self._live), "these are not the leases that live")
        self._pool.check()
        lock_refs: dict[RadixNode, int] = {}
        for lease in live:
            self._check_lease(lease)
            held = [lease.node] if lease.source is None else [lease.node, lease.source]
            self._count_path(lock_refs, held)
        self._count_path(lock_refs, [hold.node for hold in self._holds])
        self._tree.check(lock_refs)
        for node in self._tree.walk():
            if node.namespace == SHARED:
                key = self._tree.key_to(node)
                marked = any(mark.startswith(key) for mark in self._shared)
                require(marked, "a prompt is shared by nobody's wish")
        self._check_owners(live, [node for node in lock_refs if not node.attached])

    def _count_path(self, lock_refs: dict[RadixNode, int], ends: Iterable[RadixNode]) -> None:
        for node in (above for end in ends for above in self._tree.path(end)):
            lock_refs[node] = lock_refs.get(node, 0) + 1

    def _check_lease(self, lease: Lease) -> None:
        require(not lease.released, "an ended lease lives")
        require(lease.node.end_len == lease.tree_len, "a lease does not hold the path of its pages")
        in_tree = lease.pages[: lease.tree_len // self.page_size]
        require(in_tree == self._tree.pages_to(lease.node), "a lease shows other pages than it holds")
        require(lease.matched_len <= lease.tree_len, "a lease lost pages it had matched")
        require((lease.source is None) == (lease.copy is None), "a copy without a source")
        if lease.source is not None and lease.copy is not None:
            require(lease.source.pages[0] == lease.copy.src, "a copy reads another page than it holds")
            require(lease.pages[lease.matched_len // self.page_size] == lease.copy.dst, "a copy goes astray")

    def _check_owners(self, live: Sequence[Lease], detached: Sequence[RadixNode]) -> None:
        """The page law: free, tree, detached and request together own each page exactly once."""
        owned = list(self._pool.free_pages())
        for node in [*self._tree.walk(), *detached]:
            owned += node.pages
        for lease in live:
            owned += lease.pages[lease.tree_len // self.page_size :]
        require(sorted(owned) == list(range(self.total_pages)), "a page has no owner, or two")
