"""The radix tree over KV pages: what has been computed, keyed by token ids under a namespace.

The law of the tree:

- An edge's key is token ids, packed four bytes each; edges begin and end at page boundaries, one page for
  every ``page_size`` ids. Only a *tail* is shorter than a page: a leaf with one partly filled page.
- Children are keyed by (namespace, their whole first page; a tail: all of its ids), so the children of a node
  differ in their first page. A tail may begin like a sibling; once a sibling covers it wholly it is
  superseded and goes as soon as no lease holds it.
- Shared nodes come first. A private node hangs under a shared one only where that ends at a multiple of 64
  tokens; below a private node everything is of its namespace.
- ``lock_ref`` of a node counts the holds on it and on all below it. Only leaves with ``lock_ref`` 0
  are evicted, least recently used first, and from their end.
- A detached node cannot be matched again. Its pages are freed once its ``lock_ref`` is 0.

The root is a shared node with an empty key. It is never locked, evicted or detached.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from chatd.cache.eviction import EvictionOrder
from chatd.cache.page_pool import require
from chatd.cache.radix_node import CROSSING_LEN, ID_BYTES, SHARED, RadixNode, common_len, crossing_floor
from chatd.ids import Namespace


@dataclass(frozen=True, slots=True)
class Match:
    """Where a prompt leaves the tree. Valid until the tree changes.

    ``full_len`` tokens match in whole pages, which end inside or at the end of ``node``. ``slots`` more
    match inside one page of ``source``: the next one of ``node`` itself, or the first one of a child.
    """

    node: RadixNode
    full_len: int
    source: RadixNode
    slots: int

    @property
    def total_len(self) -> int:
        return self.full_len + self.slots


@dataclass(frozen=True, slots=True)
class Evicted:
    """Pages that leave the tree: the last ones of the path with the packed ids ``key``.

    ``path`` are all pages of the path, those that leave included.
    """

    namespace: Namespace
    key: bytes
    pages: tuple[int, ...]
    path: tuple[int, ...]


class RadixTree:
    """Nodes, locks and eviction. Allocates nothing; ``free`` takes the pages that nobody needs any more.

    ``evictable_pages`` are the pages of all nodes with ``lock_ref`` 0: as a lock reaches up to the root,
    leaf after leaf every one of them can go.
    """

    def __init__(self, page_size: int, free: Callable[[Sequence[int]], None]) -> None:
        self.page_size = page_size
        self.page_bytes = page_size * ID_BYTES
        self.root = RadixNode(None, SHARED, b"", [], 0, frozenset())
        self.evictable_pages = 0
        self._free = free
        self._tick = 0
        self._order = EvictionOrder()

    # -- looking: these change nothing

    def match(self, key: bytes, namespace: Namespace, limit_len: int) -> Match:
        """The longest match of ``key`` with at most ``limit_len`` tokens.

        Shared nodes are used up to a crossing, private ones may hang at any crossing on the way there (those
        made before a prompt was marked as shared hang higher up).
        """
        node, shared_len = self._descend(self.root, SHARED, key, limit_len)
        turn_len = crossing_floor(shared_len)
        while node is not self.root and node.start_len >= turn_len:
            node = node.parent
        best = self._inside_page(node, turn_len, namespace, key, limit_len)
        for above in [*self.path(node), self.root]:
            if above.end_len <= turn_len:
                last, full_len = self._descend(above, namespace, key, limit_len)
                found = self._inside_page(last, full_len, namespace, key, limit_len)
                if (found.total_len, found.full_len) > (best.total_len, best.full_len):
                    best = found
        return best

    def _descend(
        self, node: RadixNode, namespace: Namespace, key: bytes, limit_len: int
    ) -> tuple[RadixNode, int]:
        """Follow whole pages of ``key`` below ``node``: the last node that matched, tokens matched."""
        matched = node.end_len
        end = (limit_len - limit_len % self.page_size) * ID_BYTES
        while (at := matched * ID_BYTES) < end:
            child = node.children.get((namespace, key[at : at + self.page_bytes]))
            if child is None:
                break
            common = common_len(child.key, key[at : min(end, at + len(child.key))])
            matched += common - common % self.page_size
            node = child
            if matched < node.end_len:
                break
        return node, matched

    def _inside_page(
        self, node: RadixNode, full_len: int, namespace: Namespace, key: bytes, limit_len: int
    ) -> Match:
        """Complete a match of whole pages by the page that has most of the ids after them.

        From a shared node this may be a whole page, when the match goes on beyond the crossing.
        """
        want = key[full_len * ID_BYTES : min(full_len + self.page_size, limit_len) * ID_BYTES]
        if full_len < node.end_len:
            at = (full_len - node.start_len) * ID_BYTES
            return Match(node, full_len, node, common_len(node.key[at : at + self.page_bytes], want))
        owners = dict.fromkeys([node.namespace, namespace])
        best = Match(node, full_len, node, 0)
        for child in (child for owner in owners for child in node.closest(owner, want)):
            slots = common_len(child.key[: self.page_bytes], want)
            if slots > best.slots:
                best = Match(node, full_len, child, slots)
        return best

    def path(self, node: RadixNode) -> list[RadixNode]:
        """``node`` and all above it but the root, deepest first."""
        path = []
        while node is not self.root:
            path.append(node)
            node = node.parent
        return path

    def pages_to(self, node: RadixNode) -> list[int]:
        """The pages from the root to the end of ``node``, in order, as a new list."""
        return [page for above in reversed(self.path(node)) for page in above.pages]

    def key_to(self, node: RadixNode) -> bytes:
        """The packed ids from the root to the end of ``node``."""
        return b"".join(above.key for above in reversed(self.path(node)))

    def walk(self) -> Iterator[RadixNode]:
        """Every attached node but the root, parents first. Not to be gone on with after a change."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    # -- growing

    def split(self, node: RadixNode, num_pages: int) -> RadixNode:
        """Cut an edge after ``num_pages`` pages and return the new upper node; ``node`` becomes the lower
        one.

        So whoever holds ``node`` still holds its whole path, and the upper node inherits as many locks.
        """
        require(0 < num_pages < len(node.pages), "a split must cut an edge")
        cut = num_pages * self.page_bytes
        above = node.parent
        above.unhang(node, self.page_bytes)
        upper = RadixNode(
            above, node.namespace, node.key[:cut], node.pages[:num_pages], node.start_len, node.writers
        )
        upper.lock_ref, upper.last_used = node.lock_ref, node.last_used
        above.hang(upper, self.page_bytes)
        node.key, node.pages = node.key[cut:], node.pages[num_pages:]
        node.start_len = upper.end_len
        upper.hang(node, self.page_bytes)
        return upper

    def insert(
        self,
        node: RadixNode,
        namespace: Namespace,
        key: bytes,
        pages: Sequence[int],
        *,
        floor_len: int,
        writers: frozenset[int],
    ) -> tuple[RadixNode, list[int]]:
        """Make ``key`` (whole pages) matchable below ``node``, which the caller holds.

        Returns the node where it ends and the tree's page for each of its pages: ``pages[i]`` itself where
        it was taken, another where the tree had one already (``pages[i]`` then stays the caller's). New
        nodes are not locked: lock the returned one before anything is evicted. ``node`` may grow in place if
        it begins at ``floor_len`` or later and the caller alone holds it.
        """
        kept: list[int] = []
        if node.lock_ref == 1 and node.start_len >= floor_len and node.namespace == namespace:
            kept = self._extend(node, key, pages, writers)
        while len(kept) < len(pages):
            rest = key[len(kept) * self.page_bytes :]
            child = node.children.get((namespace, rest[: self.page_bytes]))
            if child is None:
                fresh = list(pages[len(kept) :])
                return self._add(node, namespace, rest, fresh, writers), kept + fresh
            common = common_len(child.key, rest) // self.page_size
            node = child if common == len(child.pages) else self.split(child, common)
            kept += node.pages
        return node, kept

    def add_tail(
        self, node: RadixNode, namespace: Namespace, key: bytes, page: int, writers: frozenset[int]
    ) -> bool:
        """Hang a partly filled page under ``node`` as an unlocked leaf, the most recently used.

        False if a child has all of its ids already: the page then stays the caller's.
        """
        if (namespace, key) in node.children or node.covers(namespace, key):
            return False
        tail = self._add(node, namespace, key, [page], writers)
        self._tick += 1
        tail.last_used = self._tick
        self._order.enter(tail)
        return True

    def _extend(
        self, node: RadixNode, key: bytes, pages: Sequence[int], writers: frozenset[int]
    ) -> list[int]:
        if node.children:
            return []
        node.key += key
        node.pages = [*node.pages, *pages]
        node.writers |= writers
        return list(pages)

    def _add(
        self, parent: RadixNode, namespace: Namespace, key: bytes, pages: list[int], writers: frozenset[int]
    ) -> RadixNode:
        """Hang a new unlocked node, and remove the tails it supersedes."""
        node = RadixNode(parent, namespace, key, pages, parent.end_len, writers)
        parent.hang(node, self.page_bytes)
        self.evictable_pages += len(pages)
        first_page = key[: self.page_bytes]
        for size in range(ID_BYTES, len(first_page), ID_BYTES):
            tail = parent.children.get((namespace, first_page[:size]))
            if tail is not None and tail.lock_ref == 0:
                self._remove(tail)
        return node

    # -- holding

    def lock(self, node: RadixNode, above: RadixNode | None = None) -> None:
        """Hold ``node`` and its path, up to but without ``above`` if the caller holds that already."""
        while node is not self.root and node is not above:
            if node.lock_ref == 0:
                self.evictable_pages -= len(node.pages)
            node.lock_ref += 1
            node = node.parent

    def touch(self, node: RadixNode) -> None:
        """Make ``node`` and its path, which the caller holds, the most recently used."""
        self._tick += 1
        for held in self.path(node):
            held.last_used = self._tick

    def unlock(self, node: RadixNode) -> None:
        """Let ``node`` and its path go. Frees detached nodes nobody else holds, and superseded tails."""
        for held in self.path(node):
            require(held.lock_ref > 0, "a node was let go more often than held")
            held.lock_ref -= 1
            if held.lock_ref > 0:
                continue
            self.evictable_pages += len(held.pages)
            if not held.attached:
                self._drop_pages(held, len(held.pages))
            elif len(held.key) < self.page_bytes and held.parent.covers(held.namespace, held.key):
                self._remove(held)
            else:
                self._enter_if_evictable(held)

    # -- shrinking

    def evict(self, num_pages: int, on_evict: Callable[[Evicted], None]) -> None:
        """Free ``num_pages`` (at most ``evictable_pages``) from the ends of the least recently used leaves.

        ``on_evict`` is called while they still are what the tree says.
        """
        require(num_pages <= self.evictable_pages, "more pages to evict than can be")
        while num_pages > 0:
            leaf = self._order.first()
            count = min(num_pages, len(leaf.pages))
            path = tuple(self.pages_to(leaf))
            on_evict(Evicted(leaf.namespace, self.key_to(leaf), path[-count:], path))
            num_pages -= count
            if count == len(leaf.pages):
                self._remove(leaf)
            else:
                leaf.key = leaf.key[: -count * self.page_bytes]
                self._drop_pages(leaf, count)

    def prune(self, node: RadixNode, namespace: Namespace, from_len: int) -> None:
        """Remove the end of ``node``'s path from ``from_len`` tokens on, whole pages, as far as it is of
        ``namespace`` and nothing else hangs under it or holds it.
        """
        while node.evictable and node.namespace == namespace and node.end_len > from_len:
            above = node.parent
            keep = -(-max(0, from_len - node.start_len) // self.page_size)
            if keep >= len(node.pages):
                return
            if keep > 0:
                node.key = node.key[: keep * self.page_bytes]
                self._drop_pages(node, len(node.pages) - keep)
                return
            self._remove(node)
            node = above

    def clear(self, namespace: Namespace | None) -> None:
        """Remove all that no lease holds: of ``namespace``, or of everybody."""
        for node in reversed(list(self.walk())):  # children before their parents
            if node.evictable and namespace in (None, node.namespace):
                self._remove(node)

    def detach(self, top: RadixNode) -> None:
        """Take ``top`` and all below it out of the tree for good. Held nodes keep their pages till let go."""
        require(top.attached, "a node was detached twice")
        top.parent.unhang(top, self.page_bytes)
        below = [top]
        while below:
            node = below.pop()
            node.attached = False
            if node.lock_ref == 0:
                self._drop_pages(node, len(node.pages))
            below.extend(node.children.values())
            node.children, node.order = {}, []
        self._enter_if_evictable(top.parent)

    def _remove(self, leaf: RadixNode) -> None:
        leaf.attached = False
        leaf.parent.unhang(leaf, self.page_bytes)
        self._drop_pages(leaf, len(leaf.pages))
        self._enter_if_evictable(leaf.parent)

    def _drop_pages(self, node: RadixNode, num_pages: int) -> None:
        """Free the last ``num_pages`` pages of an unlocked node."""
        keep = len(node.pages) - num_pages
        dropped, node.pages = node.pages[keep:], node.pages[:keep]
        self.evictable_pages -= num_pages
        self._free(dropped)

    def _enter_if_evictable(self, node: RadixNode) -> None:
        if node.evictable:
            self._order.enter(node)

    # -- checking

    def check(self, lock_refs: Mapping[RadixNode, int]) -> None:
        """Recompute everything by walking; ``lock_refs`` says how many leases hold a node (absent: none)."""
        nodes = list(self.walk())
        evictable = sum(len(node.pages) for node in nodes if node.lock_ref == 0)
        require(evictable == self.evictable_pages, "evictable_pages is not what can be evicted")
        leaves = {node for node in nodes if node.lock_ref == 0 and not node.children}
        require(leaves == set(self._order.leaves()), "the order of eviction has other leaves than the tree")
        for node in nodes:
            require(node.attached, "a node in the tree does not know it")
            require(node.lock_ref == lock_refs.get(node, 0), "lock_ref is not the number of leases")
            self._check_below_parent(node)
            self._check_pages(node)
        for node in [self.root, *nodes]:
            self._check_children(node)

    def _check_below_parent(self, node: RadixNode) -> None:
        above = node.parent
        require(node.start_len == above.end_len, "an edge does not start where its parent ends")
        if above is not self.root:
            require(node.lock_ref <= above.lock_ref, "a lock does not reach the root")
            require(node.last_used <= above.last_used, "a node was used without its parent")
        if node.namespace != above.namespace:
            require(above.namespace == SHARED, "a path changes its namespace")
            require(node.start_len % CROSSING_LEN == 0, "a path turns private off a crossing")

    def _check_pages(self, node: RadixNode) -> None:
        require(node.start_len % self.page_size == 0, "an edge does not start at a page boundary")
        if len(node.key) % self.page_bytes == 0:
            paged = len(node.pages) * self.page_bytes
            require(len(node.key) == paged > 0, "an edge has more or less pages than its ids fill")
            return
        require(len(node.key) < self.page_bytes, "an edge is not made of whole pages")
        require(len(node.pages) == 1 and not node.children, "a tail is not a leaf of one page")
        superseded = node.parent.covers(node.namespace, node.key)
        require(node.lock_ref > 0 or not superseded, "a superseded tail was kept")

    def _check_children(self, node: RadixNode) -> None:
        require(node.order == sorted(node.children), "the sorted child keys are not the children's")
        for key, child in node.children.items():
            require(child.parent is node, "a child has another parent")
            named = (child.namespace, child.key[: self.page_bytes])
            require(key == named, "a child is not under its first page")
