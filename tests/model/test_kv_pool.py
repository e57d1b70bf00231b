"""How many pages fit, what is said about it, and the layout that kernels rely on."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chatd.errors import SetupError
from chatd.model.kv_pool import KV_FORMS, KVPool, bytes_per_token, kv_dtype, page_bytes, plan_pages
from chatd.model.load import open_model
from tests.support.driving import CPU
from tests.support.tiny_models import write_folder


@pytest.mark.model
def test_smollm2_takes_23040_bytes_a_token(model_path: Path) -> None:
    config = open_model(model_path).config
    assert bytes_per_token(config, torch.bfloat16) == 23_040
    plan = plan_pages(config, torch.bfloat16, 16, 1 << 30)
    assert (plan.num_pages, plan.tokens) == (2912, 46_592)
    assert plan.nbytes <= 1 << 30 < plan.nbytes + 16 * 23_040


@pytest.mark.model
def test_8_bit_kv_takes_half_and_its_scales(model_path: Path) -> None:
    config = open_model(model_path).config
    assert bytes_per_token(config, torch.float8_e4m3fn) == 11_520
    assert bytes_per_token(config, torch.int8) == 11_520 + 2 * 30 * 3 * 4
    for dtype in KV_FORMS.values():
        plan = plan_pages(config, dtype, 16, 1 << 26)
        assert plan.nbytes == plan.num_pages * page_bytes(config, dtype, 16) <= 1 << 26
        assert plan.bytes_per_token == bytes_per_token(config, dtype)


def test_formats_that_a_model_or_a_card_lacks_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(open_model(write_folder(tmp_path / "model")).config, head_dim=18)
    assert plan_pages(config, torch.bfloat16, 16, 1 << 20).num_pages > 2
    for dtype in (torch.int8, torch.float8_e4m3fn):
        with pytest.raises(SetupError, match=r"--kv-dtype.* is 18\. Use bf16"):
            plan_pages(config, dtype, 16, 1 << 20)
    cuda, bf16 = torch.device("cuda"), torch.bfloat16
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(SetupError, match=r"capability 8\.0.*Use int8"):
        kv_dtype("fp8", bf16, cuda)
    assert [kv_dtype(form, bf16, cuda) for form in ("auto", "int8", "fp32")] == [
        bf16,
        torch.int8,
        torch.float32,
    ]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert kv_dtype("fp8", bf16, cuda) == kv_dtype("fp8", bf16, CPU) == torch.float8_e4m3fn


@pytest.mark.parametrize("dtype", KV_FORMS.values())
@pytest.mark.parametrize(
    ("page_size", "head_dim", "kv_heads"), [(1, 4, 1), (2, 12, 1), (16, 20, 3), (1, 36, 5)]
)
def test_heads_of_all_pages_are_rows_of_one_matrix(
    tmp_path: Path, dtype: torch.dtype, page_size: int, head_dim: int, kv_heads: int
) -> None:
    """The law of `LayerKV`, at sizes where records need padding. int8 pages end in scales instead."""
    config = replace(
        open_model(write_folder(tmp_path / "model")).config,
        n_layers=1,
        head_dim=head_dim,
        n_kv_heads=kv_heads,
    )
    pool = KVPool(config, plan_pages(config, dtype, page_size, 1 << 16), dtype, CPU)
    assert pool.page_bytes % 16 == 0
    assert pool.page_bytes >= page_size * bytes_per_token(config, dtype)
    assert (pool.scales is None) == (dtype != torch.int8)
    if dtype != torch.int8:
        assert pool.planes.stride(0) % (page_size * head_dim) == 0


def test_page_sizes_and_too_little_memory(tmp_path: Path) -> None:
    config = open_model(write_folder(tmp_path / "model")).config
    per_token = bytes_per_token(config, torch.float32)
    assert per_token == 2 * 2 * 2 * 16 * 4
    assert plan_pages(config, torch.float32, 64, 128 * per_token).num_pages == 2
    with pytest.raises(SetupError, match="--kv-bytes"):
        plan_pages(config, torch.float32, 64, 128 * per_token - 1)
    for page_size in (0, -16, 3, 128):
        with pytest.raises(SetupError, match="--page-size"):
            plan_pages(config, torch.float32, page_size, 1 << 30)


def test_memory_that_the_system_does_not_give(tmp_path: Path) -> None:
    config = open_model(write_folder(tmp_path / "model")).config
    for size in (1 << 52, 1 << 66):
        plan = plan_pages(config, torch.float32, 16, size)
        with pytest.raises(SetupError, match="--kv-bytes"):
            KVPool(config, plan, torch.float32, CPU)


def test_pages_are_contiguous_records_and_scratch_is_outside_the_count(tmp_path: Path) -> None:
    config = open_model(write_folder(tmp_path / "model")).config
    plan = plan_pages(config, torch.float32, 4, 10 * 4 * bytes_per_token(config, torch.float32))
    pool = KVPool(config, plan, torch.float32, CPU)
    assert pool.num_pages == 10
    assert pool.planes.shape == (11, 2, 2, 2, 4, 16)
    assert pool.planes[3].is_contiguous()
    assert pool.scratch_page == 10
    assert pool.layers[1].k.shape == (11, 2, 4, 16)
    pool.layers[1].v[3, 1, 2, 5] = 7.0
    assert pool.planes[3, 1, 1, 1, 2, 5] == 7.0
    assert int(pool.planes.count_nonzero()) == 1
