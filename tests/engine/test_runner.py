"""`TorchRunner` on a random model: plans in, ids out, whatever the mixture of rows."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from chatd.engine.batch import build_batch
from chatd.engine.messages import SamplingParams
from chatd.engine.plan import BAD_ROW, PageCopy, StepPlan, StepRow
from chatd.engine.sampling import logit_edits
from chatd.ids import Rid
from chatd.model.weights import Weights
from tests.support.driving import GREEDY, Driver, weights_of
from tests.support.tiny_models import write_folder

DRAWN = SamplingParams(temperature=1.0, top_p=0.95, seed=42)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    return weights_of(write_folder(tmp_path_factory.mktemp("tiny") / "model"))


def prompt(seed: int, length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 300, length)]


def answer(driver: Driver, i: int, ids: Sequence[int], count: int, params: SamplingParams) -> list[int]:
    """``count`` ids of one request alone."""
    known = list(ids)
    start = 0
    for _ in range(count):
        row = driver.row(i, known, start, len(known) - start, params, prompt_len=len(ids))
        known += driver.runner.launch(StepPlan([], [row])).wait()
        start = len(known) - 1
    return known[len(ids) :]


@pytest.mark.parametrize("page_size", [1, 2, 16])
def test_mixed_steps_equal_each_request_alone(weights: Weights, page_size: int) -> None:
    """Decodes, first chunks, later chunks without a sample and one-token chunks, in any order of rows."""
    prompts = [prompt(i, length) for i, length in enumerate((9, 33, 1, 47, 16))]
    params = [GREEDY, DRAWN, replace(DRAWN, seed=7), GREEDY, replace(DRAWN, top_k=5, min_p=0.01)]
    alone = [answer(Driver(weights, 5, 80, page_size), i, prompts[i], 8, params[i]) for i in range(5)]
    driver = Driver(weights, 5, 80, page_size)
    known, done = [list(ids) for ids in prompts], [0] * 5
    random = np.random.default_rng(page_size)
    while any(len(known[i]) < len(prompts[i]) + 8 for i in range(5)):
        live = [i for i in random.permutation(5).tolist() if len(known[i]) < len(prompts[i]) + 8]
        rows = []
        for i in live:
            size = min(int(random.integers(1, 20)), len(known[i]) - done[i])
            ends = done[i] + size == len(known[i])
            rows.append(
                driver.row(i, known[i], done[i], size, params[i], prompt_len=len(prompts[i]), sample=ends)
            )
            done[i] += size
        sampling = [i for i, row in zip(live, rows, strict=True) if row.sample]
        for i, token in zip(sampling, driver.runner.launch(StepPlan([], rows)).wait(), strict=True):
            known[i].append(token)
    assert [known[i][len(prompts[i]) :] for i in range(5)] == alone


def test_a_batch_lays_out_decodes_first_and_every_token_in_its_slot() -> None:
    ids = list(range(100, 140))
    rows = [
        StepRow(Rid("a"), ids, 4, 6, [9, 8, 7], False, 40, GREEDY),
        StepRow(Rid("b"), ids, 8, 1, [3, 2, 1], True, 40, GREEDY),
        StepRow(Rid("c"), ids, 0, 3, [5], True, 40, GREEDY),
    ]
    batch, sampling = build_batch(rows, 4, torch.from_numpy)
    assert sampling == [1, 2]
    assert batch.decode_len == 1
    assert batch.tokens.tolist() == [108, 104, 105, 106, 107, 108, 109, 100, 101, 102]
    assert batch.positions.tolist() == [8, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert batch.slot_pages.tolist() == [1, 8, 8, 8, 8, 7, 7, 5, 5, 5]
    assert batch.slot_offsets.tolist() == [0, 0, 1, 2, 3, 0, 1, 0, 1, 2]
    assert batch.sample_at.tolist() == [0, 9]
    assert batch.decode is not None
    assert batch.decode.page_table.tolist() == [[3, 2, 1]]
    assert batch.decode.kv_lens.tolist() == [9]
    assert batch.extend is not None
    assert batch.extend.page_table.tolist() == [[9, 8, 7], [5, 0, 0]]
    assert batch.extend.kv_lens.tolist() == [10, 3]
    assert batch.extend.q_starts.tolist() == [0, 6, 9]
    assert (batch.extend.max_kv_len, batch.extend.max_q_len) == (10, 6)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
def test_copies_run_first_and_in_order(weights: Weights, kv_dtype: torch.dtype) -> None:
    """A chain of copies whose sources are earlier targets, then a row that reads the last."""
    ids = prompt(1, 21)
    expected = answer(Driver(weights, 1, 64, kv_dtype=kv_dtype), 0, ids, 5, GREEDY)
    driver = Driver(weights, 4, 64, kv_dtype=kv_dtype)
    driver.runner.launch(StepPlan([], [driver.row(0, ids[:20], 0, 20, sample=False)])).wait()
    first = driver.row(0, ids, 0, 1).pages
    copies = [PageCopy(first[1], 9, 4), PageCopy(9, 10, 4), PageCopy(10, 11, 4), PageCopy(first[0], 9, 16)]
    row = replace_pages(driver.row(3, ids, 20, 1), [9, 11, 12, 13])
    token = driver.runner.launch(StepPlan(copies, [row])).wait()
    assert token == expected[:1]
    assert driver.runner.launch(StepPlan([PageCopy(9, 10, 16)], [])).wait() == []


def replace_pages(row: StepRow, pages: list[int]) -> StepRow:
    row.pages = pages
    return row


def test_a_step_that_samples_nothing_answers_nothing(weights: Weights) -> None:
    driver = Driver(weights, 1, 64)
    assert driver.runner.launch(StepPlan([], [driver.row(0, prompt(0, 9), 0, 9, sample=False)])).wait() == []
    assert driver.runner.launch(StepPlan([], [])).wait() == []


def test_k1_one_bad_row_leaves_the_others_as_they_were(weights: Weights) -> None:
    prompts = [prompt(i, 10 + i) for i in range(4)]
    expected = Driver(weights, 4, 64).generate(prompts, 8)
    driver = Driver(weights, 4, 64)
    answers = [[token] for token in driver.prefill(prompts)]
    for step in range(1, 8):
        if step == 5:
            page = driver.row(1, prompts[1], 0, 1).pages[0]
            driver.pool.planes[page, 1, 1, :, 3] = torch.nan
        known = [[*p, *a] for p, a in zip(prompts, answers, strict=True)]
        rows = [driver.row(i, ids, len(ids) - 1, 1) for i, ids in enumerate(known)]
        for i, token in enumerate(driver.runner.launch(StepPlan([], rows)).wait()):
            assert (token == BAD_ROW) == (i == 1 and step >= 5)
            answers[i].append(max(token, 0))
    assert [answers[i] for i in (0, 2, 3)] == [expected[i] for i in (0, 2, 3)]
    assert answers[1][:5] == expected[1][:5]


@pytest.mark.parametrize("temperature", [1e-9, 1e-5, 1e-4, 0.001])
def test_k2_tiny_temperatures_answer_as_greedy(weights: Weights, temperature: float) -> None:
    ids = prompt(3, 20)
    greedy = answer(Driver(weights, 1, 64), 0, ids, 12, GREEDY)
    how = SamplingParams(temperature=temperature, seed=9)
    assert answer(Driver(weights, 1, 64), 0, ids, 12, how) == greedy


def test_j3_seeds_separate(weights: Weights) -> None:
    """Two of one seed, many of others, all at once: equal, and different."""
    ids, count = prompt(4, 12), 22
    params = [replace(DRAWN, seed=seed) for seed in (42, 42, *range(1000, 1000 + count - 2))]
    driver = Driver(weights, count, 32)
    known = [list(ids) for _ in range(count)]
    for _ in range(10):
        rows = [
            driver.row(i, one, 0 if len(one) == 12 else len(one) - 1, 12 if len(one) == 12 else 1, params[i])
            for i, one in enumerate(known)
        ]
        for one, token in zip(known, driver.runner.launch(StepPlan([], rows)).wait(), strict=True):
            one.append(token)
    assert known[0] == known[1]
    assert len({tuple(one) for one in known}) == count - 1


def edited(row: StepRow) -> dict[int, tuple[float, float]]:
    edits = logit_edits([row], torch.from_numpy)
    if edits is None:
        return {}
    columns = (edits.tokens.tolist(), edits.repetition.tolist(), edits.offset.tolist())
    return {token: (round(r, 5), round(o, 5)) for token, r, o in zip(*columns, strict=True)}


def test_i2_penalties_count_what_they_should() -> None:
    """Repetition: prompt and output; presence and frequency: output only; ids not computed yet: neither."""
    ids = [5, 6, 5, 7, 8, 8, 8, 9]

    def row(params: SamplingParams) -> StepRow:
        return StepRow(Rid("a"), ids, 6, 1, [0], True, 4, params)

    assert edited(row(DRAWN)) == {}
    assert edited(row(replace(DRAWN, repetition_penalty=1.3))) == dict.fromkeys((5, 6, 7, 8), (1.3, 0.0))
    assert edited(row(replace(DRAWN, presence_penalty=0.5))) == {8: (1.0, -0.5)}
    assert edited(row(replace(DRAWN, frequency_penalty=-0.25))) == {8: (1.0, 0.75)}
    everything = replace(
        DRAWN,
        repetition_penalty=2.0,
        presence_penalty=1.0,
        frequency_penalty=1.0,
        logit_bias=((8, 1.5), (299, -100.0)),
    )
    assert edited(row(everything)) == {
        **dict.fromkeys((5, 6, 7), (2.0, 0.0)),
        8: (2.0, 1.5 - 1.0 - 3.0),
        299: (1.0, -100.0),
    }


def test_i1_penalties_are_the_same_cold_and_resumed(weights: Weights) -> None:
    """After its KV was lost a request's prompt and answer are prefilled together: same counts, same ids."""
    ids = prompt(5, 14)
    how = replace(DRAWN, repetition_penalty=1.3, presence_penalty=1.0, frequency_penalty=0.5)
    expected = answer(Driver(weights, 1, 64), 0, ids, 12, how)
    driver = Driver(weights, 1, 64)
    known = ids + expected[:7]
    row = driver.row(0, known, 0, len(known), how, prompt_len=len(ids))
    assert driver.runner.launch(StepPlan([], [row])).wait() == expected[7:8]
    assert expected != answer(Driver(weights, 1, 64), 0, ids, 12, DRAWN)


def test_logit_bias_forces_and_bans(weights: Weights) -> None:
    ids = prompt(6, 10)
    forced = answer(Driver(weights, 1, 64), 0, ids, 6, replace(DRAWN, logit_bias=((17, 100.0),)))
    assert forced == [17] * 6
    top = answer(Driver(weights, 1, 64), 0, ids, 1, GREEDY)[0]
    assert answer(Driver(weights, 1, 64), 0, ids, 1, replace(GREEDY, logit_bias=((top, -100.0),))) != [top]


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1, 2**200, -(2**70)])
def test_any_integer_is_a_seed(weights: Weights, seed: int) -> None:
    how = replace(DRAWN, seed=seed)
    first, second = (answer(Driver(weights, 1, 64), 0, prompt(7, 8), 6, how) for _ in range(2))
    assert first == second
