"""A decode step that is replayed answers as one that is made anew, to the bit."""

from pathlib import Path

import pytest
import torch

from chatd.engine.messages import SamplingParams
from chatd.engine.plan import StepPlan, StepRow
from chatd.engine.runner import TorchRunner
from chatd.ids import Rid
from chatd.model.kv_pool import KVPool, plan_pages
from chatd.model.load import load_weights, open_model
from chatd.model.weights import Weights
from chatd_kernels import load_backend
from chatd_kernels.cpu import crew, team
from tests.support.driving import CPU

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not crew.can_help(), reason="no such threads on this system"),
]
PARAMS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.8, top_p=0.95, seed=3),
    SamplingParams(temperature=0, frequency_penalty=0.5),
]
LENS = [510, 40, 16]
COUNTS = [1, 1, 1, 2, 1, 3, 3, 2, 2, 3, 1, 3]
"""How many of the requests decode in each step: lengths pass the ends of pages and of splits."""


@pytest.fixture(scope="module")
def weights(model_path: Path) -> Weights:
    return load_weights(open_model(model_path), dtype=torch.float32, bits=4, device=CPU)


def answers(weights: Weights, *, record: bool) -> list[list[int]]:
    kv = torch.bfloat16
    pool = KVPool(weights.config, plan_pages(weights.config, kv, 16, 64 << 20), kv, CPU)
    runner = TorchRunner(weights, pool, load_backend("cpu"))
    if record:
        runner.record(3, 1024)
    known = [[(7 * i + 37 * j) % 49_000 for j in range(length)] for i, length in enumerate(LENS)]

    def row(i: int, start: int) -> StepRow:
        ids, pages = known[i], list(range(40 * i, 40 * i + 40))
        return StepRow(Rid(str(i)), ids, start, len(ids) - start, pages, True, LENS[i], PARAMS[i])

    for i in range(len(LENS)):
        known[i] += runner.launch(StepPlan([], [row(i, 0)])).wait()
    for count in COUNTS:
        rows = [row(i, len(known[i]) - 1) for i in range(count)]
        for i, token in enumerate(runner.launch(StepPlan([], rows)).wait()):
            known[i].append(token)
    return [ids[length:] for ids, length in zip(known, LENS, strict=True)]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_replayed_step_is_the_step(weights: Weights, threads: int) -> None:
    team.use_own_threads(True)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert answers(weights, record=True) == answers(weights, record=False)
    finally:
        torch.set_num_threads(before)


def test_k1_a_bad_row_in_the_step_that_is_recorded_is_no_reason_to_record_none(
    weights: Weights, caplog: pytest.LogCaptureFixture
) -> None:
    kv = torch.bfloat16
    pool = KVPool(weights.config, plan_pages(weights.config, kv, 16, 64 << 20), kv, CPU)
    pool.planes[1].fill_(torch.nan)
    runner = TorchRunner(weights, pool, load_backend("cpu"))
    runner.record(2, 64)
    rows = [StepRow(Rid(str(i)), [5] * 9, 8, 1, [i], True, 8, PARAMS[0]) for i in range(2)]
    good, bad = runner.launch(StepPlan([], rows)).wait()
    assert (good >= 0, bad) == (True, -1)
    assert runner.launch(StepPlan([], rows)).wait() == [good, bad]
    assert not caplog.records
