"""Sampling against `reference`: the same ids, not merely the same distribution."""

import pytest
import torch
from torch import Tensor

from chatd_kernels.cpu import CpuOps
from chatd_kernels.ops import BAD_ROW, LogitEdits, SampleParams
from tests.kernels import sampling_cases
from tests.kernels.sampling_cases import FILTERS, PLAIN, assert_rows_stand_alone, make_params


def logits_of(
    rows: int, vocab: int, spread: float, dtype: torch.dtype = torch.float32, seed: int = 0
) -> Tensor:
    return (spread * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))).to(dtype)


def agree(cpu: CpuOps, logits: Tensor, params: SampleParams, edits: LogitEdits | None = None) -> Tensor:
    got = sampling_cases.agree(cpu, logits, params, edits, tolerance=1e-4)
    assert torch.equal(cpu.sample(logits, params, edits), got)
    return got


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("vocab", "spread"), [(16, 1.0), (304, 0.1), (704, 3.0), (49152, 2.0)])
def test_every_filter(cpu: CpuOps, vocab: int, spread: float, dtype: torch.dtype) -> None:
    agree(cpu, logits_of(len(FILTERS), vocab, spread, dtype), make_params(FILTERS, seed=vocab))


def test_no_filter(cpu: CpuOps) -> None:
    ids = agree(cpu, logits_of(8, 1008, 1.0), make_params([PLAIN] * 8))
    assert len(set(ids.tolist())) > 4


def test_greedy_takes_the_lowest_of_the_largest(cpu: CpuOps) -> None:
    logits = logits_of(3, 512, 1.0)
    logits[0, [7, 77, 400]] = 9.0
    logits[1, 511] = 9.0
    params = make_params([(0.0, 0, 1.0, 0.0)] * 3)
    assert params.all_greedy
    assert agree(cpu, logits, params)[:2].tolist() == [7, 511]


def test_ties_stay_together(cpu: CpuOps) -> None:
    logits = torch.zeros(4, 304)
    logits[2:, ::3] = 1.0
    rows = [(1.0, 7, 1.0, 0.0), (1.0, 0, 0.5, 0.0), (1.0, 150, 1.0, 0.0), (1.0, 0, 0.6, 0.0)]
    agree(cpu, logits, make_params(rows))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy, of infinity less infinity
def test_bad_rows(cpu: CpuOps) -> None:
    logits = logits_of(6, 144, 1.0)
    logits[0, 143] = torch.nan
    logits[1, 3] = torch.inf
    logits[2] = -torch.inf
    logits[3, :143] = -torch.inf
    logits[4, 0] = -torch.inf
    for row in ((0.0, 0, 1.0, 0.0), (1.0, 5, 0.9, 0.0)):
        ids = agree(cpu, logits, make_params([row] * 6))
        assert (ids == BAD_ROW).tolist() == [True, True, True, False, False, False]
        assert ids[3] == 143


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_edits(cpu: CpuOps, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(6)
    rows = torch.tensor([0] * 90 + [2] * 3 + [3])
    tokens = torch.cat([torch.randperm(304, generator=generator)[:90], torch.tensor([0, 303, 64, 5])])
    repetition = 1 + torch.randn(94, generator=generator).abs()
    offset = 3 * torch.randn(94, generator=generator)
    offset[-1] = 100.0
    edits = LogitEdits(rows, tokens, repetition, offset)
    for row in ((0.0, 0, 1.0, 0.0), PLAIN, (1.0, 20, 0.9, 0.0)):
        ids = agree(cpu, logits_of(5, 304, 1.0, dtype), make_params([row] * 5), edits)
        assert ids[3] == 5


def test_a_row_does_not_depend_on_its_batch(cpu: CpuOps) -> None:
    assert_rows_stand_alone(cpu, logits_of(len(FILTERS), 304, 2.0))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(200))
def test_many_draws(cpu: CpuOps, seed: int) -> None:
    logits = logits_of(len(FILTERS), 2000, 1 + seed % 7, seed=seed)
    agree(cpu, logits, make_params(FILTERS, seed=seed))
