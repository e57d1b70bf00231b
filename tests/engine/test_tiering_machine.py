"""Random requests, aborts, faults, damage, commands and restarts over a small pool and a disk."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from chatd.cache.block_tier import Block, ReadOutcome
from chatd.cache.costs import Costs
from chatd.engine.messages import (
    CacheCommand,
    ClearCache,
    Forget,
    PinPrefix,
    Probe,
    UnpinPrefix,
    Warm,
)
from chatd.ids import Namespace, Rid
from tests.engine.asking_machine import AskingMachine
from tests.engine.tiers import TierLab

PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=4)
NAMESPACES = st.sampled_from(["a", "b"])


def tree_prompt(path: list[int]) -> list[int]:
    """Prompts that share prefixes of up to four blocks."""
    ids: list[int] = []
    for depth, step in enumerate(path):
        ids += [33 + (step * 17 + depth * 5 + i) % 90 for i in range(50 + (step * 29 + depth * 13) % 60)]
    return ids


class TieringMachine(AskingMachine):
    lab: TierLab

    @initialize(
        page_size=st.sampled_from([1, 8, 16, 64]),
        tokens=st.integers(500, 1100),
        step_tokens=st.integers(16, 128),
        overlaps=st.booleans(),
        write_through=st.booleans(),
        num_buffers=st.integers(1, 12),
        load_s=st.sampled_from([0.0001, 0.0001, 0.0001, 10.0]),
    )
    def start(self, page_size: int, tokens: int, load_s: float, **options: object) -> None:
        self.shape = (max(10, tokens // page_size), page_size)
        self.options = {"max_running": 4, "costs": Costs(load_s, 0.001), **options}
        self.lab = TierLab(*self.shape, **self.options)  # type: ignore[arg-type]
        self.submits = []
        self.bad = set()
        self.damaged: set[int] = set()
        self._prepare()

    def _prepare(self) -> None:
        self.lab.runner.bad = lambda row: row.rid in self.bad
        self.lab.tier.read_outcome = self._outcome
        self.lab.tier.accepts = True

    def _outcome(self, block: Block) -> ReadOutcome:
        picked = block.key[0] % 8
        if picked in self.damaged:
            return (ReadOutcome.DAMAGED, ReadOutcome.FAILED)[block.key[1] % 2]
        return ReadOutcome.OK

    @rule(path=PATHS, max_tokens=st.integers(1, 90), namespace=NAMESPACES, seed=st.integers(0, 2))
    def submit(self, path: list[int], max_tokens: int, namespace: str, seed: int) -> None:
        self.ask(tree_prompt(path), max_tokens, namespace, seed)

    @rule(steps=st.integers(1, 12), work=st.integers(0, 8))
    def step(self, steps: int, work: int) -> None:
        self.lab.work = work
        for _ in range(steps):
            self.lab.step()

    @rule(depth=st.integers(1, 4), work=st.sampled_from([1, 2, 1 << 30]))
    def a_turn_each(self, depth: int, work: int) -> None:
        """More than the pages hold, one after the other, so that what was there is pushed out."""
        for step in range(3):
            self.submit([step] * depth, 2, "a", 0)
        self.lab.work = work
        self.lab.run()

    @rule(damaged=st.sets(st.integers(0, 7), max_size=3), accepts=st.booleans())
    def disk(self, damaged: set[int], accepts: bool) -> None:
        self.damaged = damaged
        self.lab.tier.accepts = accepts

    @rule(path=PATHS, namespace=NAMESPACES, which=st.integers(0, 5))
    def command(self, path: list[int], namespace: str, which: int) -> None:
        ids, owner, rid = tuple(tree_prompt(path)), Namespace(namespace), Rid("command")
        commands: list[CacheCommand] = [
            Warm(owner, ids),
            Probe(rid, owner, ids),
            Forget(rid, owner, (ids,)),
            PinPrefix(rid, "pin", owner, ids),
            UnpinPrefix(rid, "pin"),
            ClearCache(rid, owner),
        ]
        self.lab.take(commands[which])

    @rule()
    def restart(self) -> None:
        self._finish()
        self.lab = TierLab(*self.shape, tier=self.lab.tier, **self.options)  # type: ignore[arg-type]
        self.submits = []
        self._prepare()

    def _finish(self) -> None:
        self.lab.work = 1 << 30
        self.lab.run()
        self.lab.step()
        self.assert_ended_as_cold()

    def teardown(self) -> None:
        if hasattr(self, "lab"):
            self._finish()


TestTieringMachine = TieringMachine.TestCase
TestTieringMachine.settings = settings(
    max_examples=120, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
