"""All kernels of these tests are compiled in one go, and only where they never were before."""

from pathlib import Path

import pytest
import torch

from chatd_kernels.cpu import CpuOps, attention, linear, norms, sampling, store
from chatd_kernels.cpu.library import Spec, shared
from chatd_kernels.ops import AttentionSpec
from chatd_kernels.reference import ReferenceOps
from tests.kernels.cpu.cases import FORMS, case_of

REFERENCE = ReferenceOps()


def every_spec() -> list[Spec]:
    specs = []
    for dtype in (torch.float32, torch.bfloat16):
        specs += [*norms.specs(dtype), sampling.spec(dtype)]
    for form in FORMS:
        kv = case_of(form, [1], [1]).kv
        heads = form.kv_heads * form.group
        specs.append(store.spec(kv, form.dtype))
        caps = (0.0, 5.0) if form in FORMS[:2] else (0.0,)
        for cap in caps:
            spec = AttentionSpec(1.0, softcap=cap)
            specs.append(attention.decode_spec(kv, form.dtype, heads, spec))
            specs.append(attention.extend_spec(kv, form.dtype, heads, spec))
    forms = [(4, torch.float32), (8, torch.float32), (4, torch.bfloat16)]
    return [*specs, *(linear.spec(*form) for form in forms), *(linear.rows_spec(bits) for bits in (4, 8))]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(300))  # the first one waits for the compiler


@pytest.fixture(scope="package")
def cpu() -> CpuOps:
    shared().compile(every_spec())
    return CpuOps()
