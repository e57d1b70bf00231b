"""Ragged batches over a shuffled pool, and the plainest attention there is to hold them against."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from chatd_kernels.ops import AttentionSpec, LayerKV, PagedBatch


@dataclass(frozen=True)
class Case:
    """``k`` and ``v`` are the rows' own tokens, ``[kv_len, kvh, d]`` each; ``kv`` holds them in pages."""

    q: Tensor
    k: list[Tensor]
    v: list[Tensor]
    kv: LayerKV
    batch: PagedBatch


def make_case(
    kv_lens: Sequence[int],
    q_lens: Sequence[int],
    *,
    kv_heads: int,
    group: int,
    dim: int,
    page_size: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Case:
    """Pages are shuffled, of two layers, and NaN wherever no token of the batch is."""
    torch.manual_seed(seed)
    counts = [-(-kv_len // page_size) for kv_len in kv_lens]
    pool = torch.full((sum(counts) + 3, 2, 2, kv_heads, page_size, dim), torch.nan, dtype=dtype)
    kv = LayerKV(pool[:, 1, 0], pool[:, 1, 1])
    order = torch.randperm(len(pool))
    # Padding of the table points at a page that is all NaN.
    table = torch.full((len(kv_lens), max(counts)), int(order[-1]), dtype=torch.int32)
    keys, values, at = [], [], 0
    for i, (kv_len, count) in enumerate(zip(kv_lens, counts, strict=True)):
        table[i, :count] = order[at : at + count]
        at += count
        keys.append(torch.randn(kv_len, kv_heads, dim).to(dtype))
        values.append(torch.randn(kv_len, kv_heads, dim).to(dtype))
        for j in range(kv_len):
            page, slot = int(table[i, j // page_size]), j % page_size
            kv.k[page, :, slot], kv.v[page, :, slot] = keys[i][j], values[i][j]
    q = torch.randn(sum(q_lens), kv_heads * group, dim).to(dtype)
    batch = PagedBatch(
        page_table=table,
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32),
        q_starts=torch.tensor([0, *torch.tensor(q_lens).cumsum(0).tolist()], dtype=torch.int32),
        max_kv_len=max(kv_lens),
        max_q_len=max(q_lens),
    )
    return Case(q, keys, values, kv, batch)


def plain_attention(case: Case, spec: AttentionSpec) -> Tensor:
    """Query by query, head by head, in float64."""
    outs, starts = [], case.batch.q_starts.tolist()
    group = case.q.shape[1] // case.kv.k.shape[1]
    for i, (begin, end) in enumerate(pairwise(starts)):
        for j in range(begin, end):
            position = len(case.k[i]) - end + j
            first = max(0, position - spec.window + 1) if spec.window else 0
            heads = []
            for head in range(case.q.shape[1]):
                k = case.k[i][first : position + 1, head // group].double()
                v = case.v[i][first : position + 1, head // group].double()
                scores = spec.scale * (k @ case.q[j, head].double())
                if spec.softcap:
                    scores = spec.softcap * torch.tanh(scores / spec.softcap)
                heads.append(torch.softmax(scores, 0) @ v)
            outs.append(torch.stack(heads))
    return torch.stack(outs)
