"""The radix tree over KV pages: what has been computed, keyed by token ids under a namespace.

The law of the tree:

- An edge's key is token ids, packed four bytes each; edges begin and end at page boundaries, one page for
  every ``page_size`` ids. Only a *tail* is shorter than a page: a leaf with one partly filled page.
- Children are keyed by (namespace, their whole first page; a tail: all of its ids), so the children of a node
  differ in their first page. A tail may begin like a sibling; once a sibling covers it wholly it is
  superseded and goes as soon as no lease holds it.
- Shared nodes come first. A private node hangs under a shared one only where that ends at a multiple of 64
  tokens; below a private node everything is of its namespace.
- ``lock_ref`` of a node counts the leases that hold it or anything below it. Only leaves with ``lock_ref`` 0
  are evicted, least recently used first, and from their end.
- A detached node cannot be matched again. Its pages are freed once its ``lock_ref`` is 0.

The root is a shared node with an empty key. It is never locked, evicted or detached.
"""

from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from chatd.cache.page_pool import require
from chatd.ids import Namespace

SHARED = Namespace("")
"""The namespace of what every namespace may match. No account has it."""

CROSSING_LEN = 64
"""A path passes from shared to private at a multiple of this many tokens."""

ID_BYTES = 4

ChildKey = tuple[Namespace, bytes]


def pack(ids: Sequence[int]) -> bytes:
    """Token ids as four bytes each: hashed, compared and kept without a Python object per token."""
    return array("i", ids).tobytes()


def unpack(key: bytes) -> list[int]:
    """The ids that `pack` packed."""
    return array("i", key).tolist()


def common_len(a: bytes, b: bytes) -> int:
    """How many leading token ids two packed keys share.

    The lowest set bit of the exclusive or, read as little-endian numbers, lies in the first byte that
    differs.
    """
    size = min(len(a), len(b))
    a, b = a[:size], b[:size]
    if a == b:
        return size // ID_BYTES
    differ = int.from_bytes(a, "little") ^ int.from_bytes(b, "little")
    return ((differ & -differ).bit_length() - 1) // (8 * ID_BYTES)


def crossing_floor(num_tokens: int) -> int:
    """``num_tokens`` rounded down to where a path may pass from shared to private."""
    return num_tokens - num_tokens % CROSSING_LEN


class RadixNode:
    """One edge of the tree and the node at its end. Written by `RadixTree` only.

    ``key`` packed ids of the edge; ``pages`` one page per ``page_size`` ids, in order; ``start_len`` tokens
    above the edge; ``last_used`` tick of the last use; ``writers`` serials of the leases whose computation
    is in the pages; ``attached`` False once the node was evicted, superseded or detached.
    """

    __slots__ = (
        "attached",
        "children",
        "key",
        "last_used",
        "lock_ref",
        "namespace",
        "order",
        "pages",
        "parent",
        "start_len",
        "writers",
    )

    def __init__(
        self,
        parent: "RadixNode | None",
        namespace: Namespace,
        key: bytes,
        pages: list[int],
        start_len: int,
        writers: frozenset[int],
    ) -> None:
        self.parent = parent
        self.namespace = namespace
        self.key = key
        self.pages = pages
        self.start_len = start_len
        self.writers = writers
        self.children: dict[ChildKey, RadixNode] = {}
        self.order: list[ChildKey] = []  # the keys of children, sorted
        self.lock_ref = 0
        self.last_used = 0
        self.attached = True

    @property
    def num_tokens(self) -> int:
        return len(self.key) // ID_BYTES

    @property
    def end_len(self) -> int:
        return self.start_len + len(self.key) // ID_BYTES

    def closest(self, namespace: Namespace, want: bytes) -> Iterator["RadixNode"]:
        """The children among which the one that shares most leading ids with ``want`` is: at most two.

        In a sorted list of strings the longest common prefix with any string is had by a neighbour of the
        place where that string would be.
        """
        at = bisect_left(self.order, (namespace, want))
        for child_key in self.order[max(at - 1, 0) : at + 1]:
            if child_key[0] == namespace:
                yield self.children[child_key]

    def covers(self, namespace: Namespace, ids: bytes) -> bool:
        """Whether a child begins with all of ``ids`` and is longer."""
        at = bisect_left(self.order, (namespace, ids))
        while at < len(self.order):
            other, key = self.order[at]
            if key != ids or other != namespace:
                return other == namespace and key.startswith(ids)
            at += 1
        return False


