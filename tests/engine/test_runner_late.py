"""`TorchRunner` on a device that does its work late, in any order it is allowed: same ids, same bytes."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from chatd.engine.device import InlineDevice
from chatd.engine.messages import SamplingParams
from chatd.engine.plan import BAD_ROW, Flight, PageRestore, PageSpill, StepPlan, StepRow
from chatd.model.weights import Weights
from tests.support.driving import GREEDY, Driver, weights_of
from tests.support.late_device import LateDevice
from tests.support.tiny_models import write_folder

DRAWN = SamplingParams(temperature=1.0, top_p=0.95, seed=42)
SEEDS = range(12)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    return weights_of(write_folder(tmp_path_factory.mktemp("tiny") / "model"))


def prompt(seed: int, length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 300, length)]


class Overlapped:
    """Requests stepped as the engine does: a step is launched while the one before it flies."""

    def __init__(
        self, driver: Driver, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], count: int
    ) -> None:
        self.driver = driver
        self.known = [list(ids) for ids in prompts]
        self.prompt_lens = [len(ids) for ids in prompts]
        self.done = [0] * len(prompts)
        self.params = params
        self.count = count
        self.flight: tuple[Flight, list[int]] | None = None

    def run(self, random: np.random.Generator) -> list[list[int]]:
        while self.flight is not None or any(map(self._left, range(len(self.known)))):
            rows = [self._row(i, int(random.integers(1, 12))) for i in random.permutation(len(self.known))]
            before = self.flight
            planned = [row for row in rows if row is not None]
            self.flight = None
            if planned:
                sampling = [int(row.rid) for row in planned if row.sample]
                self.flight = (self.driver.runner.launch(StepPlan([], planned)), sampling)
            if before is not None:
                for i, token in zip(before[1], before[0].wait(), strict=True):
                    self.known[i].append(token)
        return [ids[n:] for ids, n in zip(self.known, self.prompt_lens, strict=True)]

    def _left(self, i: int) -> int:
        """Tokens that are still to be computed for the answer's ids."""
        return self.prompt_lens[i] + self.count - 1 - self.done[i]

    def _row(self, i: int, chunk: int) -> StepRow | None:
        known = self.known[i]
        if not self._left(i):
            return None
        start = self.done[i]
        pending = start == len(known)
        size = 1 if pending else min(chunk, len(known) - start)
        self.done[i] += size
        row = self.driver.row(
            i,
            known,
            start,
            size,
            self.params[i],
            prompt_len=self.prompt_lens[i],
            sample=self.done[i] >= len(known),
        )
        row.pending = pending
        return row


PROMPTS = [prompt(i, length) for i, length in enumerate((9, 33, 1, 47, 16))]
PARAMS = [GREEDY, DRAWN, replace(DRAWN, seed=7), GREEDY, replace(DRAWN, top_k=5, logit_bias=((9, 2.0),))]


