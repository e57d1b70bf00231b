"""Decode steps over padded sizes and fixed inputs, replayed on a CPU by running them again."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from chatd.engine import graphs
from chatd.engine.device import InlineDevice, Work
from chatd.engine.graphs import MAX_ROWS, bucket_sizes
from chatd.engine.messages import SamplingParams
from chatd.engine.plan import StepPlan, StepRow
from chatd.engine.runner import TorchRunner
from chatd.model.weights import Weights
from chatd_kernels.ops import AttentionSpec, DecodePlan, LayerKV, PagedBatch
from chatd_kernels.reference import ReferenceOps
from tests.support.driving import GREEDY, Driver, poison, weights_of
from tests.support.tiny_models import write_folder

DRAWN = SamplingParams(temperature=1.0, top_p=0.95, seed=42)
ROWS, ROOM = 20, 64


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    return weights_of(write_folder(tmp_path_factory.mktemp("tiny") / "model"))


class CountingDevice(InlineDevice):
    """Replays are counted: a test must not pass because everything ran kernel by kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.replays = 0

    def capture(self, work: Work) -> Work:
        work()

        def replay() -> None:
            self.replays += 1
            work()

        return replay


def captured(weights: Weights, page_size: int = 16, context_length: int = ROOM, **how: Any) -> Driver:
    device = CountingDevice()
    driver = Driver(weights, ROWS, ROOM, page_size, device=device, **how)
    driver.runner.capture(ROWS, context_length, lambda share, what: None)
    return driver


def replays(driver: Driver) -> int:
    device = driver.device
    assert isinstance(device, CountingDevice)
    return device.replays


def prompt(seed: int, length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 300, length)]


def test_sizes_are_dense_where_steps_are_small() -> None:
    assert bucket_sizes(1) == [1]
    assert bucket_sizes(5) == [1, 2, 4, 5]
    assert bucket_sizes(64) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]
    assert bucket_sizes(4096)[-3:] == [448, 480, MAX_ROWS]
    assert len(bucket_sizes(4096)) == 3 + 32 + 8


def test_rows_of_inputs_are_aligned() -> None:
    """A kernel is compiled for pointers that 16 divides, or again for others."""
    inputs = graphs._Inputs(21, 4, 99, InlineDevice())
    for size in (1, 2, 5, 21):
        numbers, table = inputs.views(size)
        assert (numbers.shape, table.shape) == ((6, size), (size, 4))
        assert all(row.data_ptr() % 16 == 0 and row.is_contiguous() for row in numbers)


def decode_steps(
    driver: Driver,
    prompts: Sequence[Sequence[int]],
    how: Callable[[int], SamplingParams],
    counts: Sequence[int],
) -> list[list[int]]:
    """Prefill all; then as many steps as ``counts``, each of that many rows, others each time."""
    known = [[*ids, token] for ids, token in zip(prompts, driver.prefill(prompts), strict=True)]
    random = np.random.default_rng(3)
    for count in counts:
        live = random.permutation(len(prompts))[:count].tolist()
        rows = [driver.row(i, known[i], len(known[i]) - 1, 1, how(i)) for i in live]
        for i, token in zip(live, driver.runner.launch(StepPlan([], rows)).wait(), strict=True):
            known[i].append(token)
    return known


COUNTS = (20, 1, 2, 3, 19, 7, 8, 9, 16, 17, 4, 5, 20, 1)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_padded_steps_give_the_ids_of_plain_ones(weights: Weights, page_size: int) -> None:
    """Any size after any other, greedy and drawn rows together."""
    prompts = [prompt(i, 3 + i) for i in range(ROWS)]

    def how(i: int) -> SamplingParams:
        return GREEDY if i % 3 else replace(DRAWN, seed=i, repetition_penalty=1.0 + i % 2 / 5)

    want = decode_steps(Driver(weights, ROWS, ROOM, page_size), prompts, how, COUNTS)
    driver = captured(weights, page_size)
    assert decode_steps(driver, prompts, how, COUNTS) == want
    assert replays(driver) == len(COUNTS)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8])
def test_nothing_but_a_steps_own_slots_and_the_scratch_page_is_touched(
    weights: Weights, kv_dtype: torch.dtype
) -> None:
    """Capturing and padding leave every other byte as it was, and read none: they are NaN."""
    driver = Driver(weights, ROWS, ROOM, device=CountingDevice(), kv_dtype=kv_dtype)
    pool, fresh = driver.pool, driver.pool.raw.clone()
    driver.runner.capture(ROWS, ROOM, lambda share, what: None)
    assert pages_that_differ(fresh, pool.raw) == {pool.scratch_page}
    poison(pool)
    prompts = [prompt(i, 10) for i in range(3)]
    known = [[*ids, token] for ids, token in zip(prompts, driver.prefill(prompts), strict=True)]
    before = pool.raw.clone()
    rows = [driver.row(i, ids, 10, 1) for i, ids in enumerate(known)]
    assert min(driver.runner.launch(StepPlan([], rows)).wait()) >= 0
    assert replays(driver) == 1
    assert pages_that_differ(before, pool.raw) == {row.pages[0] for row in rows} | {pool.scratch_page}
    for row in rows:
        assert slots_that_differ(driver, before[row.pages[0]], pool.raw[row.pages[0]]) == {10}


