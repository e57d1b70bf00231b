"""The tier against a plain model: everything in one dict, laws worked out naively, after every action.

The tier chooses what to evict; the model only knows what it may choose: a leaf that is not pinned and was
not used after any other such leaf, and only when the quota leaves no slot.
"""

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from chatd.cache.block_tier import Block, ReadOutcome
from chatd.cache.disk.room import NoRoom
from chatd.cache.disk.tier import DiskTier
from chatd.ids import Namespace
from tests.cache.disk.lab import ALICE, BOB, BODY, Clock, abandon, body_of, check, fetch, open_tier, path_of

pytestmark = pytest.mark.usefixtures("small_segments")

PATHS = st.integers(1, 5)
LENGTHS = st.integers(1, 7)
NAMESPACES = st.sampled_from([ALICE, BOB])


@dataclass
class Kept:
    parent: bytes
    namespace: Namespace
    used: int
    until: float


class TierMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._home = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.model: dict[bytes, Kept] = {}
        self.pins: dict[str, set[bytes]] = {}
        self.ttls: dict[Namespace | None, float] = {}
        self.tier = self._open()

    def _open(self) -> DiskTier:
        return open_tier(Path(self._home.name) / "kv", clock=self.clock)

    def teardown(self) -> None:
        self.tier.close()
        self._home.cleanup()

    # -- the model's laws

    def _ttl(self, namespace: Namespace) -> float:
        return self.ttls.get(namespace, self.ttls.get(None, math.inf))

    def _pinned(self, key: bytes) -> bool:
        return any(key in keys for keys in self.pins.values())

    def _expired(self, key: bytes) -> bool:
        return self.model[key].until < self.clock.now and not self._pinned(key)

    def _leaf(self, key: bytes) -> bool:
        return not any(one.parent == key for one in self.model.values())

    def _use(self, key: bytes) -> None:
        if key not in self.model:
            return
        until = int(self.clock.now) + self._ttl(self.model[key].namespace)
        while key in self.model:
            kept = self.model[key]
            kept.used, kept.until = max(kept.used, int(self.clock.now)), max(kept.until, until)
            until, key = kept.until, kept.parent

    def _gone(self, at_once: set[bytes]) -> None:
        """Take out of the model what the tier evicted, if it might."""
        evicted = set(self.model) - self._stored() - at_once
        while evicted:
            leaves = [k for k in self.model if self._leaf(k) and not self._pinned(k) and k not in at_once]
            oldest = min(self.model[key].used for key in leaves)
            may_go = {key for key in leaves if self.model[key].used == oldest} & evicted
            assert may_go, "something else should have gone first"
            for key in may_go:
                del self.model[key]
            evicted -= may_go

    def _stored(self) -> set[bytes]:
        return {entry.key for entry in self.tier._store.index.entries()}

    def _blocks(self, path: int, length: int, namespace: Namespace) -> list[Block]:
        return path_of(self.tier, path, length, namespace)

    def _reckon(self) -> None:
        """Times to live anew from when things were used."""
        for kept in self.model.values():
            kept.until = kept.used + self._ttl(kept.namespace)
        for _ in self.model:
            for kept in self.model.values():
                if above := self.model.get(kept.parent):
                    above.until = max(above.until, kept.until)
                    above.used = max(above.used, kept.used)

    def _expire(self) -> None:
        while going := [key for key in self.model if self._expired(key) and self._leaf(key)]:
            for key in going:
                del self.model[key]

    # -- what the engine does

    @rule(path=PATHS, length=LENGTHS, namespace=NAMESPACES, backwards=st.booleans())
    def write(self, path: int, length: int, namespace: Namespace, backwards: bool) -> None:
        blocks = self._blocks(path, length, namespace)
        for block in reversed(blocks) if backwards else blocks:
            known = block.key in self.model
            if not known:
                self.model[block.key] = Kept(block.parent, namespace, int(self.clock.now), 0.0)
            try:
                self.tier._store.put(block, body_of(block))
            except NoRoom:
                assert all(not self._leaf(key) or self._pinned(key) for key in self.model)
                del self.model[block.key]
                return
            if set(self.model) != self._stored():
                assert self._is_full()
            self._gone({block.key})
            self._use(block.key)

    def _is_full(self) -> bool:
        folder, quota = self.tier._store.folder, self.tier._store.quota_bytes
        own = folder.segments.values()
        return (
            not any(one.free for one in own)
            and not (any(one.room for one in own) and folder.nbytes + BODY <= quota)
            and folder.nbytes + 4096 + BODY > quota
        )

    @rule(path=PATHS, length=LENGTHS, namespace=NAMESPACES)
    def read(self, path: int, length: int, namespace: Namespace) -> None:
        for block in self._blocks(path, length, namespace):
            stored = block.key in self.model and not self._expired(block.key)
            assert self.tier.has(block.key) == stored
            assert fetch(self.tier, block) is (ReadOutcome.OK if stored else ReadOutcome.MISSING)
            if stored:
                self._use(block.key)
            elif block.key in self.model:
                self._expire()

    @rule(path=PATHS, length=LENGTHS, namespace=NAMESPACES)
    def use(self, path: int, length: int, namespace: Namespace) -> None:
        keys = [block.key for block in self._blocks(path, length, namespace)]
        self.tier._store.use(keys)
        for key in keys:
            self._use(key)

    @rule(path=PATHS, length=LENGTHS, namespace=NAMESPACES)
    def forget(self, path: int, length: int, namespace: Namespace) -> None:
        blocks, gone = self._blocks(path, length, namespace), 0
        for block in reversed(blocks):
            if not self._leaf(block.key) or (block.key in self.model and self._pinned(block.key)):
                break
            gone += self.model.pop(block.key, None) is not None
        assert self.tier._store.forget([blocks]) == gone

    @rule(namespace=st.sampled_from([ALICE, BOB, None]))
    def clear(self, namespace: Namespace | None) -> None:
        going = [
            key
            for key, kept in self.model.items()
            if namespace in (None, kept.namespace) and not self._pinned(key)
        ]
        for key in going:
            del self.model[key]
        assert self.tier._store.clear(namespace) == len(going)

    # -- what the operator does

    @rule(name=st.sampled_from("xy"), path=PATHS, length=st.integers(1, 3), namespace=NAMESPACES)
    def pin(self, name: str, path: int, length: int, namespace: Namespace) -> None:
        blocks = self._blocks(path, length, namespace)
        self.pins[name] = {block.key for block in blocks}
        self.tier.pin(name, blocks)

    @rule(name=st.sampled_from("xy"))
    def unpin(self, name: str) -> None:
        self.pins.pop(name, None)
        self.tier.unpin(name)

    @rule(namespace=st.sampled_from([ALICE, BOB, None]), seconds=st.sampled_from([None, 5.0, 50.0, 500.0]))
    def set_ttl(self, namespace: Namespace | None, seconds: float | None) -> None:
        self.ttls.pop(namespace, None)
        if seconds is not None:
            self.ttls[namespace] = seconds
        self.tier.set_ttl(namespace, seconds)
        self._reckon()

    # -- what time does

    @rule(seconds=st.sampled_from([0.3, 1.0, 7.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def housekeeping(self) -> None:
        for _ in range(30):
            self.tier._keeping.step()
        if not set(self.model) <= self._stored():
            self._expire()

    @rule()
    def restart(self) -> None:
        self.tier.close()
        self.tier = self._open()
        self._reckon()

    @rule()
    def kill(self) -> None:
        """What was used when is only known as of the last save: the model takes what the tier knows."""
        abandon(self.tier)
        self.tier = self._open()
        assert set(self.model) == self._stored()
        for entry in self.tier._store.index.entries():
            kept = self.model[entry.key]
            assert entry.last_used <= kept.used
            kept.used, kept.until = entry.last_used, entry.kept_until

    @invariant()
    def agrees(self) -> None:
        check(self.tier)
        assert set(self.model) == self._stored()
        for entry in self.tier._store.index.entries():
            kept = self.model[entry.key]
            assert (entry.parent, entry.namespace, entry.last_used) == (
                kept.parent,
                kept.namespace,
                kept.used,
            )
        assert {one.name: one.blocks for one in self.tier.pins()} == {
            name: len(keys) for name, keys in self.pins.items()
        }


def test_the_tier_does_what_the_model_says() -> None:
    run_state_machine_as_test(
        TierMachine, settings=settings(max_examples=40, stateful_step_count=25, deadline=None)
    )


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_tier_does_what_the_model_says_at_length() -> None:
    run_state_machine_as_test(
        TierMachine, settings=settings(max_examples=1500, stateful_step_count=50, deadline=None)
    )
