"""One edge of the radix tree with the node at its end, and the packed ids that key it."""

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

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

    As little-endian numbers, the lowest set bit of their exclusive or lies in the first byte that differs.
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
    """A stretch of token ids whose KV is kept. Changed by `RadixTree` only.

    ``key`` packed ids of the edge; ``pages`` one page per ``page_size`` ids, in order; ``start_len`` tokens
    above the edge; ``lock_ref`` leases that hold it; ``last_used`` tick of the last use; ``writers`` serials
    of the leases whose computation is in the pages; ``attached`` False once it was evicted, superseded or
    detached. The root is its own parent.
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
        self.parent = parent or self
        self.namespace = namespace
        self.key = key
        self.pages = pages
        self.start_len = start_len
        self.writers = writers
        self.children: dict[ChildKey, RadixNode] = {}
        self.order: list[ChildKey] = []
        self.lock_ref = 0
        self.last_used = 0
        self.attached = True

    @property
    def num_tokens(self) -> int:
        return len(self.key) // ID_BYTES

    @property
    def end_len(self) -> int:
        """Tokens from the root to the end of this edge."""
        return self.start_len + len(self.key) // ID_BYTES

    @property
    def evictable(self) -> bool:
        return self.attached and self.lock_ref == 0 and not self.children and self.parent is not self

    def hang(self, child: "RadixNode", page_bytes: int) -> None:
        """Enter ``child`` under its first page, or under all of its ids if it has less."""
        child.parent = self
        key = (child.namespace, child.key[:page_bytes])
        self.children[key] = child
        insort(self.order, key)

    def unhang(self, child: "RadixNode", page_bytes: int) -> None:
        """Forget ``child``, which keeps knowing its parent."""
        key = (child.namespace, child.key[:page_bytes])
        del self.children[key]
        del self.order[bisect_left(self.order, key)]

    def closest(self, namespace: Namespace, want: bytes) -> Iterator["RadixNode"]:
        """At most two children, one of which shares as many leading ids with ``want`` as any child does.

        Of sorted strings the one with the longest common prefix with a given string is next to where that
        string would stand.
        """
        at = bisect_left(self.order, (namespace, want))
        for child_key in self.order[max(at - 1, 0) : at + 1]:
            if child_key[0] == namespace:
                yield self.children[child_key]

    def covers(self, namespace: Namespace, ids: bytes) -> bool:
        """Whether a child of ``namespace`` begins with all of ``ids`` and is longer (within its first
        page).
        """
        at = bisect_left(self.order, (namespace, ids))
        if at < len(self.order) and self.order[at] == (namespace, ids):
            at += 1
        return at < len(self.order) and self.order[at][0] == namespace and self.order[at][1].startswith(ids)
