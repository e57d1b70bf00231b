"""KV in pages of the kernels' dtypes, with NaN wherever nobody's token is."""

from dataclasses import dataclass, replace

import pytest
import torch

from chatd_kernels.layout import page_pool, record_bytes
from chatd_kernels.ops import LayerKV
from chatd_kernels.reference.quantised import quantise
from tests.kernels.paged import Case, make_case


@dataclass(frozen=True)
class Form:
    """Of activations and of KV, and the sizes that are constants in a kernel."""

    dtype: torch.dtype
    kv_dtype: torch.dtype
    kv_heads: int
    group: int
    dim: int
    page_size: int

    def __str__(self) -> str:
        names = [str(kind).removeprefix("torch.") for kind in (self.dtype, self.kv_dtype)]
        return f"{names[0]}-{names[1]}-{self.kv_heads}x{self.group}-d{self.dim}-p{self.page_size}"


F32, BF16, INT8 = torch.float32, torch.bfloat16, torch.int8
FORMS = [
    Form(F32, F32, 3, 3, 64, 16),
    Form(F32, BF16, 3, 3, 64, 16),
    Form(BF16, BF16, 2, 5, 80, 1),
    Form(F32, INT8, 1, 8, 128, 64),
]
MORE_FORMS = [
    Form(BF16, INT8, 2, 6, 96, 4),
    Form(BF16, BF16, 3, 1, 64, 2),
    Form(BF16, F32, 1, 7, 128, 8),
    Form(F32, INT8, 2, 2, 64, 32),
    Form(BF16, BF16, 2, 4, 112, 16),
]
"""Compiled for the full run only: a form takes 4 s."""
EVERY_FORM = [*FORMS, *(pytest.param(form, marks=pytest.mark.full) for form in MORE_FORMS)]


def case_of(form: Form, kv_lens: list[int], q_lens: list[int], seed: int = 0) -> Case:
    kv_dtype = F32 if form.kv_dtype == INT8 else form.kv_dtype
    case = make_case(
        kv_lens,
        q_lens,
        kv_heads=form.kv_heads,
        group=form.group,
        dim=form.dim,
        page_size=form.page_size,
        dtype=kv_dtype,
        seed=seed,
    )
    kv = narrowed(case.kv) if form.kv_dtype == INT8 else case.kv
    return replace(case, q=case.q.to(form.dtype), kv=kv)


def narrowed(kv: LayerKV) -> LayerKV:
    """As int8, in records as a pool has them; NaN scales where there was NaN."""
    pages, heads, page_size, dim = kv.k.shape
    raw = torch.zeros(pages, record_bytes(2, heads, page_size, dim, INT8), dtype=torch.uint8)
    layer = page_pool(raw, 2, heads, page_size, dim, INT8).layer(1)
    assert layer.k_scale is not None
    assert layer.v_scale is not None
    for plane, codes, scales in ((kv.k, layer.k, layer.k_scale), (kv.v, layer.v, layer.v_scale)):
        made, scale = quantise(plane.float())
        codes.copy_(made)
        scales.copy_(scale)
    return layer
