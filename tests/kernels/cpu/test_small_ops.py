"""Norms, SwiGLU's product, rotation and storing against `reference`."""

import pytest
import torch

from chatd_kernels.cpu import CpuOps
from chatd_kernels.ops import LayerKV
from tests.kernels.cpu.cases import BF16, EVERY_FORM, F32, FORMS, INT8, Form, case_of
from tests.kernels.cpu.conftest import REFERENCE

TOLERANCE = {F32: 1e-5, BF16: 0.02}


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (3, 576), (65, 1536), (2, 40), (4, 48)])
def test_norms(cpu: CpuOps, rows: int, width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, residual = (torch.randn(rows, width).to(dtype) for _ in range(2))
    weight, other = torch.randn(width).to(dtype), residual.clone()
    limit = TOLERANCE[dtype]
    plain, theirs = cpu.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(plain, theirs, atol=limit, rtol=limit)
    ours, theirs = cpu.add_rms_norm(x, residual, weight, 1e-5), REFERENCE.add_rms_norm(x, other, weight, 1e-5)
    torch.testing.assert_close(ours, theirs, atol=limit, rtol=limit)
    assert torch.equal(residual, other)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_silu_mul(cpu: CpuOps, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for rows, width in ((1, 32), (7, 1536), (33, 160)):
        gate_up = (30 * torch.randn(rows, 2 * width)).to(dtype)
        limit = TOLERANCE[dtype]
        torch.testing.assert_close(
            cpu.silu_mul(gate_up), REFERENCE.silu_mul(gate_up), atol=limit, rtol=2 * limit
        )


def copied(kv: LayerKV) -> LayerKV:
    """With everything in it 0, strides kept."""

    def zeros(plane: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(plane.shape, plane.stride(), dtype=plane.dtype).zero_()

    if kv.k_scale is None or kv.v_scale is None:
        return LayerKV(zeros(kv.k), zeros(kv.v))
    return LayerKV(zeros(kv.k), zeros(kv.v), zeros(kv.k_scale), zeros(kv.v_scale))


@pytest.mark.parametrize("form", EVERY_FORM, ids=str)
def test_rope_and_store(cpu: CpuOps, form: Form) -> None:
    kv = case_of(form, [200], [1]).kv
    ours, theirs = copied(kv), copied(kv)
    tokens, heads = 9, form.kv_heads * form.group
    qkv = torch.randn(tokens, (heads + 2 * form.kv_heads) * form.dim).to(form.dtype)
    qkv[3] = 0
    angles = torch.randn(tokens, form.dim)
    slots = torch.randperm(len(kv.k) * form.page_size)[:tokens]
    at = (slots // form.page_size, slots % form.page_size)
    before = qkv.clone()
    q = cpu.rope_store_kv(qkv, angles.cos(), angles.sin(), ours, *at)
    assert torch.equal(qkv, before)
    limit = TOLERANCE[form.dtype]
    want = REFERENCE.rope_store_kv(qkv, angles.cos(), angles.sin(), theirs, *at)
    torch.testing.assert_close(q, want, atol=limit, rtol=limit)
    for mine, other in ((ours.k, theirs.k), (ours.v, theirs.v)):
        off = 1 if form.kv_dtype == INT8 else TOLERANCE[form.kv_dtype]
        torch.testing.assert_close(mine.float(), other.float(), atol=off, rtol=0.01)
    if ours.k_scale is not None and theirs.k_scale is not None:
        torch.testing.assert_close(ours.k_scale, theirs.k_scale, atol=1e-4, rtol=0.01)


def test_a_nan_shows_in_the_scale(cpu: CpuOps) -> None:
    form = FORMS[3]
    kv = copied(case_of(form, [64], [1]).kv)
    assert kv.v_scale is not None
    qkv = torch.ones(1, (8 + 2) * form.dim)
    qkv[0, -1] = torch.nan
    cpu.rope_store_kv(
        qkv, torch.ones(1, form.dim), torch.zeros(1, form.dim), kv, torch.tensor([0]), torch.tensor([3])
    )
    assert torch.isnan(kv.v_scale[0, 0, 3])
