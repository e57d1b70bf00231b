"""Causal attention of a ragged batch: row by row over its gathered pages."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from chatd_kernels.ops import AttentionSpec, LayerKV, PagedBatch
from chatd_kernels.reference.pages import head_rows, row_index


@dataclass(frozen=True, slots=True)
class Row:
    """Queries ``begin:end``; ``bias`` float32 ``[end - begin, kv_len]``, or none for a plain causal square."""

    begin: int
    end: int
    kv_len: int
    gather: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Plan:
    rows: tuple[Row, ...]
    spec: AttentionSpec


def make_plan(batch: PagedBatch, kv: LayerKV, spec: AttentionSpec) -> Plan:
    page_size = kv.k.shape[2]
    starts, rows = batch.q_starts.tolist(), []
    for i, kv_len in enumerate(batch.kv_lens.tolist()):
        begin, end = starts[i], starts[i + 1]
        table = batch.page_table[i : i + 1, : -(-kv_len // page_size)]
        bias = None
        if spec.window or spec.softcap or end - begin < kv_len:
            bias = causal_bias(end - begin, kv_len, spec.window, kv.k.device)
        rows.append(Row(begin, end, kv_len, row_index(table, kv.k), bias))
    return Plan(tuple(rows), spec)


def causal_bias(q_len: int, kv_len: int, window: int, device: torch.device) -> Tensor:
    """0 where the query sees the key, else minus infinity; queries are the last ``q_len`` positions."""
    query = torch.arange(kv_len - q_len, kv_len, device=device)[:, None]
    key = torch.arange(kv_len, device=device)
    hidden = key > query
    if window:
        hidden |= key <= query - window
    return torch.zeros(q_len, kv_len, device=device).masked_fill_(hidden, -torch.inf)


def attention(q: Tensor, kv: LayerKV, plan: Plan) -> Tensor:
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    k_rows, v_rows = head_rows(kv.k), head_rows(kv.v)
    _, kv_heads, _, dim = kv.k.shape
    for row in plan.rows:
        # Only the row's own slots are left in k and v: nothing stale can be seen.
        k = k_rows.index_select(0, row.gather).view(kv_heads, -1, dim)[:, : row.kv_len]
        v = v_rows.index_select(0, row.gather).view(kv_heads, -1, dim)[:, : row.kv_len]
        queries = q[row.begin : row.end].view(row.end - row.begin, kv_heads, -1, dim).permute(1, 2, 0, 3)
        result = _attend(queries, k, v, row.bias, plan.spec)
        out[row.begin : row.end] = result.permute(2, 0, 1, 3).flatten(1, 2)
    return out


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, spec: AttentionSpec) -> Tensor:
    """q ``[kvh, g, m, d]``, k and v ``[kvh, s, d]``, bias ``[m, s]`` -> ``[kvh, g, m, d]``."""
    k = k[:, None].to(q.dtype).expand(-1, q.shape[1], -1, -1)
    v = v[:, None].to(q.dtype).expand(-1, q.shape[1], -1, -1)
    if spec.softcap:
        assert bias is not None
        scores = torch.matmul(q.float(), k.float().transpose(-1, -2))
        scores = scores.mul_(spec.scale / spec.softcap).tanh_().mul_(spec.softcap).add_(bias)
        return torch.matmul(torch.softmax(scores, -1).to(v.dtype), v)
    mask = None if bias is None else bias.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=bias is None, scale=spec.scale)
