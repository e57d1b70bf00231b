"""`reference` attention against the plainest there is, on ugly sizes, in a pool full of NaN."""

from dataclasses import replace

import pytest
import torch

from chatd_kernels import load_backend
from chatd_kernels.ops import AttentionSpec, LayerKV, PagedBatch
from chatd_kernels.reference.decode import split_rows
from tests.kernels.paged import Case, make_case, plain_attention

OPS = load_backend("reference")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SHAPES = [(1, 1, 64), (3, 3, 64), (2, 5, 80), (4, 1, 16), (1, 8, 96)]
SPECS = [
    AttentionSpec(0.125),
    AttentionSpec(0.2, window=9),
    AttentionSpec(0.3, softcap=5.0),
    AttentionSpec(0.1, 17, 3.0),
]


def decode(case: Case, spec: AttentionSpec) -> torch.Tensor:
    return OPS.decode_attention(case.q, case.kv, OPS.plan_decode(case.batch, case.kv, spec))


def extend(case: Case, spec: AttentionSpec) -> torch.Tensor:
    return OPS.extend_attention(case.q, case.kv, OPS.plan_extend(case.batch, case.kv, spec))


def check(out: torch.Tensor, case: Case, spec: AttentionSpec) -> None:
    assert out.dtype == case.q.dtype
    limit = TOLERANCE[case.q.dtype]
    torch.testing.assert_close(out.double(), plain_attention(case, spec), atol=limit, rtol=limit)


@pytest.mark.parametrize("page_size", [1, 2, 16])
@pytest.mark.parametrize(("kv_heads", "group", "dim"), SHAPES)
def test_decode_on_ugly_sizes(kv_heads: int, group: int, dim: int, page_size: int) -> None:
    lens = [1, 63, 17, 129, 16]
    case = make_case(lens, [1] * 5, kv_heads=kv_heads, group=group, dim=dim, page_size=page_size)
    check(decode(case, SPECS[0]), case, SPECS[0])


@pytest.mark.parametrize("page_size", [1, 2, 16])
@pytest.mark.parametrize(("kv_heads", "group", "dim"), SHAPES)
def test_extend_on_ugly_sizes(kv_heads: int, group: int, dim: int, page_size: int) -> None:
    """Fresh prompts, chunks after a prefix, single tokens; one longer than a block of queries."""
    kv_lens, q_lens = [1, 63, 17, 140, 33], [1, 63, 1, 131, 20]
    case = make_case(kv_lens, q_lens, kv_heads=kv_heads, group=group, dim=dim, page_size=page_size)
    check(extend(case, SPECS[0]), case, SPECS[0])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("spec", SPECS)
def test_windows_caps_and_dtypes(spec: AttentionSpec, dtype: torch.dtype) -> None:
    case = make_case([5, 40, 111], [1] * 3, kv_heads=2, group=3, dim=32, page_size=4, dtype=dtype)
    check(decode(case, spec), case, spec)
    case = make_case([5, 40, 151], [5, 11, 140], kv_heads=2, group=3, dim=32, page_size=4, dtype=dtype)
    check(extend(case, spec), case, spec)


def test_rows_of_very_different_lengths_are_split_and_come_back_in_order() -> None:
    lens = [900, 3, 1500, 20, 1, 700, 1499]
    assert len(split_rows([-(-n // 16) for n in lens], 64)) > 1
    case = make_case(lens, [1] * 7, kv_heads=1, group=2, dim=16, page_size=16)
    check(decode(case, SPECS[0]), case, SPECS[0])


def test_split_rows_wastes_little_and_loses_none() -> None:
    torch.manual_seed(0)
    for _ in range(50):
        pages = torch.randint(1, 500, (33,)).tolist()
        groups = split_rows(pages, 64)
        assert sorted(row for group in groups for row in group) == list(range(33))
        for group in groups:
            assert sum(pages[group[0]] - pages[row] for row in group) <= 64
    assert split_rows([7] * 40, 1) == [list(range(40))]


def only(batch: PagedBatch, i: int) -> PagedBatch:
    """Row ``i`` of a decoding batch."""
    kv_lens = batch.kv_lens[i : i + 1]
    return PagedBatch(batch.page_table[i : i + 1], kv_lens, batch.q_starts[:2], int(kv_lens), 1)


def test_a_row_is_the_same_alone_and_among_others() -> None:
    lens = [40, 700, 3, 41]
    case = make_case(lens, [1] * 4, kv_heads=3, group=3, dim=64, page_size=16)
    together = decode(case, SPECS[0])
    for i in range(4):
        one = only(case.batch, i)
        alone = OPS.decode_attention(case.q[i : i + 1], case.kv, OPS.plan_decode(one, case.kv, SPECS[0]))
        torch.testing.assert_close(alone[0], together[i], atol=1e-6, rtol=1e-6)


def test_offsets_beyond_32_bits() -> None:
    """Pages so far into the pool that their element offsets need 64 bits; it is not touched elsewhere."""
    pages, stride = 5, 1 << 30
    storage = torch.empty(pages * stride + 4096, dtype=torch.float16)
    planes = [storage.as_strided((pages, 1, 4, 16), (stride, 64, 16, 1), at) for at in (0, 2048)]
    case = make_case([7, 3], [1, 1], kv_heads=1, group=2, dim=16, page_size=4, dtype=torch.float16)
    kv = LayerKV(*planes)
    table = torch.tensor([[4, 2], [3, 3]], dtype=torch.int32)
    for row in range(2):
        for at in range(len(case.k[row])):
            page = int(table[row, at // 4])
            kv.k[page, 0, at % 4], kv.v[page, 0, at % 4] = case.k[row][at, 0], case.v[row][at, 0]
    assert 4 * stride > 2**31
    moved = Case(case.q, case.k, case.v, kv, replace(case.batch, page_table=table))
    check(decode(moved, SPECS[0]), case, SPECS[0])
    check(extend(moved, SPECS[0]), case, SPECS[0])
