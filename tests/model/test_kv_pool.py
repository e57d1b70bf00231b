"""How many pages fit, what is said about it, and the layout that kernels rely on."""

from pathlib import Path

import pytest
import torch

from chatd.errors import SetupError
from chatd.model.kv_pool import KVPool, bytes_per_token, plan_pages
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
