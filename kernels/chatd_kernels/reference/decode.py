"""Attention where each row has one query: pages are gathered per layer, then two batched products.

Query heads of a KV head are the rows of one small matrix, so K and V are never repeated.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from chatd_kernels.ops import AttentionSpec, LayerKV, PagedBatch
from chatd_kernels.reference.pages import head_rows, row_index
from chatd_kernels.reference.quantised import is_narrow, used_pages, widen

SPLIT_WASTE_LEN = 1024
"""Padding slots in a bucket before another one is opened: about what 10 small operations cost."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Rows of similar length. ``s`` slots = ``p`` pages, padding included.

    ``gather`` int64 ``[r * kvh * p]``; ``bias`` float32 ``[r * kvh, 1, s]``: 0, or minus infinity where
    nothing may be seen; ``dead`` int64: slots of ``[r * kvh * s]`` past a row's end. The buffers serve all
    layers.
    """

    gather: Tensor
    bias: Tensor
    dead: Tensor
    k: Tensor
    v: Tensor
    k_wide: Tensor


@dataclass(frozen=True, slots=True)
class Plan:
    """``order`` lists rows by bucket and ``back`` undoes it; both are empty with a single bucket.

    With KV in 8 bits ``narrow_pages`` are those that each layer widens, and the rest speaks of that list.
    """

    buckets: tuple[Bucket, ...]
    sizes: list[int]
    order: Tensor
    back: Tensor
    spec: AttentionSpec
    narrow_pages: Tensor | None = None


def make_plan(batch: PagedBatch, kv: LayerKV, spec: AttentionSpec) -> Plan:
    if is_narrow(kv):
        used, table = used_pages(batch.page_table)
        plan = make_plan(replace(batch, page_table=table), widen(kv, used), spec)
        return replace(plan, narrow_pages=used)
    page_size = kv.k.shape[2]
    lens = batch.kv_lens.long()
    pages = [-(-kv_len // page_size) for kv_len in lens.tolist()]
    groups = split_rows(pages, max(1, SPLIT_WASTE_LEN // page_size))
    device = kv.k.device
    if len(groups) == 1:
        order = back = torch.empty(0, dtype=torch.long, device=device)
        buckets: tuple[Bucket, ...] = (_bucket(batch.page_table[:, : max(pages)], lens, kv, spec),)
    else:
        order = torch.tensor([row for group in groups for row in group], device=device)
        back = order.argsort()
        buckets = tuple(
            _bucket(batch.page_table[group, : pages[group[0]]], lens[group], kv, spec) for group in groups
        )
    return Plan(buckets, [len(group) for group in groups], order, back, spec)


def split_rows(pages: list[int], waste: int) -> list[list[int]]:
    """Row numbers in groups, longest first, each padding fewer than about ``waste`` pages in all."""
    groups: list[list[int]] = []
    wasted = longest = 0
    for row in sorted(range(len(pages)), key=lambda i: -pages[i]):
        wasted += longest - pages[row]
        if not groups or wasted > waste:
            groups.append([])
            wasted, longest = 0, pages[row]
        groups[-1].append(row)
    return groups


def _bucket(table: Tensor, lens: Tensor, kv: LayerKV, spec: AttentionSpec) -> Bucket:
    _, kv_heads, page_size, dim = kv.k.shape
    rows, pages = table.shape
    at = torch.arange(pages * page_size, device=table.device)
    past_end = at >= lens[:, None]
    hidden = past_end
    if spec.window:
        hidden = past_end | (at < lens[:, None] - spec.window)
    bias = torch.zeros(hidden.shape, device=table.device).masked_fill_(hidden, -torch.inf)
    dead = past_end[:, None].expand(rows, kv_heads, -1).reshape(-1).nonzero()[:, 0]
    gather = row_index(table, kv.k)
    k = torch.empty(gather.numel(), page_size * dim, dtype=kv.k.dtype, device=table.device)
    shape = (rows * kv_heads, pages * page_size, dim)
    k_wide = k.view(shape) if k.dtype == torch.float32 else torch.empty(shape, device=table.device)
    return Bucket(gather, bias.repeat_interleave(kv_heads, 0)[:, None], dead, k, torch.empty_like(k), k_wide)


def attention(q: Tensor, kv: LayerKV, plan: Plan) -> Tensor:
    if plan.narrow_pages is not None:
        kv = widen(kv, plan.narrow_pages)
    k_rows, v_rows = head_rows(kv.k), head_rows(kv.v)
    if len(plan.buckets) == 1:
        return _attend(q, k_rows, v_rows, plan.buckets[0], plan.spec)
    parts = torch.split(q.index_select(0, plan.order), plan.sizes)
    outs = [_attend(part, k_rows, v_rows, b, plan.spec) for part, b in zip(parts, plan.buckets, strict=True)]
    return torch.cat(outs).index_select(0, plan.back)


def _attend(q: Tensor, k_rows: Tensor, v_rows: Tensor, bucket: Bucket, spec: AttentionSpec) -> Tensor:
    torch.index_select(k_rows, 0, bucket.gather, out=bucket.k)
    torch.index_select(v_rows, 0, bucket.gather, out=bucket.v)
    # Zeroed, not only masked: 0 * NaN of a stale slot would be NaN.
    dim = q.shape[-1]
    bucket.k.view(-1, dim).index_fill_(0, bucket.dead, 0)
    bucket.v.view(-1, dim).index_fill_(0, bucket.dead, 0)
    if bucket.k.dtype != torch.float32:
        bucket.k_wide.copy_(bucket.k.view(bucket.k_wide.shape))
    batch, slots, _ = bucket.k_wide.shape
    queries = q.reshape(batch, -1, dim).float()
    keys = bucket.k_wide.transpose(1, 2)
    if spec.softcap:
        scores = torch.bmm(queries, keys).mul_(spec.scale / spec.softcap).tanh_().mul_(spec.softcap)
        scores.add_(bucket.bias)
    else:
        scores = torch.baddbmm(bucket.bias, queries, keys, alpha=spec.scale)
    weights = torch.softmax(scores, -1).to(bucket.v.dtype)
    return torch.bmm(weights, bucket.v.view(batch, slots, dim)).view(q.shape).to(q.dtype)
