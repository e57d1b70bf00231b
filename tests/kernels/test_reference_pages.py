"""Rotation, storing, copying, gathering; norms and activations."""

import math

import pytest
import torch

from chatd_kernels import load_backend
from chatd_kernels.ops import LayerKV

OPS = load_backend("reference")


def rotation(positions: list[int], dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.tensor([[p / 10000 ** (2 * i / dim) for i in range(dim // 2)] for p in positions])
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (5, 1, 16), (2, 2, 80)])
def test_rope_turns_pairs_and_stores_each_token_in_its_slot(heads: int, kv_heads: int, dim: int) -> None:
    torch.manual_seed(0)
    positions, pages, slots = [0, 1, 77, 500], torch.tensor([3, 1, 1, 0]), torch.tensor([2, 0, 3, 1])
    pool = torch.zeros(4, 2, 2, kv_heads, 4, dim)
    kv = LayerKV(pool[:, 1, 0], pool[:, 1, 1])
    qkv = torch.randn(4, (heads + 2 * kv_heads) * dim)
    q = OPS.rope_store_kv(qkv, *rotation(positions, dim), kv, pages, slots)
    assert q.shape == (4, heads, dim)
    given = qkv.view(4, -1, dim)
    for i, position in enumerate(positions):
        turned = torch.empty(heads + kv_heads, dim)
        for j in range(dim // 2):
            angle = position / 10000 ** (2 * j / dim)
            a, b = given[i, : heads + kv_heads, j], given[i, : heads + kv_heads, j + dim // 2]
            turned[:, j] = a * math.cos(angle) - b * math.sin(angle)
            turned[:, j + dim // 2] = b * math.cos(angle) + a * math.sin(angle)
        torch.testing.assert_close(q[i], turned[:heads], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(kv.k[pages[i], :, slots[i]], turned[heads:], atol=1e-4, rtol=1e-4)
        assert torch.equal(kv.v[pages[i], :, slots[i]], given[i, -kv_heads:])
    assert int(pool[:, 0].count_nonzero()) == 0
    assert int((pool[:, 1].abs().sum(-1) > 0).sum()) == 4 * 2 * kv_heads


def test_copy_slots_copies_all_layers_and_no_more() -> None:
    pool = torch.randn(5, 3, 2, 2, 8, 4)
    before = pool.clone()
    OPS.copy_slots(pool, 1, 4, 5)
    assert torch.equal(pool[4, :, :, :, :5], before[1, :, :, :, :5])
    assert torch.equal(pool[4, :, :, :, 5:], before[4, :, :, :, 5:])
    assert torch.equal(pool[:4], before[:4])
    OPS.copy_slots(pool, 0, 2, 0)
    assert torch.equal(pool[2], before[2])


def test_gathered_pages_scatter_back() -> None:
    pool = torch.randn(6, 3, 2, 2, 8, 4)
    before, pages = pool.clone(), torch.tensor([4, 0, 3])
    records = OPS.gather_pages(pool, pages)
    assert records.is_contiguous()
    assert torch.equal(records[1], before[0])
    pool[pages] = torch.nan
    OPS.scatter_pages(pool, pages, records)
    assert torch.equal(pool, before)
    OPS.scatter_pages(pool, torch.tensor([1, 2, 5]), records)
    assert torch.equal(pool[5], before[3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hidden", [1, 63, 576])
def test_norms(hidden: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(7, hidden).to(dtype) * 3, torch.randn(7, hidden).to(dtype)
    weight, total = torch.randn(hidden).to(dtype), (x + residual).double()
    expected = total / (total.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    limit = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(
        OPS.rms_norm(x + residual, weight, 1e-5).double(), expected, atol=limit, rtol=limit
    )
    out = OPS.add_rms_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(out.double(), expected, atol=limit, rtol=limit)
    assert torch.equal(residual.double(), total)


def test_silu_mul() -> None:
    gate, up = torch.randn(5, 33), torch.randn(5, 33)
    both = torch.cat((gate, up), -1)
    torch.testing.assert_close(OPS.silu_mul(both), gate / (1 + (-gate).exp()) * up)
    assert torch.equal(both[:, :33], gate)


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match="'nonsense'"):
        load_backend("nonsense")
