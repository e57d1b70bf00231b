"""A prefix cache over simulated KV: each slot remembers what was computed into it, from what, and by whom.

So a page that is wrong, stale, freed too soon or shared by mistake shows as soon as somebody reads it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from chatd.cache.prefix_cache import Lease, PrefixCache
from chatd.cache.radix_node import crossing_floor, unpack
from chatd.cache.radix_tree import Evicted
from chatd.engine.plan import PageCopy
from chatd.ids import Namespace

ALICE = Namespace("alice")
BOB = Namespace("bob")


def common_prefix_len(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids are equal, the slow and obvious way."""
    for position, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return position
    return min(len(a), len(b))


@dataclass(frozen=True, slots=True)
class Slot:
    """The KV of one token: ``chain`` stands for all ids up to it, ``writers`` for all whose KV it saw."""

    chain: int
    namespace: Namespace
    writers: frozenset[int]


STALE = Slot(-1, Namespace("nobody"), frozenset())


class CacheLab:
    """A cache, the contents of its pages, and the streams on it. Evicted pages are read as they go."""

    def __init__(self, num_pages: int, page_size: int = 16, *, enabled: bool = True) -> None:
        self.cache = PrefixCache(num_pages, page_size, enabled=enabled, on_evict=self._on_evict)
        self.slots = [[STALE] * page_size for _ in range(num_pages)]
        self.streams: list[Stream] = []
        self.purged: set[int] = set()
        self.marks: list[tuple[int, ...]] = []
        self.evicted: list[Evicted] = []
        self._started = 0

    @property
    def page_size(self) -> int:
        return self.cache.page_size

    def start(self, ids: Iterable[int], namespace: Namespace = ALICE, *, copy: bool = True) -> "Stream":
        """Lease the prefix of ``ids``; with ``copy`` False the runner has not come to its copy yet."""
        self._started += 1
        stream = Stream(self, list(ids), namespace, self._started)
        self.streams.append(stream)
        if copy:
            stream.carry_out_copy()
        return stream

    def run(self, ids: Iterable[int], namespace: Namespace = ALICE, *, generate: int = 0) -> int:
        """A whole request: prefill, ``generate`` ids, end. Returns what was cached."""
        stream = self.start(ids, namespace)
        stream.compute()
        stream.insert()
        for token_id in range(generate):
            stream.ids.append(7000 + token_id)
            stream.compute()
        stream.release()
        return stream.cached_len

    def share(self, ids: Iterable[int]) -> None:
        self.marks.append(tuple(ids))
        self.cache.share(self.marks[-1])

    def public_len(self, ids: Sequence[int]) -> int:
        """How many leading tokens of ``ids`` every namespace may know."""
        marks = [mark[: crossing_floor(len(mark))] for mark in self.marks]
        return max((common_prefix_len(ids, mark) for mark in marks), default=0)

    def check(self) -> None:
        """The cache's own check, and every stream still reads what it should."""
        self.cache.check([stream.lease for stream in self.streams])
        for stream in self.streams:
            stream.read()

    def check_idle(self) -> None:
        assert not self.streams
        self.check()
        assert self.cache.free_pages + self.cache.evictable_pages == self.cache.total_pages

    def copy(self, copy: PageCopy) -> None:
        self.slots[copy.dst][: copy.slots] = self.slots[copy.src][: copy.slots]

    def _on_evict(self, evicted: Evicted) -> None:
        ids = unpack(evicted.key)
        first_page = -(-len(ids) // self.page_size) - len(evicted.pages)
        expected = chains(ids)
        for position in range(first_page * self.page_size, len(ids)):
            page, slot = divmod(position, self.page_size)
            found = self.slots[evicted.pages[page - first_page]][slot]
            assert found.chain == expected[position], f"evicted page does not hold position {position}"
        assert not {page for stream in self.streams for page in stream.lease.pages} & set(evicted.pages)
        self.evicted.append(evicted)


def chains(ids: Iterable[int], before: int = 0) -> list[int]:
    """For each position a number that stands for it and every id up to it."""
    found = []
    for token_id in ids:
        before = hash((before, token_id))
        found.append(before)
    return found


@dataclass(eq=False)
class Stream:
    """One request. Its first ``kv_len`` slots, read through its page table, hold what they should."""

    lab: CacheLab
    ids: list[int]
    namespace: Namespace
    number: int
    lease: Lease = field(init=False)
    kv_len: int = field(init=False)
    copied: bool = field(init=False)

    def __post_init__(self) -> None:
        self.lease = self.lab.cache.acquire(self.ids, self.namespace)
        self.kv_len = self.lease.cached_len
        self.copied = self.lease.copy is None
        self._check_copy()
        self._check_cached()

    @property
    def cached_len(self) -> int:
        return self.lease.cached_len

    def _check_copy(self) -> None:
        size, lease = self.lab.page_size, self.lease
        assert lease.cached_len <= max(len(self.ids) - 1, 0)
        assert len(lease.pages) == -(-lease.cached_len // size)
        if lease.copy is not None:
            assert lease.copy.dst == lease.pages[-1]
            assert lease.copy.slots == lease.cached_len - (len(lease.pages) - 1) * size
            assert lease.copy.src not in lease.pages
        else:
            assert lease.cached_len % size == 0

    def _check_cached(self) -> None:
        """What was matched is right, ours to see, and not purged; so is what is to be copied."""
        public_len, expected = self.lab.public_len(self.ids), chains(self.ids[: self.cached_len])
        for position in range(self.cached_len):
            page, at = divmod(position, self.lab.page_size)
            source = self.lease.pages[page]
            if self.lease.copy is not None and source == self.lease.copy.dst:
                source = self.lease.copy.src
            slot = self.lab.slots[source][at]
            assert slot.chain == expected[position], f"wrong KV was matched at position {position}"
            assert position < public_len or slot.namespace == self.namespace, "somebody else's KV was matched"
            assert not slot.writers & self.lab.purged, "purged KV was matched"

    def carry_out_copy(self) -> None:
        """What the runner does first."""
        if not self.copied:
            assert self.lease.copy is not None
            self.lab.copy(self.lease.copy)
            self.copied = True
        self.read()

    def compute(self, upto_len: int | None = None) -> bool:
        """Write KV up to ``upto_len`` (all ids); False, with nothing written, if there are too few pages."""
        upto_len = len(self.ids) if upto_len is None else min(upto_len, len(self.ids))
        size = self.lab.page_size
        missing = max(-(-upto_len // size) - len(self.lease.pages), 0)
        had = list(self.lease.pages)
        if not self.lab.cache.grow(self.lease, missing):
            assert self.lease.pages == had
            return False
        assert self.lease.pages[: len(had)] == had
        for page in self.lease.pages[len(had) :]:
            self.lab.slots[page] = [STALE] * size
        if not self.copied:
            self.carry_out_copy()
        self._write(upto_len)
        return True

    def _write(self, upto_len: int) -> None:
        before = self._slot(self.kv_len - 1) if self.kv_len else STALE
        chain, writers = (before.chain, before.writers) if self.kv_len else (0, frozenset[int]())
        for position in range(self.kv_len, upto_len):
            (chain,) = chains([self.ids[position]], chain)
            writers |= {self.number}
            page, at = divmod(position, self.lab.page_size)
            self.lab.slots[self.lease.pages[page]][at] = Slot(chain, self.namespace, writers)
        self.kv_len = max(self.kv_len, upto_len)

    def _slot(self, position: int) -> Slot:
        page, at = divmod(position, self.lab.page_size)
        return self.lab.slots[self.lease.pages[page]][at]

    def read(self) -> None:
        """Every slot with KV holds the KV of our own ids, and pages are nobody's twice."""
        assert len(set(self.lease.pages)) == len(self.lease.pages)
        ready_len = self.kv_len if self.copied else self.lease.matched_len
        for position, chain in enumerate(chains(self.ids[:ready_len])):
            assert self._slot(position).chain == chain, f"wrong KV at position {position}"

    def insert(self) -> None:
        assert self.copied, "an insert says that the step was run"
        self.lab.cache.insert(self.lease, self.ids, self.kv_len)

    def release(self) -> None:
        """The ordinary end, and an abort or preemption at any moment."""
        self.lab.cache.release(self.lease, self.ids, self.kv_len)
        self._gone()

    def purge(self) -> None:
        self.lab.purged.add(self.number)
        self.lab.cache.purge(self.lease)
        self._gone()

    def _gone(self) -> None:
        assert self.lease.released
        assert self.lease.pages == []
        self.lab.streams.remove(self)
