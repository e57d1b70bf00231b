"""The real cache against a plain model, over simulated KV, with the deep check after every action.

The model is a list of what was kept for each namespace. While nothing was evicted or purged and nothing is
marked as shared, a prompt finds exactly its longest common prefix with what is listed; later, never more.
What it finds is read slot by slot (see `tests.support.kv_pages`).
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from chatd.cache.radix_node import crossing_floor
from chatd.ids import Namespace
from tests.support.kv_pages import ALICE, BOB, CacheLab, Stream, common_prefix_len

MAX_STREAMS = 6
BASE = tuple(range(100, 300))
"""A long text that many prompts begin with; what follows mixes two ids, so that they meet and part."""

PICK = st.integers(0, 10**6)
CUT = st.one_of(st.just(0), PICK)
MORE_IDS = st.lists(st.integers(1, 2), min_size=1, max_size=40)
NAMESPACES = st.sampled_from([ALICE, ALICE, BOB])


def running(machine: "CacheMachine") -> bool:
    return bool(machine.lab.streams)


def room_for_more(machine: "CacheMachine") -> bool:
    return len(machine.lab.streams) < MAX_STREAMS


class CacheMachine(RuleBasedStateMachine):
    page_size = 16
    examples = 200

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[tuple[int, ...]] = [BASE, BASE[:150], ()]
        self.kept: dict[Namespace, list[tuple[int, ...]]] = {ALICE: [], BOB: []}
        self.lab = CacheLab(1, self.page_size)
        self.may_purge = False

    @initialize(
        room_len=st.sampled_from([160, 480, 960, 50000]),
        purges=st.sampled_from([False, True, True]),
        marks=st.sampled_from([0, 0, 1, 2]),
    )
    def open(self, room_len: int, purges: bool, marks: int) -> None:
        self.lab = CacheLab(room_len // self.page_size, self.page_size)
        self.may_purge = purges
        if marks > 0:
            self.lab.share(BASE[:150])
        if marks > 1:
            self.lab.share((*BASE[:100], *([1, 2] * 50)))

    # -- what a scheduler does

    @precondition(room_for_more)
    @rule(text=PICK, cut=CUT, more=MORE_IDS, namespace=NAMESPACES, copy=st.booleans())
    def start(self, text: int, cut: int, more: list[int], namespace: Namespace, copy: bool) -> None:
        self._acquire((*self._cut(text, cut), *more), namespace, copy)

    @precondition(room_for_more)
    @rule(text=PICK, cut=CUT, more=MORE_IDS, namespace=NAMESPACES, chunk=st.integers(1, 200))
    def run(self, text: int, cut: int, more: list[int], namespace: Namespace, chunk: int) -> None:
        """A whole request in chunks, with one id generated; it gives up if it gets no pages."""
        stream = self._acquire((*self._cut(text, cut), *more), namespace, copy=True)
        while stream.kv_len < len(stream.ids) and stream.compute(stream.kv_len + chunk):
            self._insert(stream)
        stream.ids.append(1)
        self._release(stream)

    @precondition(running)
    @rule(which=PICK, count=st.integers(1, 200), insert=st.booleans())
    def compute(self, which: int, count: int, insert: bool) -> None:
        """A chunk of prefill, committed at once or not yet."""
        stream = self._stream(which)
        if stream.compute(stream.kv_len + count) and insert:
            self._insert(stream)

    @precondition(running)
    @rule(which=PICK, more=MORE_IDS)
    def generate(self, which: int, more: list[int]) -> None:
        stream = self._stream(which)
        stream.ids += more
        if stream.compute():
            self._insert(stream)

    @precondition(running)
    @rule(which=PICK)
    def release(self, which: int) -> None:
        """A finish or an abort, at whatever point the stream has come to."""
        self._release(self._stream(which))

    @precondition(running)
    @rule(which=PICK, more=MORE_IDS)
    def preempt(self, which: int, more: list[int]) -> None:
        """Release, then come back with the same ids and some more."""
        stream = self._stream(which)
        self._release(stream)
        self._acquire((*stream.ids, *more), stream.namespace, copy=True)

    @precondition(lambda machine: machine.may_purge and running(machine))
    @rule(which=PICK)
    def purge(self, which: int) -> None:
        stream = self._stream(which)
        matched_len, tree_len = stream.lease.matched_len, stream.lease.tree_len
        self.texts.append(tuple(stream.ids))
        stream.purge()
        if tree_len > matched_len and not self.lab.marks:
            found = self.lab.cache.match_len([*stream.ids[:tree_len], -1], stream.namespace)
            assert found < matched_len + self.page_size

    @rule(pages=st.integers(1, 40))
    def pressure(self, pages: int) -> None:
        """A stranger takes what can be had, and goes without leaving anything."""
        cache = self.lab.cache
        stream = self.lab.start([7])
        assert cache.grow(stream.lease, min(cache.free_pages + cache.evictable_pages, pages))
        self.lab.check()
        stream.release()

    # -- the model

    def _acquire(self, ids: tuple[int, ...], namespace: Namespace, copy: bool) -> Stream:
        cache, marks = self.lab.cache, self.lab.marks
        common = max((common_prefix_len(ids, kept) for kept in self.kept[namespace]), default=0)
        expected = min(common, len(ids) - 1)
        found, free = cache.match_len(ids, namespace), cache.free_pages
        if cache.evicted_pages == 0 and not self.lab.purged:
            assert found >= (crossing_floor(expected) if marks else expected)
        assert found <= expected or marks
        stream = self.lab.start(ids, namespace, copy=copy)
        assert stream.cached_len in (found, stream.lease.matched_len)
        assert stream.cached_len == found or free == 0
        return stream

    def _insert(self, stream: Stream) -> None:
        stream.insert()
        lease, full_len = stream.lease, stream.kv_len - stream.kv_len % self.page_size
        if lease.node.attached and not lease.tainted:
            assert lease.tree_len == full_len or lease.tree_len < lease.shareable_len
        self._keep(stream, lease.tree_len)

    def _release(self, stream: Stream) -> None:
        self._keep(stream, stream.kv_len)
        self.texts.append(tuple(stream.ids))
        stream.release()

    def _keep(self, stream: Stream, length: int) -> None:
        if stream.lease.node.attached and not stream.lease.tainted:
            self.kept[stream.namespace].append(tuple(stream.ids[:length]))

    def _stream(self, which: int) -> Stream:
        return self.lab.streams[which % len(self.lab.streams)]

    def _cut(self, text: int, cut: int) -> tuple[int, ...]:
        base = self.texts[text % len(self.texts)]
        return base[: len(base) - cut % (len(base) + 1)]

    # -- what must hold

    @invariant()
    def all_is_accounted_for(self) -> None:
        self.lab.check()

    def teardown(self) -> None:
        while self.lab.streams:
            self.lab.streams[0].release()
            self.lab.check()
        self.lab.check_idle()


class SmallPages(CacheMachine):
    page_size = 2
    examples = 75


class SmallestPages(CacheMachine):
    page_size = 1
    examples = 50


sizes = pytest.mark.parametrize("machine", [CacheMachine, SmallPages, SmallestPages])


@sizes
def test_cache_against_model(machine: type[CacheMachine]) -> None:
    counts = settings(max_examples=machine.examples, stateful_step_count=50, deadline=None)
    run_state_machine_as_test(machine, settings=counts)


@pytest.mark.full
@pytest.mark.timeout(3600)
@sizes
def test_cache_against_model_in_full(machine: type[CacheMachine]) -> None:
    counts = settings(max_examples=40 * machine.examples, stateful_step_count=100, deadline=None)
    run_state_machine_as_test(machine, settings=counts)