@dataclass(frozen=True, slots=True)
class Match:
    """Where a prompt leaves the tree. Valid until the tree changes.

    ``full_len`` tokens match in whole pages, which end inside or at the end of ``node``. ``slots`` more
    match inside one page: the page after them in ``node`` if they end inside it, else the first page of the
    child ``source``.
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
    """Pages that leave the tree: the last ``len(pages)`` pages of the path ``key`` (packed ids from the
    root).
    """

    namespace: Namespace
    key: bytes
    pages: tuple[int, ...]


class RadixTree:
    """Nodes, locks and the order of eviction. ``free`` takes the pages that nobody needs any more.

    Owns the pages of its nodes, attached or (while locked) detached; never allocates any.
    """

    def __init__(self, page_size: int, free: Callable[[Sequence[int]], None]) -> None:
        self.page_size = page_size
        self.page_bytes = page_size * ID_BYTES
        self.root = RadixNode(None, SHARED, b"", [], 0, frozenset())
        self.evictable_pages = 0
        self.num_nodes = 0
        self._free = free
        self._tick = 0
        self._heap: list[tuple[int, int, RadixNode]] = []
        self._pushes = 0

    # -- looking ------------------------------------------------------------------------------------------

    def match(self, key: bytes, namespace: Namespace, limit_len: int) -> Match:
        """The longest match of ``key`` with at most ``limit_len`` tokens. Changes nothing.

        Shared nodes are used up to a crossing. Private nodes may hang at any crossing of the shared path:
        those of a namespace that computed a prompt before it was shared hang higher up.
        """
        node, shared_len = self._descend(self.root, SHARED, key, limit_len)
        turn_len = crossing_floor(shared_len)
        while node.parent is not None and node.start_len >= turn_len:
            node = node.parent
        best = self._inside_page(node, turn_len, namespace, key, limit_len)
        above: RadixNode | None = node
        while above is not None:
            if above.end_len <= turn_len and above.end_len % CROSSING_LEN == 0:
                last, full_len = self._descend(above, namespace, key, limit_len)
                found = self._inside_page(last, full_len, namespace, key, limit_len)
                if (found.total_len, found.full_len) > (best.total_len, best.full_len):
                    best = found
            above = above.parent
        return best

    def _descend(
        self, node: RadixNode, namespace: Namespace, key: bytes, limit_len: int
    ) -> tuple[RadixNode, int]:
        """Follow whole pages of ``key`` down from the end of ``node``: the last node touched, tokens
        matched.
        """
        matched = node.end_len
        end = (limit_len - limit_len % self.page_size) * ID_BYTES
        while (at := matched * ID_BYTES) < end:
            child = node.children.get((namespace, key[at : at + self.page_bytes]))
            if child is None:
                break
            common = common_len(child.key, key[at : min(end, at + len(child.key))])
            matched += common - common % self.page_size
            node = child
            if matched < child.end_len:
                break
        return node, matched

    def _inside_page(
        self, node: RadixNode, full_len: int, namespace: Namespace, key: bytes, limit_len: int
    ) -> Match:
        """Complete a match of whole pages with the best slots of one more page."""
        want = key[full_len * ID_BYTES : min(full_len + self.page_size, limit_len) * ID_BYTES]
        if full_len < node.end_len:
            at = (full_len - node.start_len) * ID_BYTES
            return Match(node, full_len, node, common_len(node.key[at : at + self.page_bytes], want))
        best = Match(node, full_len, node, 0)
        for owner in {node.namespace, namespace}:
            if owner == namespace and node.end_len % CROSSING_LEN and node.namespace != namespace:
                continue
            for child in node.closest(owner, want):
                slots = common_len(child.key[: self.page_bytes], want)
                if slots > best.slots:
                    best = Match(node, full_len, child, slots)
        return best

    def pages_to(self, node: RadixNode) -> list[int]:
        """The pages from the root to the end of ``node``, in order, as a new list."""
        return [page for above in reversed(self.path(node)) for page in above.pages]

    def path(self, node: RadixNode) -> list[RadixNode]:
        """``node`` and what is above it but the root, deepest first."""
        path = []
        while node.parent is not None:
            path.append(node)
            node = node.parent
        return path

    def walk(self) -> Iterator[RadixNode]:
        """Every attached node but the root, parents first. Do not change the tree meanwhile."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    # -- growing ------------------------------------------------------------------------------------------

    def split(self, node: RadixNode, num_pages: int) -> RadixNode:
        """Cut an edge after ``num_pages`` pages; returns the new upper node. ``node`` stays the lower one.

        So whoever holds ``node`` still holds its whole path, and the upper node inherits as many locks.
        """
        parent = node.parent
        require(parent is not None and 0 < num_pages < len(node.pages), "a split must cut an edge")
        assert parent is not None
        cut = num_pages * self.page_bytes
        upper = RadixNode(
            parent, node.namespace, node.key[:cut], node.pages[:num_pages], node.start_len, node.writers
        )
        upper.lock_ref = node.lock_ref
        upper.last_used = node.last_used
        parent.children[self._child_key(node)] = upper
        node.parent = upper
        node.key = node.key[cut:]
        node.pages = node.pages[num_pages:]
        node.start_len += num_pages * self.page_size
        self._hang(node)
        self.num_nodes += 1
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
        """Make ``key`` (whole pages) matchable below ``node``, which the caller has locked.

        Returns the node where it ends and the tree's page for each of its pages: ``pages[i]`` itself where
        it was taken, another where the tree had one already (``pages[i]`` then still belongs to the caller).
        Nodes made here are not locked yet: lock the answer before anything is evicted. ``node`` itself may
        grow in place if the caller alone holds it and it begins at ``floor_len`` or later.
        """
        taken: list[int] = []
        grows = node.lock_ref == 1 and node.start_len >= floor_len and node.namespace == namespace
        while len(taken) < len(pages):
            rest = key[len(taken) * self.page_bytes :]
            child = node.children.get((namespace, rest[: self.page_bytes]))
            if child is None:
                fresh = list(pages[len(taken) :])
                if grows and not node.children and not taken:
                    self._extend(node, rest, fresh, writers)
                else:
                    node = self._add(node, namespace, rest, fresh, writers)
                return node, taken + fresh
            common = common_len(child.key, rest) // self.page_size
            node = child if common == len(child.pages) else self.split(child, common)
            taken += node.pages
        return node, taken

    def add_tail(
        self, node: RadixNode, namespace: Namespace, key: bytes, page: int, writers: frozenset[int]
    ) -> bool:
        """Hang a partly filled page under ``node`` as an unlocked leaf; False if a sibling has all of it
        already.

        The page then still belongs to the caller.
        """
        if (namespace, key) in node.children or node.covers(namespace, key):
            return False
        tail = self._add(node, namespace, key, [page], writers)
        self._tick += 1
        tail.last_used = self._tick
        self._push(tail)
        return True

    def _extend(self, node: RadixNode, key: bytes, pages: list[int], writers: frozenset[int]) -> None:
        node.key += key
        node.pages = node.pages + pages
        node.writers |= writers

    def _add(
        self, parent: RadixNode, namespace: Namespace, key: bytes, pages: list[int], writers: frozenset[int]
    ) -> RadixNode:
        node = RadixNode(parent, namespace, key, pages, parent.end_len, writers)
        self._hang(node)
        self.num_nodes += 1
        self.evictable_pages += len(pages)
        first = key[: self.page_bytes]
        for size in range(ID_BYTES, len(first), ID_BYTES):
            tail = parent.children.get((namespace, first[:size]))
            if tail is not None and tail.lock_ref == 0:
                self._remove_leaf(tail)
        return node

    def _child_key(self, node: RadixNode) -> ChildKey:
        return node.namespace, node.key[: self.page_bytes]

    def _hang(self, node: RadixNode) -> None:
        assert node.parent is not None
        key = self._child_key(node)
        node.parent.children[key] = node
        insort(node.parent.order, key)

    def _unhang(self, node: RadixNode) -> RadixNode:
        parent = node.parent
        assert parent is not None
        key = self._child_key(node)
        del parent.children[key]
        del parent.order[bisect_left(parent.order, key)]
        return parent

    # -- holding ------------------------------------------------------------------------------------------

    def lock(self, node: RadixNode, above: RadixNode | None = None) -> None:
        """Hold ``node`` and its path up to but without ``above`` (which the caller holds already), or all of
        it.
        """
        while node is not above and node.parent is not None:
            if node.lock_ref == 0:
                self.evictable_pages -= len(node.pages)
            node.lock_ref += 1
            node = node.parent

    def unlock(self, node: RadixNode) -> None:
        """Let ``node`` and its path go. Frees detached nodes nobody else holds, and superseded tails."""
        while node.parent is not None:
            require(node.lock_ref > 0, "a node was unlocked more often than locked")
            node.lock_ref -= 1
            parent = node.parent
            if node.lock_ref == 0:
                self._let_go(node)
            node = parent

    def touch(self, node: RadixNode) -> None:
        """Make ``node`` and its path, all locked, the most recently used."""
        self._tick += 1
        for above in self.path(node):
            above.last_used = self._tick

    def _let_go(self, node: RadixNode) -> None:
        if not node.attached:
            self._free(node.pages)
            node.pages = []
            return
        self.evictable_pages += len(node.pages)
        assert node.parent is not None
        if len(node.key) < self.page_bytes and node.parent.covers(node.namespace, node.key):
            self._remove_leaf(node)
        elif not node.children:
            self._push(node)

    # -- shrinking ----------------------------------------------------------------------------------------

    def evict(self, num_pages: int, on_evict: Callable[[Evicted], None]) -> None:
        """Free ``num_pages`` pages from the ends of the least recently used unlocked leaves.

        The caller has made sure that ``evictable_pages`` are enough. ``on_evict`` sees pages while they are
        whole.
        """
        require(num_pages <= self.evictable_pages, "more pages to evict than can be")
        while num_pages > 0:
            tick, _, node = self._heap[0]
            if not self._may_evict(node, tick):
                heappop(self._heap)
                continue
            count = min(num_pages, len(node.pages))
            on_evict(Evicted(node.namespace, self._key_to(node), tuple(node.pages[-count:])))
            num_pages -= count
            if count == len(node.pages):
                heappop(self._heap)
                self._remove_leaf(node)
            else:
                self._cut_end(node, count)

    def detach(self, top: RadixNode) -> None:
        """Take ``top`` and all below it out of the tree for good. Held nodes keep their pages until let
        go.
        """
        require(top.attached, "a node was detached twice")
        parent = self._unhang(top)
        self._push_if_leaf(parent)
        stack = [top]
        while stack:
            node = stack.pop()
            node.attached = False
            self.num_nodes -= 1
            if node.lock_ref == 0:
                self.evictable_pages -= len(node.pages)
                self._free(node.pages)
                node.pages = []
            stack.extend(node.children.values())
            node.children = {}
            node.order = []

    def _remove_leaf(self, node: RadixNode) -> None:
        self.evictable_pages -= len(node.pages)
        self.num_nodes -= 1
        node.attached = False
        parent = self._unhang(node)
        self._free(node.pages)
        node.pages = []
        self._push_if_leaf(parent)

    def _cut_end(self, node: RadixNode, num_pages: int) -> None:
        keep = len(node.pages) - num_pages
        self._free(node.pages[keep:])
        node.pages = node.pages[:keep]
        node.key = node.key[: keep * self.page_bytes]
        self.evictable_pages -= num_pages

    def _key_to(self, node: RadixNode) -> bytes:
        return b"".join(above.key for above in reversed(self.path(node)))

    def _push_if_leaf(self, node: RadixNode) -> None:
        if node.parent is not None and node.attached and node.lock_ref == 0 and not node.children:
            self._push(node)

    def _push(self, node: RadixNode) -> None:
        """Enter an evictable leaf. Entries that no longer hold are dropped when met, or here when most are
        stale.
        """
        if len(self._heap) > 2 * self.num_nodes + 64:
            current = {entry[2]: entry for entry in self._heap if self._may_evict(entry[2], entry[0])}
            self._heap = list(current.values())
            heapify(self._heap)
        self._pushes += 1
        heappush(self._heap, (node.last_used, self._pushes, node))

    def _may_evict(self, node: RadixNode, tick: int) -> bool:
        return node.attached and node.lock_ref == 0 and not node.children and node.last_used == tick

    # -- checking -----------------------------------------------------------------------------------------

    def check(self, lock_refs: Mapping[RadixNode, int]) -> None:
        """Recompute everything from the nodes and ``lock_refs`` (absent means 0), by walking."""
        nodes = list(self.walk())
        require(len(nodes) == self.num_nodes, "num_nodes is not the number of nodes")
        evictable = sum(len(node.pages) for node in nodes if node.lock_ref == 0)
        require(evictable == self.evictable_pages, "evictable_pages is not what can be evicted")
        entered = {node for tick, _, node in self._heap if self._may_evict(node, tick)}
        for node in nodes:
            self._check_edge(node)
            require(node.lock_ref == lock_refs.get(node, 0), "lock_ref is not the number of leases")
            if node.lock_ref == 0 and not node.children:
                require(node in entered, "an evictable leaf is not in the order of eviction")
        for node in [self.root, *nodes]:
            self._check_children(node)

    def _check_edge(self, node: RadixNode) -> None:
        parent = node.parent
        require(parent is not None and node.attached, "a node in the tree does not know it")
        assert parent is not None
        require(node.start_len == parent.end_len, "an edge does not start where its parent ends")
        require(node.start_len % self.page_size == 0, "an edge does not start at a page boundary")
        require(parent is self.root or node.lock_ref <= parent.lock_ref, "a lock does not reach the root")
        require(
            parent is self.root or node.last_used <= parent.last_used, "a child was used after its parent"
        )
        if len(node.key) % self.page_bytes:
            require(0 < len(node.key) < self.page_bytes, "an edge is not made of whole pages")
            require(not node.children and len(node.pages) == 1, "a tail is not a leaf of one page")
            longer = parent.covers(node.namespace, node.key)
            require(node.lock_ref > 0 or not longer, "a superseded tail was kept")
        else:
            require(len(node.key) == len(node.pages) * self.page_bytes > 0, "an edge has not a page per page")
        if parent.namespace == SHARED and node.namespace != SHARED:
            require(node.start_len % CROSSING_LEN == 0, "a path turns private off a crossing")
        else:
            require(node.namespace == parent.namespace, "a path changes its namespace")

    def _check_children(self, node: RadixNode) -> None:
        require(node.order == sorted(node.children), "the sorted child keys are not the children's")
        for key, child in node.children.items():
            require(child.parent is node, "a child has another parent")
            require(key == self._child_key(child), "a child is not keyed by its first page")