def pages_that_differ(was: torch.Tensor, now: torch.Tensor) -> set[int]:
    return {int(page) for page in (was != now).any(1).nonzero()[:, 0]}


def slots_that_differ(driver: Driver, was: torch.Tensor, now: torch.Tensor) -> set[int]:
    """Slots of one page whose K or V changed in any layer."""
    shape, dtype = driver.pool.planes.shape[1:], driver.pool.planes.dtype
    nbytes = shape.numel() * dtype.itemsize
    was, now = (record[:nbytes].view(*shape[:-1], -1) for record in (was, now))
    return {int(slot) for slot in (was != now).any(-1).nonzero()[:, 3]}


class WatchedOps(ReferenceOps):
    """Remembers the last decode's rows: the pages that each reads, and how many tokens."""

    def __init__(self) -> None:
        self.rows: list[tuple[list[int], int]] = []

    def plan_decode(self, batch: PagedBatch, kv: LayerKV, spec: AttentionSpec) -> DecodePlan:
        used = zip(batch.page_table, batch.kv_lens.tolist(), strict=True)
        self.rows = [(line[: -(-kv_len // kv.k.shape[2])].tolist(), kv_len) for line, kv_len in used]
        return super().plan_decode(batch, kv, spec)


def test_padding_reads_one_token_of_the_scratch_page(weights: Weights) -> None:
    driver = Driver(weights, ROWS, ROOM)
    ops = WatchedOps()
    driver.runner = TorchRunner(weights, driver.pool, ops)
    driver.runner.capture(ROWS, ROOM, lambda share, what: None)
    for count, size in ((20, 20), (5, 8), (17, 20), (1, 1), (3, 4)):
        rows = [driver.row(i, prompt(i, 30), 20 + i % 3, 1) for i in range(count)]
        driver.runner.launch(StepPlan([], rows)).wait()
        assert ops.rows[:count] == [(list(row.pages[:2]), row.start + 1) for row in rows]
        assert ops.rows[count:] == [([driver.pool.scratch_page], 1)] * (size - count)


def test_a_step_with_any_chunk_or_too_long_a_row_runs_kernel_by_kernel(weights: Weights) -> None:
    ids = prompt(1, 40)
    want = Driver(weights, ROWS, ROOM).generate([ids, ids[:9]], 4)
    driver = captured(weights, context_length=32)
    answers = driver.generate([ids, ids[:9]], 4)
    assert answers == want
    assert replays(driver) == 0
    known = [*ids[:9], *answers[1]]
    mixed = [driver.row(1, known, len(known) - 1, 1), driver.row(2, ids, 0, 40)]
    driver.runner.launch(StepPlan([], mixed)).wait()
    assert replays(driver) == 0
    driver.runner.launch(StepPlan([], mixed[:1])).wait()
    assert replays(driver) == 1


def test_rows_that_do_not_sample_are_computed_and_not_answered(weights: Weights) -> None:
    """The last token of a chunk that a step's budget cut to one token, among decodes."""
    prompts = [prompt(i, 12) for i in range(4)]

    def step(driver: Driver) -> tuple[list[int], list[int]]:
        for i, ids in enumerate(prompts):
            driver.runner.launch(StepPlan([], [driver.row(i, ids, 0, 10, sample=False)])).wait()
        rows: list[StepRow] = [driver.row(i, ids, 10, 1, sample=i % 2 == 1) for i, ids in enumerate(prompts)]
        first = driver.runner.launch(StepPlan([], rows)).wait()
        none = driver.runner.launch(StepPlan([], [driver.row(0, prompts[0], 11, 1, sample=False)])).wait()
        assert none == []
        return first, driver.runner.launch(StepPlan([], [driver.row(2, prompts[2], 11, 1)])).wait()

    driver = captured(weights)
    assert step(driver) == step(Driver(weights, ROWS, ROOM))
    assert replays(driver) == 3


def test_a_warm_up_touches_the_scratch_page_only(weights: Weights) -> None:
    driver = captured(weights)
    before = driver.pool.raw.clone()
    driver.runner.warm_up(50, 8, ROOM)
    driver.runner.warm_up(8, 8, ROOM)
    assert pages_that_differ(before, driver.pool.raw) == {driver.pool.scratch_page}
