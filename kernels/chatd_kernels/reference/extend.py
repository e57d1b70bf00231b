"""Causal attention of a ragged batch: row by row over its gathered pages, in blocks of queries.

A block multiplies with the keys up to its own end only, so half of a long prompt's square is never
computed. Query heads of a KV head are rows of one matrix, so K and V are never repeated.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from chatd_kernels.ops import AttentionSpec, LayerKV, PagedBatch
from chatd_kernels.reference.pages import head_rows, row_index
from chatd_kernels.reference.quantised import is_narrow, used_pages, widen

BLOCK_LEN = 128
"""Queries in a block."""


@dataclass(frozen=True, slots=True)
class Block:
    """Queries ``begin:end`` of the batch see keys ``first:last`` of their row, less what ``bias`` hides.

    ``bias`` float32 ``[end - begin, last - masked]`` is for keys ``masked:last``: 0 or minus infinity.
    """

    begin: int
    end: int
    first: int
    last: int
    masked: int
    bias: Tensor


@dataclass(frozen=True, slots=True)
class Row:
    """``gather``: rows of `head_rows` that hold the row's KV."""

    kv_len: int
    gather: Tensor
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """With KV in 8 bits ``narrow_pages`` are those that each layer widens; ``rows`` speak of that list."""

    rows: tuple[Row, ...]
    spec: AttentionSpec
    narrow_pages: Tensor | None = None


def make_plan(batch: PagedBatch, kv: LayerKV, spec: AttentionSpec) -> Plan:
    if is_narrow(kv):
        used, table = used_pages(batch.page_table)
        plan = make_plan(replace(batch, page_table=table), widen(kv, used), spec)
        return replace(plan, narrow_pages=used)
    page_size = kv.k.shape[2]
    starts, rows = batch.q_starts.tolist(), []
    for i, kv_len in enumerate(batch.kv_lens.tolist()):
        table = batch.page_table[i : i + 1, : -(-kv_len // page_size)]
        blocks = tuple(_blocks(starts[i], starts[i + 1], kv_len, spec.window, kv.k.device))
        rows.append(Row(kv_len, row_index(table, kv.k), blocks))
    return Plan(tuple(rows), spec)


def _blocks(begin: int, end: int, kv_len: int, window: int, device: torch.device) -> list[Block]:
    blocks = []
    for at in range(begin, end, BLOCK_LEN):
        stop = min(at + BLOCK_LEN, end)
        position, last = kv_len - end + at, kv_len - end + stop
        first = max(0, position - window + 1) if window else 0
        masked = first if window else position
        bias = causal_bias(position, stop - at, masked, window, device)
        blocks.append(Block(at, stop, first, last, masked, bias))
    return blocks


def causal_bias(position: int, q_len: int, masked: int, window: int, device: torch.device) -> Tensor:
    """For queries from ``position`` on and keys from ``masked`` on: 0 where seen, else minus infinity."""
    query = torch.arange(position, position + q_len, device=device)[:, None]
    key = torch.arange(masked, position + q_len, device=device)
    hidden = key > query
    if window:
        hidden |= key <= query - window
    return torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf)


def attention(q: Tensor, kv: LayerKV, plan: Plan) -> Tensor:
    if plan.narrow_pages is not None:
        kv = widen(kv, plan.narrow_pages)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_rows, v_rows = head_rows(kv.k), head_rows(kv.v)
    _, kv_heads, _, dim = kv.k.shape
    for row in plan.rows:
        # Only the row's own slots are left in k and v: nothing stale can be seen.
        k = k_rows.index_select(0, row.gather).view(kv_heads, -1, dim)[:, : row.kv_len].float()
        v = v_rows.index_select(0, row.gather).view(kv_heads, -1, dim)[:, : row.kv_len]
        for block in row.blocks:
            out[block.begin : block.end] = _attend(q[block.begin : block.end], k, v, block, plan.spec)
    return out


def _attend(q: Tensor, k: Tensor, v: Tensor, block: Block, spec: AttentionSpec) -> Tensor:
    """q ``[m, h, d]``, k float32 and v ``[kvh, s, d]`` -> ``[m, h, d]``."""
    m, _, dim = q.shape
    kv_heads = len(k)
    queries = (
        (q.float() * spec.scale).view(m, kv_heads, -1, dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, dim)
    )
    scores = torch.bmm(queries, k[:, block.first : block.last].transpose(1, 2))
    if spec.softcap:
        scores.div_(spec.softcap).tanh_().mul_(spec.softcap)
    scores.view(kv_heads, -1, m, block.last - block.first)[..., block.masked - block.first :].add_(block.bias)
    weights = torch.softmax(scores, -1).to(v.dtype)
    result = torch.bmm(weights, v[:, block.first : block.last])
    return result.view(kv_heads, -1, m, dim).permute(2, 0, 1, 3).reshape(m, -1, dim)