@pytest.fixture(scope="module")
def alone(weights: Weights) -> list[list[int]]:
    """Each request by itself on a device that does everything at once."""
    return [
        Overlapped(Driver(weights, 1, 80), [ids], [how], 9).run(np.random.default_rng(0))[0]
        for ids, how in zip(PROMPTS, PARAMS, strict=True)
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_overlapping_steps_give_the_same_ids(
    weights: Weights, alone: list[list[int]], seed: int, graphs: bool
) -> None:
    driver = Driver(weights, 5, 80, device=LateDevice(seed))
    if graphs:
        driver.runner.capture(5, 80, lambda share, what: None)
    assert driver.runner.overlaps
    assert Overlapped(driver, PROMPTS, PARAMS, 9).run(np.random.default_rng(seed)) == alone


def test_a_bad_row_gives_the_step_that_flies_a_valid_id(weights: Weights) -> None:
    driver = Driver(weights, 2, 80, device=LateDevice(1))
    known = [[*ids, token] for ids, token in zip(PROMPTS[:2], driver.prefill(PROMPTS[:2]), strict=True)]
    driver.pool.planes[driver.row(0, known[0], 0, 1).pages[0], 0, 0] = torch.nan
    first = [driver.row(i, ids, len(ids) - 1, 1) for i, ids in enumerate(known)]
    second = [replace(row, start=row.start + 1, pending=True) for row in first]
    flights = [driver.runner.launch(StepPlan([], rows)) for rows in (first, second)]
    (bad, good), (still_bad, more) = (flight.wait() for flight in flights)
    assert bad == still_bad == BAD_ROW
    assert min(good, more) >= 0


def fill(driver: Driver, ticket: int, pages: tuple[int, ...], seed: int) -> PageRestore:
    buffer = driver.runner.take_buffer()
    assert buffer is not None
    buffer.view[:] = np.random.default_rng(seed).bytes(len(buffer.view))
    return PageRestore(ticket, pages, buffer)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_spill_has_what_was_there_before_its_step(weights: Weights, seed: int) -> None:
    """The same step overwrites the pages with a row; what comes back from the buffer is what was."""
    driver = Driver(weights, 2, 64, page_size=16, device=LateDevice(seed))
    ids = prompt(3, 64)
    driver.prefill([ids])
    row = driver.row(0, prompt(4, 64), 0, 64, sample=False)
    pages = tuple(row.pages)
    before = driver.pool.raw[list(pages)].numpy().tobytes()
    buffer = driver.runner.take_buffer()
    assert buffer is not None
    driver.runner.launch(StepPlan([], [row], spills=[PageSpill(7, pages, buffer)]))
    assert driver.runner.copies_done(wait=True) == [7]
    assert buffer.view.tobytes() == before
    restore = PageRestore(8, pages, buffer)
    driver.runner.launch(StepPlan([], [], restores=[restore]))
    assert driver.runner.copies_done(wait=True) == [8]
    assert driver.pool.raw[list(pages)].numpy().tobytes() == before
    assert driver.runner.copies_done(wait=True) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_restore_comes_after_the_step_that_still_writes_its_pages(weights: Weights, seed: int) -> None:
    """The pages were freed while that step flies. And what is not named yet may not be there."""
    driver = Driver(weights, 2, 64, page_size=16, device=LateDevice(seed))
    row = driver.row(0, prompt(4, 64), 0, 64, sample=False)
    flight = driver.runner.launch(StepPlan([], [row]))
    restore = fill(driver, 1, tuple(row.pages), seed)
    other = driver.row(1, prompt(5, 20), 0, 20)
    driver.runner.launch(StepPlan([], [other], restores=[restore]))
    told: list[int] = []
    while not told:
        told = driver.runner.copies_done(wait=False)
    assert told == [1]
    flight.wait()
    assert driver.pool.raw[row.pages].numpy().tobytes() == restore.buffer.view.tobytes()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_page_may_be_spilled_and_restored_to_in_one_step(weights: Weights, seed: int) -> None:
    driver = Driver(weights, 2, 64, page_size=16, device=LateDevice(seed))
    row = driver.row(0, prompt(4, 64), 0, 64, sample=False)
    driver.runner.launch(StepPlan([], [row])).wait()
    before = driver.pool.raw[row.pages].numpy().tobytes()
    buffer = driver.runner.take_buffer()
    assert buffer is not None
    restore = fill(driver, 2, tuple(row.pages), seed)
    driver.runner.launch(StepPlan([], [], [PageSpill(1, tuple(row.pages), buffer)], [restore]))
    told: list[int] = []
    while len(told) < 2:
        told += driver.runner.copies_done(wait=True)
    assert told == [1, 2]
    assert buffer.view.tobytes() == before
    assert driver.pool.raw[row.pages].numpy().tobytes() == restore.buffer.view.tobytes()


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_a_part_of_a_block_is_restored(weights: Weights, page_size: int) -> None:
    driver = Driver(weights, 1, 128, page_size=page_size, device=LateDevice(page_size))
    skip = 64 // page_size // 2
    pages = tuple(range(64 // page_size - skip))
    before = driver.pool.raw[len(pages) :].clone()
    restore = replace(fill(driver, 1, pages, 1), skip=skip)
    driver.runner.launch(StepPlan([], [], restores=[restore]))
    assert driver.runner.copies_done(wait=True) == [1]
    records = np.frombuffer(restore.buffer.view, np.uint8).reshape(64 // page_size, -1)
    assert np.array_equal(driver.pool.raw[: len(pages)].numpy(), records[skip:])
    assert torch.equal(driver.pool.raw[len(pages) :], before)


def test_buffers_are_bounded_and_come_back_once(weights: Weights) -> None:
    runner = Driver(weights, 1, 64, device=InlineDevice()).runner
    buffers = []
    while (buffer := runner.take_buffer()) is not None:
        buffers.append(buffer)
    assert len(buffers) >= 8
    assert len(buffers) * runner.block_bytes <= max(64 << 20, 8 * runner.block_bytes)
    assert {len(buffer.view) for buffer in buffers} == {runner.block_bytes}
    givers = [threading.Thread(target=buffer.release) for buffer in buffers[:4] * 5]
    for giver in givers:
        giver.start()
    for giver in givers:
        giver.join()
    again = [runner.take_buffer() for _ in range(5)]
    assert again.count(None) == 1
    with pytest.raises(AssertionError, match="after its release"):
        _ = buffers[0].view
