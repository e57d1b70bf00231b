"""Paged attention against `reference`: decode, ragged chunks, splits, windows, caps and 8-bit KV."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from chatd_kernels.ops import AttentionSpec, PagedBatch
from chatd_kernels.triton import TritonOps
from chatd_kernels.triton.launch import Target
from tests.kernels.triton.batches import Case, make_case
from tests.kernels.triton.compare import DTYPES, FP8, REFERENCE, TRITON, assert_close

PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64)
GROUPS = ((1, 1), (4, 4), (3, 1), (9, 3), (5, 1), (8, 1), (16, 2))
DIMS = (64, 80, 96, 128, 256)
DECODE = ((1, 1), (63, 1), (16, 1), (111, 1), (17, 1))
# 37 - 7 = 30: the first query's last key is one short of the end of a block of 32.
EXTEND = ((1, 1), (37, 7), (0, 0), (33, 33), (64, 1), (50, 0), (90, 20))
ALONE = TritonOps(Target("interpreter", 0, 1))
"""Never splits: too few processors."""
CROWD = TritonOps(Target("interpreter", 0, 4096))
"""Splits as far as it may."""


def decode(case: Case, spec: AttentionSpec, ops: TritonOps = TRITON) -> None:
    want = REFERENCE.decode_attention(case.q, case.kv, REFERENCE.plan_decode(case.batch, case.kv, spec))
    assert_close(ops.decode_attention(case.q, case.kv, ops.plan_decode(case.batch, case.kv, spec)), want)


def extend(case: Case, spec: AttentionSpec, ops: TritonOps = TRITON) -> None:
    want = REFERENCE.extend_attention(case.q, case.kv, REFERENCE.plan_extend(case.batch, case.kv, spec))
    assert_close(ops.extend_attention(case.q, case.kv, ops.plan_extend(case.batch, case.kv, spec)), want)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dtype"),
    [(*group, torch.float32) for group in GROUPS] + [(9, 3, dtype) for dtype in DTYPES[1:]],
)
def test_groups(heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    decode(make_case(DECODE, heads, kv_heads, 64, dtype), AttentionSpec(0.125))
    extend(make_case(EXTEND, heads, kv_heads, 64, dtype), AttentionSpec(0.125))


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_every_page_size(page_size: int) -> None:
    decode(make_case(DECODE, 6, 2, 64, torch.float32, page_size=page_size), AttentionSpec(0.125))
    extend(make_case(EXTEND, 6, 2, 64, torch.float32, page_size=page_size), AttentionSpec(0.125))


@pytest.mark.parametrize(
    ("dim", "dtype"),
    [(dim, torch.float32) for dim in DIMS] + [(dim, dtype) for dim in (80, 256) for dtype in DTYPES[1:]],
)
def test_head_dimensions(dim: int, dtype: torch.dtype) -> None:
    decode(make_case(DECODE, 4, 2, dim, dtype), AttentionSpec(dim**-0.5))
    extend(make_case(EXTEND, 4, 2, dim, dtype), AttentionSpec(dim**-0.5))


@pytest.mark.parametrize("ops", [ALONE, CROWD])
@pytest.mark.parametrize(("window", "softcap"), [(0, 5.0), (1, 0.0), (16, 0.0), (37, 5.0), (1000, 0.0)])
def test_windows_and_caps(window: int, softcap: float, ops: TritonOps) -> None:
    spec = AttentionSpec(0.5, window, softcap)
    decode(make_case(DECODE, 4, 2, 64, torch.float32, page_size=8), spec, ops)
    extend(make_case(EXTEND, 4, 2, 64, torch.float32, page_size=8), spec, ops)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv_len", [1, 31, 64, 300, 1025])
def test_splits(kv_len: int, dtype: torch.dtype) -> None:
    spec = AttentionSpec(0.125)
    decode(make_case(((kv_len, 1), (3, 1)), 3, 1, 64, dtype), spec, CROWD)
    extend(make_case(((kv_len, min(kv_len, 5)), (3, 2)), 3, 1, 64, dtype), spec, CROWD)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ops", [ALONE, CROWD])
@pytest.mark.parametrize("kv_dtype", [FP8, torch.int8])
def test_8_bit_kv(kv_dtype: torch.dtype, ops: TritonOps, dtype: torch.dtype) -> None:
    decode(make_case(DECODE, 6, 2, 80, dtype, kv_dtype=kv_dtype), AttentionSpec(0.1), ops)
    extend(make_case(EXTEND, 6, 2, 80, dtype, kv_dtype=kv_dtype), AttentionSpec(0.1), ops)


def test_8_bit_kv_is_close_to_what_was_stored() -> None:
    spec = AttentionSpec(0.125)
    want = run(make_case(DECODE, 4, 2, 64, torch.float32), spec)
    for kv_dtype, tolerance in ((torch.int8, 0.02), (FP8, 0.1)):
        got = run(make_case(DECODE, 4, 2, 64, torch.float32, kv_dtype=kv_dtype), spec)
        assert (got - want).abs().max() < tolerance * want.abs().max()


@pytest.mark.parametrize("ops", [ALONE, CROWD])
def test_rows_without_kv_give_zeros(ops: TritonOps) -> None:
    case = make_case(((0, 1), (40, 1), (0, 1)), 4, 2, 64, torch.float32)
    got = ops.decode_attention(case.q, case.kv, ops.plan_decode(case.batch, case.kv, AttentionSpec(0.125)))
    assert (got[[0, 2]] == 0).all()
    assert got[1].isfinite().all()


def test_a_graph_fixes_the_grid_not_the_lengths() -> None:
    """Captured for the longest context and a wide table, run with short rows: most splits have no keys."""
    case = make_case(DECODE, 6, 2, 64, torch.float32)
    table = torch.nn.functional.pad(case.batch.page_table, (0, 100), value=int(case.batch.page_table[0, 0]))
    captured = replace(case.batch, page_table=table, max_kv_len=2048)
    plan = CROWD.plan_decode(captured, case.kv, AttentionSpec(0.125))
    want = REFERENCE.plan_decode(case.batch, case.kv, AttentionSpec(0.125))
    assert_close(
        CROWD.decode_attention(case.q, case.kv, plan), REFERENCE.decode_attention(case.q, case.kv, want)
    )


def test_no_rows_at_all() -> None:
    case = make_case(((3, 1),), 4, 2, 64, torch.float32)
    none = PagedBatch(case.batch.page_table[:0], case.batch.kv_lens[:0], case.batch.q_starts[:1], 0, 0)
    plan = TRITON.plan_decode(none, case.kv, AttentionSpec(0.125))
    assert TRITON.decode_attention(case.q[:0], case.kv, plan).shape == (0, 4, 64)


def test_a_long_chunk_of_many_tiles() -> None:
    extend(make_case(((300, 129), (7, 7), (200, 111)), 3, 1, 64, torch.float32), AttentionSpec(0.125))


def test_q_may_be_part_of_something_wider() -> None:
    case = make_case(DECODE, 4, 2, 64, torch.float32)
    wide = torch.full((len(case.q), 7, 64), torch.nan)
    wide[:, 1:5] = case.q
    decode(Case(wide[:, 1:5], case.kv, case.batch), AttentionSpec(0.125))


def test_chunks_equal_one_shot_and_decode() -> None:
    """Exactly the same tokens, however they are cut: the last query of a chunk is a decode step."""
    spec = AttentionSpec(0.125)
    whole = make_case(((70, 30),), 4, 2, 64, torch.float32)
    got = TRITON.extend_attention(whole.q, whole.kv, TRITON.plan_extend(whole.batch, whole.kv, spec))
    last = make_case(((70, 1),), 4, 2, 64, torch.float32)
    alone = TRITON.decode_attention(whole.q[-1:], whole.kv, TRITON.plan_decode(last.batch, whole.kv, spec))
    assert_close(alone, got[-1:])


def run(case: Case, spec: AttentionSpec) -> Tensor:
    return TRITON.decode_attention(case.q, case.kv, TRITON.plan_decode(case.batch, case.kv, spec))


def sweep() -> Sequence[tuple[int, tuple[int, int], int, torch.dtype]]:
    return list(itertools.product(PAGE_SIZES, GROUPS, DIMS, DTYPES))


@pytest.mark.full
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("page_size", "group", "dim", "dtype"), sweep())
def test_everything_with_everything(
    page_size: int, group: tuple[int, int], dim: int, dtype: torch.dtype
) -> None:
    for spec in (AttentionSpec(dim**-0.5), AttentionSpec(dim**-0.5, 21, 10.0)):
        decode(make_case(DECODE, *group, dim, dtype, page_size=page_size), spec)
        extend(make_case(EXTEND, *group, dim, dtype, page_size=page_size), spec)
