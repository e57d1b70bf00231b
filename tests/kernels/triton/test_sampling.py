"""Sampling against `reference`: the same ids, not merely the same distribution."""

import pytest
import torch
from torch import Tensor

from chatd_kernels.ops import BAD_ROW, LogitEdits, SampleParams
from tests.kernels import sampling_cases
from tests.kernels.sampling_cases import FILTERS, PLAIN, assert_rows_stand_alone, make_params
from tests.kernels.triton.compare import DTYPES, TRITON, generator, randn

SIZES = ((1, 1.0), (127, 20.0), (128, 3.0), (300, 0.1), (700, 3.0))
"""Vocabulary and spread of the logits."""


def agree(logits: Tensor, params: SampleParams, edits: LogitEdits | None = None) -> Tensor:
    return sampling_cases.agree(TRITON, logits, params, edits, tolerance=1e-5)


@pytest.mark.parametrize(
    ("vocab", "spread", "dtype"),
    [(*size, torch.float32) for size in SIZES] + [(300, 3.0, dtype) for dtype in DTYPES[1:]],
)
def test_every_filter(vocab: int, spread: float, dtype: torch.dtype) -> None:
    logits = (spread * randn(len(FILTERS), vocab, seed=vocab)).to(dtype)
    agree(logits, make_params(FILTERS, seed=vocab))


def test_no_filter() -> None:
    rows = [PLAIN] * 8
    params = make_params(rows)
    assert not params.any_filter
    ids = agree(randn(8, 1000), params)
    assert len(set(ids.tolist())) > 4


def test_greedy_takes_the_lowest_of_the_largest() -> None:
    logits = randn(3, 500)
    logits[0, [7, 77, 400]] = 9.0
    logits[1, 499] = 9.0
    assert agree(logits, make_params([(0.0, 0, 1.0, 0.0)] * 3))[:2].tolist() == [7, 499]


def test_ties_stay_together() -> None:
    logits = torch.zeros(4, 300)
    logits[2:, ::3] = 1.0
    agree(
        logits,
        make_params([(1.0, 7, 1.0, 0.0), (1.0, 0, 0.5, 0.0), (1.0, 150, 1.0, 0.0), (1.0, 0, 0.6, 0.0)]),
    )


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy, of infinity less infinity
def test_bad_rows() -> None:
    logits = randn(6, 130)
    logits[0, 129] = torch.nan
    logits[1, 3] = torch.inf
    logits[2] = -torch.inf
    logits[3, :129] = -torch.inf
    logits[4, 0] = -torch.inf
    for row in ((0.0, 0, 1.0, 0.0), (1.0, 5, 0.9, 0.0)):
        ids = agree(logits, make_params([row] * 6))
        assert (ids == BAD_ROW).tolist() == [True, True, True, False, False, False]
        assert ids[3] == 129


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_edits(dtype: torch.dtype) -> None:
    rows = torch.tensor([0] * 90 + [2] * 3 + [3])
    tokens = torch.cat([torch.randperm(300, generator=generator(6))[:90], torch.tensor([0, 299, 64, 5])])
    repetition = 1 + randn(94, seed=7).abs()
    offset = 3 * randn(94, seed=8)
    offset[-1] = 100.0
    edits = LogitEdits(rows, tokens, repetition, offset)
    for row in ((0.0, 0, 1.0, 0.0), PLAIN, (1.0, 20, 0.9, 0.0)):
        ids = agree(randn(5, 300, dtype=dtype), make_params([row] * 5), edits)
        assert ids[3] == 5


def test_rows_of_wider_logits() -> None:
    agree(randn(4, 400)[:, 50:350], make_params(FILTERS[4:8]))


def test_a_row_does_not_depend_on_its_batch() -> None:
    assert_rows_stand_alone(TRITON, randn(len(FILTERS), 300))


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(200))
def test_many_draws(seed: int) -> None:
    logits = (1 + seed % 7) * randn(len(FILTERS), 2000, seed=seed)
    agree(logits, make_params(FILTERS, seed=seed))
