"""Random submits, aborts, faults and steps over a small pool: every text equals its cold reference."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.engine.asking_machine import AskingMachine
from tests.support.engines import ChecksumRunner, toy_scheduler
from tests.support.lab import Lab


def tree_prompt(path: list[int]) -> list[int]:
    """Prompts that share prefixes of many lengths: each step of the path adds 1 to 23 ids."""
    ids: list[int] = []
    for step in path:
        ids += [33 + (step * 17 + i) % 90 for i in range(1 + step * 11 % 23)]
    return ids


class SchedulerMachine(AskingMachine):
    @initialize(
        page_size=st.sampled_from([1, 2, 16]),
        tokens=st.integers(160, 400),
        step_tokens=st.integers(4, 96),
        enabled=st.booleans() | st.just(True),
        overlaps=st.booleans(),
    )
    def start(self, page_size: int, tokens: int, step_tokens: int, enabled: bool, overlaps: bool) -> None:
        pages = max(8, tokens // page_size)
        self.lab = Lab(
            toy_scheduler(pages, page_size, step_tokens=step_tokens, max_running=4, enabled=enabled),
            ChecksumRunner(pages, page_size, overlaps=overlaps),
        )
        self.submits = []
        self.bad = set()
        self.lab.runner.bad = lambda row: row.rid in self.bad

    @rule(
        path=st.lists(st.integers(0, 5), min_size=1, max_size=6),
        max_tokens=st.integers(1, 40),
        namespace=st.sampled_from(["a", "b"]),
        seed=st.integers(0, 2),
    )
    def submit(self, path: list[int], max_tokens: int, namespace: str, seed: int) -> None:
        self.ask(tree_prompt(path), max_tokens, namespace, seed)

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            if self.lab.scheduler.has_work:
                self.lab.step()

    def teardown(self) -> None:
        if not hasattr(self, "lab"):
            return
        self.lab.run()
        self.assert_ended_as_cold()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=200, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
