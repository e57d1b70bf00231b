"""Decode and extend against `reference`, over ragged batches with NaN in every slot that is nobody's."""

import pytest
import torch

from chatd_kernels.cpu import CpuOps
from chatd_kernels.ops import AttentionSpec
from tests.kernels.cpu.cases import BF16, EVERY_FORM, F32, FORMS, Form, case_of
from tests.kernels.cpu.conftest import REFERENCE

LENS = [1, 63, 700, 129, 15, 64, 65]
SPECS = [AttentionSpec(0.1), AttentionSpec(0.1, window=37)]


def tolerance(form: Form) -> float:
    """Results are about 1: half a unit in the last place of their dtype, and of K, V and weights as bf16."""
    return 2e-6 if (form.dtype, form.kv_dtype) == (F32, F32) else 0.02


def close(ours: torch.Tensor, theirs: torch.Tensor, form: Form) -> None:
    assert ours.dtype == form.dtype
    torch.testing.assert_close(ours.float(), theirs.float(), atol=tolerance(form), rtol=0.02)


@pytest.mark.parametrize("spec", SPECS, ids=["all", "window"])
@pytest.mark.parametrize("form", EVERY_FORM, ids=str)
def test_one_query_a_row(cpu: CpuOps, form: Form, spec: AttentionSpec) -> None:
    case = case_of(form, LENS, [1] * len(LENS))
    ours = cpu.decode_attention(case.q, case.kv, cpu.plan_decode(case.batch, case.kv, spec))
    theirs = REFERENCE.decode_attention(case.q, case.kv, REFERENCE.plan_decode(case.batch, case.kv, spec))
    close(ours, theirs, form)


@pytest.mark.parametrize("spec", SPECS, ids=["all", "window"])
@pytest.mark.parametrize("form", EVERY_FORM, ids=str)
def test_any_number_of_queries(cpu: CpuOps, form: Form, spec: AttentionSpec) -> None:
    case = case_of(form, LENS, [1, 33, 60, 129, 7, 64, 2])
    ours = cpu.extend_attention(case.q, case.kv, cpu.plan_extend(case.batch, case.kv, spec))
    theirs = REFERENCE.extend_attention(case.q, case.kv, REFERENCE.plan_extend(case.batch, case.kv, spec))
    close(ours, theirs, form)


@pytest.mark.parametrize("form", FORMS[:2], ids=str)
def test_capped_scores(cpu: CpuOps, form: Form) -> None:
    spec = AttentionSpec(0.5, softcap=5.0)
    case = case_of(form, LENS, [1] * len(LENS))
    ours = cpu.decode_attention(case.q, case.kv, cpu.plan_decode(case.batch, case.kv, spec))
    theirs = REFERENCE.decode_attention(case.q, case.kv, REFERENCE.plan_decode(case.batch, case.kv, spec))
    close(ours, theirs, form)
    case = case_of(form, LENS, LENS)
    ours = cpu.extend_attention(case.q, case.kv, cpu.plan_extend(case.batch, case.kv, spec))
    theirs = REFERENCE.extend_attention(case.q, case.kv, REFERENCE.plan_extend(case.batch, case.kv, spec))
    close(ours, theirs, form)


def test_answers_go_where_they_are_wanted(cpu: CpuOps) -> None:
    form, spec = FORMS[1], AttentionSpec(0.3)
    case = case_of(form, [200, 77], [40, 77])
    plan = cpu.plan_extend(case.batch, case.kv, spec)
    whole = torch.full((len(case.q) + 2, *case.q.shape[1:]), 7.0, dtype=case.q.dtype)
    cpu.extend_attention(case.q, case.kv, plan, whole[1:-1])
    assert torch.equal(whole[1:-1], cpu.extend_attention(case.q, case.kv, plan))
    assert torch.equal(whole[[0, -1]], torch.full_like(whole[:2], 7.0))
    case = case_of(form, [200, 77], [1, 1])
    cpu.decode_attention(case.q, case.kv, cpu.plan_decode(case.batch, case.kv, spec), whole[1:3])
    assert torch.equal(
        whole[1:3], cpu.decode_attention(case.q, case.kv, cpu.plan_decode(case.batch, case.kv, spec))
    )


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_splits_of_a_long_row_merge(cpu: CpuOps, threads: int) -> None:
    """One long row among short ones: some of its splits are empty in the others."""
    form, spec, before = FORMS[1], AttentionSpec(0.3), torch.get_num_threads()
    case = case_of(form, [3000, 5], [1, 1])
    theirs = REFERENCE.decode_attention(case.q, case.kv, REFERENCE.plan_decode(case.batch, case.kv, spec))
    try:
        torch.set_num_threads(threads)
        ours = cpu.decode_attention(case.q, case.kv, cpu.plan_decode(case.batch, case.kv, spec))
    finally:
        torch.set_num_threads(before)
    close(ours, theirs, form)


def test_a_row_does_not_depend_on_its_neighbours(cpu: CpuOps) -> None:
    form, spec = FORMS[1], AttentionSpec(0.1)
    case = case_of(form, [200, 77, 130], [40, 77, 3])
    whole = cpu.extend_attention(case.q, case.kv, cpu.plan_extend(case.batch, case.kv, spec))
    alone = case_of(form, [200, 77, 130], [40, 77, 3]).batch
    one = type(alone)(
        alone.page_table[1:2], alone.kv_lens[1:2], torch.tensor([0, 77], dtype=torch.int32), 77, 77
    )
    part = cpu.extend_attention(case.q[40:117], case.kv, cpu.plan_extend(one, case.kv, spec))
    assert torch.equal(whole[40:117], part)


def test_what_no_kernel_knows_is_left_to_reference(cpu: CpuOps) -> None:
    for form in (Form(BF16, torch.float8_e4m3fn, 2, 2, 64, 16), Form(F32, F32, 2, 2, 24, 16)):
        source = case_of(Form(form.dtype, F32, 2, 2, form.dim, 16), LENS, [1] * len(LENS))
        kv = type(source.kv)(
            source.kv.k.nan_to_num().to(form.kv_dtype), source.kv.v.nan_to_num().to(form.kv_dtype)
        )
        spec = AttentionSpec(0.1)
        ours = cpu.decode_attention(source.q, kv, cpu.plan_decode(source.batch, kv, spec))
        theirs = REFERENCE.decode_attention(source.q, kv, REFERENCE.plan_decode(source.batch, kv, spec))
        assert torch.equal(ours, theirs)
