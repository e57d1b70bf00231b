"""RMSNorm, residual add and SwiGLU against `reference`."""

import pytest
import torch

from tests.kernels.triton.compare import DTYPES, REFERENCE, TRITON, assert_close, randn

SIZES = [(1, 1), (1, 63), (3, 111), (2, 576), (5, 1024), (1, 4097)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "hidden"), SIZES)
def test_rms_norm(n: int, hidden: int, dtype: torch.dtype) -> None:
    x, weight = randn(n, hidden, dtype=dtype), randn(hidden, dtype=dtype, seed=1)
    assert_close(TRITON.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "hidden"), SIZES)
def test_add_rms_norm(n: int, hidden: int, dtype: torch.dtype) -> None:
    x, weight = randn(n, hidden, dtype=dtype), randn(hidden, dtype=dtype, seed=1)
    ours = randn(n, hidden, dtype=dtype, seed=2)
    theirs = ours.clone()
    got, want = TRITON.add_rms_norm(x, ours, weight, 1e-6), REFERENCE.add_rms_norm(x, theirs, weight, 1e-6)
    assert torch.equal(ours, theirs)
    assert_close(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "ffn"), [(1, 1), (3, 111), (2, 1536), (4, 1025)])
def test_silu_mul(n: int, ffn: int, dtype: torch.dtype) -> None:
    gate_up = 4 * randn(n, 2 * ffn, dtype=dtype)
    assert_close(TRITON.silu_mul(gate_up), REFERENCE.silu_mul(gate_up))


def test_rows_need_not_be_adjacent() -> None:
    wide, weight = randn(6, 200), randn(70, seed=1)
    x, residual = wide[::2, 20:90], wide[1::2, 20:90]
    theirs = residual.clone()
    assert_close(
        TRITON.add_rms_norm(x, residual, weight, 1e-5), REFERENCE.add_rms_norm(x, theirs, weight, 1e-5)
    )
    assert torch.equal(residual, theirs)
    assert_close(TRITON.silu_mul(x), REFERENCE.silu_mul(x))


def test_a_row_with_nan_spoils_itself_only() -> None:
    x, weight = randn(3, 65), randn(65, seed=1)
    x[1, 64] = torch.nan
    assert_close(TRITON.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5))
