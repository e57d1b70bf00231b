"""Loading from disk or computing again: the choice follows what both cost here, and is nearly the best."""

from collections.abc import Callable
from random import Random

import pytest

from chatd.cache.costs import Costs
from chatd.engine.messages import TierOutcome
from tests.engine.tiers import TierLab
from tests.support.engines import request
from tests.support.lab import prompt


def run(
    load_s: Callable[[int], float], compute_s: Callable[[int], float], count: int, *, each_time: bool = False
) -> tuple[float, float]:
    """Seconds spent by the choices made over ``count`` requests, and by the better of always loading and
    always computing; with ``each_time`` by the better of the two at each request.

    ``load_s(i)`` and ``compute_s(i)`` are what a block's load and a token cost at request ``i``.
    """
    random, costs = Random(1), Costs()
    spent = best = all_loaded = all_computed = 0.0
    for i in range(count):
        blocks = random.randint(1, 40)
        tokens = blocks * 64 - random.randint(0, 63)
        loading, computing = blocks * load_s(i), tokens * compute_s(i)
        best += min(loading, computing) if each_time else 0.0
        all_loaded += loading
        all_computed += computing
        taken = costs.blocks_to_load(blocks, tokens)
        if taken:
            costs.restore_took(taken, taken * load_s(i))
            spent += loading * taken / blocks
        if taken < blocks:
            costs.step_took(tokens, computing)
            spent += computing * (1 - taken / blocks)
        # A turn computes something in any case.
        costs.step_took(64, 64 * compute_s(i))
    return spent, best or min(all_loaded, all_computed)


@pytest.mark.parametrize(
    ("load_ms", "compute_ms"),
    [(1.5, 0.5), (30, 0.5), (32, 0.5), (60, 0.5), (500, 0.5), (1, 0.01), (1, 0.02), (8, 0.1)],
)
def test_within_a_tenth_of_the_better_choice(load_ms: float, compute_ms: float) -> None:
    noise = Random(2)

    def noisy(ms: float) -> Callable[[int], float]:
        return lambda i: ms / 1e3 * noise.uniform(0.7, 1.3)

    spent, best = run(noisy(load_ms), noisy(compute_ms), 600)
    assert spent <= 1.1 * best


@pytest.mark.parametrize("period", [150, 300])
def test_a_disk_that_gets_slow_and_fast_again_is_noticed(period: int) -> None:
    def load_s(i: int) -> float:
        return 0.1 if (i // period) % 2 else 0.002

    spent, best = run(load_s, lambda i: 0.0005, 1200, each_time=True)
    assert spent <= 1.1 * best


def test_the_choice_and_its_estimates_are_recorded() -> None:
    lab = TierLab()
    lab.answer(request("a", prompt(1, 400), 4))
    slow = lab.restarted(costs=Costs(load_block_s=0.2, compute_token_s=0.001))
    note = slow.answer(request("b", prompt(1, 400), 4)).prefilled.tier
    assert note.outcome is TierOutcome.CHEAPER
    assert note.load_ms > note.compute_ms > 0
    fast = lab.restarted(costs=Costs(load_block_s=0.002, compute_token_s=0.001))
    note = fast.answer(request("b", prompt(1, 400), 4)).prefilled.tier
    assert note.outcome is TierOutcome.LOADED
    assert note.compute_ms > note.load_ms > 0
    assert note.restore_ms > 0


@pytest.mark.parametrize("overlaps", [False, True])
def test_ten_times_more_than_the_pages_hold(overlaps: bool) -> None:
    """64 sessions of five turns in a pool of a tenth: nearly every block that was ever computed is a hit."""
    sessions, turns = 64, 5
    lab = TierLab(128, max_running=4, overlaps=overlaps)
    lab.work = 3
    histories = [prompt(i, 60) for i in range(sessions)]
    prompts = hits = best = 0
    for turn in range(turns):
        outcomes = [lab.submit(request(f"{turn}.{i}", history, 20)) for i, history in enumerate(histories)]
        known = [len(history) - 45 if turn else 0 for history in histories]
        lab.run()
        for i, outcome in enumerate(outcomes):
            prompts += outcome.prefilled.prompt_tokens
            hits += outcome.prefilled.gpu_hit + outcome.prefilled.disk_hit
            best += known[i] // 64 * 64
            histories[i] += [*outcome.done.token_ids, *prompt(1000 + turn * sessions + i, 44)]
    assert sum(map(len, histories)) > 9 * 128 * 16
    assert lab.last.counters.evicted_pages > 1000
    assert hits / prompts >= best / prompts - 0.02
