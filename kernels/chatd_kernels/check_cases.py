"""What `check` runs: each kernel on several sets of random inputs, at the shapes of Llama-3-8B.

The pool has more than 2^31 elements; a set's KV is a layer of it, so that sets share no cache lines.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from chatd_kernels import floors
from chatd_kernels.floors import Work
from chatd_kernels.layout import PagePool, page_pool, record_bytes
from chatd_kernels.ops import AttentionSpec, LayerKV, Ops, PagedBatch, SampleParams
from chatd_kernels.reference.quantised import narrow
from chatd_kernels.shapes import LLAMA_3_8B, ModelShape

BF16, FP8, INT8 = torch.bfloat16, torch.float8_e4m3fn, torch.int8


@dataclass(frozen=True, slots=True)
class Case:
    """``run`` and ``expect`` give the same for the same set of inputs, 0..sets-1."""

    name: str
    sets: int
    run: Callable[[int], Tensor]
    expect: Callable[[int], Tensor]
    work: Work


@dataclass(frozen=True, slots=True)
class Size:
    """``model.layers`` layers of ``rows`` times ``kv_len`` tokens make the pool."""

    model: ModelShape
    rows: int
    kv_len: int
    chunk_len: int
    chunk_kv_len: int
    tokens: int
    page_size: int = 16

    @classmethod
    def full(cls) -> "Size":
        """9 layers x 131,072 tokens x 2,048 elements: 2.4 x 10^9, 4.8 GB in bf16."""
        return cls(replace(LLAMA_3_8B, layers=9), 32, 4096, 2048, 8192, 2048)

    @classmethod
    def small(cls) -> "Size":
        model = ModelShape("small", 2, 96, 6, 2, 64, 160, 700, tied=True)
        return cls(model, 3, 50, 9, 40, 5)

    @property
    def pages(self) -> int:
        return self.rows * -(-self.kv_len // self.page_size)


@dataclass(frozen=True, slots=True)
class Bench:
    """The two backends and where they run."""

    ops: Ops
    reference: Ops
    device: torch.device
    size: Size

    def randn(self, *shape: int, dtype: torch.dtype = BF16) -> Tensor:
        return torch.randn(*shape, device=self.device).to(dtype)


def all_cases(ops: Ops, reference: Ops, device: torch.device, size: Size) -> Iterator[Case]:
    """One after the other, each pool freed before the next is made."""
    torch.manual_seed(1)
    bench = Bench(ops, reference, device, size)
    yield from dense_cases(bench)
    yield sample_case(bench)
    formats = [BF16, INT8]
    if device.type == "cpu" or torch.cuda.get_device_capability(device) >= (8, 9):
        formats.append(FP8)
    for kv_dtype in formats:
        pool = random_pool(bench, kv_dtype)
        label = str(kv_dtype).removeprefix("torch.")
        yield decode_case(bench, pool, label)
        yield extend_case(bench, pool, label)
        yield store_case(bench, pool, label)
        yield from page_cases(bench, pool, label)
        del pool


def dense_cases(bench: Bench) -> Iterator[Case]:
    m, n, sets = bench.size.model, bench.size.tokens, 4
    x = [bench.randn(n, m.hidden) for _ in range(sets)]
    weight = bench.randn(m.hidden)
    residual = [bench.randn(n, m.hidden) for _ in range(sets)]
    gate_up = [bench.randn(n, 2 * m.ffn) for _ in range(sets)]
    yield Case(
        f"add, norm: {n} tokens",
        sets,
        # The residual is updated in place: a copy, whose bytes are counted, keeps the sets as they are.
        lambda i: bench.ops.add_rms_norm(x[i], residual[i].clone(), weight, 1e-5),
        lambda i: bench.reference.rms_norm((residual[i] + x[i]).float(), weight.float(), 1e-5),
        floors.rms_norm(m, n) + Work(2 * n * m.hidden * 2),
    )
    yield Case(
        f"silu-mul: {n} tokens",
        sets,
        lambda i: bench.ops.silu_mul(gate_up[i]),
        lambda i: bench.reference.silu_mul(gate_up[i].float()),
        floors.silu_mul(m, n),
    )


def sample_case(bench: Bench) -> Case:
    m, rows, sets = bench.size.model, 4 * bench.size.rows, 4
    logits = [3 * bench.randn(rows, m.vocab) for _ in range(sets)]

    def full(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((rows,), value, dtype=dtype, device=bench.device)

    whole = torch.arange(rows, device=bench.device)
    params = SampleParams(
        full(0.8),
        full(50, torch.int64),
        full(0.95),
        full(0.0),
        whole,
        whole,
        all_greedy=False,
        any_filter=True,
    )
    return Case(
        f"sampling: {rows} rows, top-k and top-p",
        sets,
        lambda i: bench.ops.sample(logits[i], params, None),
        lambda i: bench.reference.sample(logits[i], params, None),
        floors.sample(m, rows),
    )


def random_pool(bench: Bench, dtype: torch.dtype) -> PagePool:
    size, m = bench.size, bench.size.model
    record = record_bytes(m.layers, m.kv_heads, size.page_size, m.dim, dtype)
    raw = torch.empty(size.pages, record, dtype=torch.uint8, device=bench.device)
    pool = page_pool(raw, m.layers, m.kv_heads, size.page_size, m.dim, dtype)
    for first in range(0, size.pages, 256):
        planes = pool.planes[first : first + 256]
        values = torch.randn(planes.shape, device=bench.device)
        if dtype == INT8:
            planes.copy_((40 * values).clamp(-127, 127))
        else:
            planes.view(torch.uint8).copy_(narrow(values, dtype).view(torch.uint8))
    if pool.scales is not None:
        pool.scales.uniform_(0.02, 0.03)
    return pool


def paged(bench: Bench, rows: int, q_len: int, kv_len: int) -> PagedBatch:
    """Pages of the pool in no order, none twice."""
    used = -(-kv_len // bench.size.page_size)
    pages = torch.randperm(bench.size.pages, device=bench.device)[: rows * used].int()
    starts = q_len * torch.arange(rows + 1, device=bench.device, dtype=torch.int32)
    lens = torch.full((rows,), kv_len, dtype=torch.int32, device=bench.device)
    return PagedBatch(pages.view(rows, used), lens, starts, kv_len, q_len)


def token_bytes(kv: LayerKV) -> int:
    _, kv_heads, _, dim = kv.k.shape
    return 2 * kv_heads * (dim * kv.k.dtype.itemsize + (0 if kv.k_scale is None else floors.SCALE))


def decode_case(bench: Bench, pool: PagePool, label: str) -> Case:
    size, m = bench.size, bench.size.model
    batch, spec = paged(bench, size.rows, 1, size.kv_len), AttentionSpec(m.dim**-0.5)
    q = bench.randn(size.rows, m.heads, m.dim)

    def attend(ops: Ops, x: Tensor, i: int) -> Tensor:
        kv = pool.layer(i)
        return ops.decode_attention(x, kv, ops.plan_decode(batch, kv, spec))

    return Case(
        f"decode: {size.rows} x {size.kv_len}, {label}",
        m.layers,
        partial(attend, bench.ops, q),
        partial(attend, bench.reference, q.float()),
        floors.attention(m, size.rows, 1, size.kv_len, token_bytes(pool.layer(0))),
    )


def extend_case(bench: Bench, pool: PagePool, label: str) -> Case:
    size, m = bench.size, bench.size.model
    batch, spec = paged(bench, 1, size.chunk_len, size.chunk_kv_len), AttentionSpec(m.dim**-0.5)
    q = bench.randn(size.chunk_len, m.heads, m.dim)

    def attend(ops: Ops, x: Tensor, i: int) -> Tensor:
        kv = pool.layer(i)
        return ops.extend_attention(x, kv, ops.plan_extend(batch, kv, spec))

    return Case(
        f"extend: {size.chunk_len} on {size.chunk_kv_len}, {label}",
        m.layers,
        partial(attend, bench.ops, q),
        partial(attend, bench.reference, q.float()),
        floors.attention(m, 1, size.chunk_len, size.chunk_kv_len, token_bytes(pool.layer(0))),
    )


def store_case(bench: Bench, pool: PagePool, label: str) -> Case:
    """Compares the q that comes back; that K and V arrive shows in what is read back from the pool."""
    size, m = bench.size, bench.size.model
    n = size.tokens
    at = torch.randperm(size.pages * size.page_size, device=bench.device)[:n]
    where = (at // size.page_size, at % size.page_size)
    angles = bench.randn(n, m.dim // 2, dtype=torch.float32)
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([-angles.sin(), angles.sin()], -1)
    qkv = [bench.randn(n, (m.heads + 2 * m.kv_heads) * m.dim) for _ in range(m.layers)]

    def read_back(kv: LayerKV) -> Tensor:
        planes = []
        for plane, scale in ((kv.k, kv.k_scale), (kv.v, kv.v_scale)):
            values = plane.view(torch.uint8)[where[0], :, where[1]].view(plane.dtype).float()
            planes.append(values if scale is None else values * scale[where[0], :, where[1]][..., None])
        return torch.cat(planes, 1)

    def run(i: int) -> Tensor:
        return bench.ops.rope_store_kv(qkv[i], cos, sin, pool.layer(i), *where)

    def expect(i: int) -> Tensor:
        ours = read_back(pool.layer(i))
        q = bench.reference.rope_store_kv(qkv[i], cos, sin, pool.layer(i), *where)
        theirs = read_back(pool.layer(i))
        # A stray store shows as a great difference; rounding to the other side as a small one.
        assert (ours - theirs).norm() <= 0.02 * theirs.norm(), "K or V was not stored as reference does"
        return q

    store = Work(n * 2 * m.kv_heads * m.dim * (pool.planes.dtype.itemsize - 2))
    return Case(
        f"rope and store: {n} tokens, {label}", m.layers, run, expect, floors.rope_store(m, n) + store
    )


def page_cases(bench: Bench, pool: PagePool, label: str) -> Iterator[Case]:
    count = min(bench.size.tokens // bench.size.page_size + 1, bench.size.pages // 4)
    order = torch.randperm(bench.size.pages, device=bench.device)
    sets = [order[i * count : (i + 1) * count] for i in range(4)]
    moved = Work(2 * count * pool.raw.shape[1])
    yield Case(
        f"gather {count} pages, {label}",
        4,
        lambda i: bench.ops.gather_pages(pool.raw, sets[i]),
        lambda i: pool.raw[sets[i]],
        moved,
    )
    records = [pool.raw[pages].flip(0) for pages in sets]

    def scatter(i: int) -> Tensor:
        bench.ops.scatter_pages(pool.raw, sets[i], records[i])
        return pool.raw[sets[i][:1]]

    yield Case(f"scatter {count} pages, {label}", 4, scatter, lambda i: records[i][:1], moved)
