"""Pages so far into the pool that element offsets need 64 bits. What lies between is never touched."""

import mmap

import pytest
import torch
from torch import Tensor

from chatd_kernels.ops import AttentionSpec, LayerKV, PagedBatch
from tests.kernels.triton.compare import REFERENCE, TRITON, assert_close, randn

PAGES, STRIDE, KV_HEADS, PAGE_SIZE, DIM = 4, 1 << 30, 2, 4, 64
RECORD = 2 * KV_HEADS * PAGE_SIZE * DIM
INT32 = torch.int32


@pytest.fixture(autouse=True)
def share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter copies every storage onto itself after a launch, which would touch all of it."""
    monkeypatch.setattr("triton.runtime.interpreter.GridExecutor._restore_args_dev", lambda *_: None)


def far_pool() -> Tensor:
    """float16 ``[PAGES, 1 layer, 2, KV_HEADS, PAGE_SIZE, DIM]``; 6 GiB, of which 4 pages are ever real."""
    memory = mmap.mmap(-1, 2 * (PAGES - 1) * STRIDE + 2 * RECORD)
    flat = torch.frombuffer(memory, dtype=torch.float16)
    inner = (RECORD, KV_HEADS * PAGE_SIZE * DIM, PAGE_SIZE * DIM, DIM, 1)
    return flat.as_strided((PAGES, 1, 2, KV_HEADS, PAGE_SIZE, DIM), (STRIDE, *inner))


def layer(pool: Tensor) -> LayerKV:
    return LayerKV(pool[:, 0, 0], pool[:, 0, 1])


def test_store_and_attention() -> None:
    far, near = far_pool(), torch.zeros(PAGES, 1, 2, KV_HEADS, PAGE_SIZE, DIM, dtype=torch.float16)
    qkv = randn(6, (4 + 2 * KV_HEADS) * DIM, dtype=torch.float16)
    cos, sin = torch.ones(6, DIM), torch.zeros(6, DIM)
    pages, slots = torch.tensor([3, 3, 3, 3, 2, 2]), torch.tensor([0, 1, 2, 3, 0, 1])
    q = TRITON.rope_store_kv(qkv, cos, sin, layer(far), pages, slots)
    REFERENCE.rope_store_kv(qkv, cos, sin, layer(near), pages, slots)
    assert torch.equal(far, near)
    table = torch.tensor([[3, 2]], dtype=INT32)
    lens, starts = torch.tensor([6], dtype=INT32), torch.tensor([0, 1], dtype=INT32)
    spec, batch = AttentionSpec(0.125), PagedBatch(table, lens, starts, 6, 1)
    got = TRITON.decode_attention(q[5:], layer(far), TRITON.plan_decode(batch, layer(far), spec))
    want = REFERENCE.decode_attention(q[5:], layer(near), REFERENCE.plan_decode(batch, layer(near), spec))
    assert_close(got, want)


def test_page_moves() -> None:
    far = far_pool()
    far[3] = randn(*far.shape[1:], dtype=torch.float16)
    TRITON.copy_slots(far, 3, 2, 3)
    assert torch.equal(far[2, ..., :3, :], far[3, ..., :3, :])
    assert (far[2, ..., 3, :] == 0).all()
    records = TRITON.gather_pages(far, torch.tensor([3, 2]))
    assert torch.equal(records, torch.stack([far[3], far[2]]))
    TRITON.scatter_pages(far, torch.tensor([2, 3]), records)
    assert torch.equal(far[2], records[0])
    assert torch.equal(far[3], records[1])
