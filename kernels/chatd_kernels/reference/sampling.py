"""Drawing the next id; the formula is in `Ops.sample`. Everything is done row by row in the same order
whatever the batch, so that a row's answer never depends on its neighbours."""

import torch
import torch.nn.functional as F
from torch import Tensor

from chatd_kernels.ops import BAD_ROW, LogitEdits, SampleParams
from chatd_kernels.reference.philox import uniform

_BLOCK = 256
"""Running sums go over block sums, then within a block: exact enough in float32, and much shorter."""

_CANDIDATES = (64, 1024)
"""Sizes of partial sorts tried for the nucleus before a full one (49,152 ids: 0.02, 0.2, 1.5 ms a row)."""


def sample(logits: Tensor, params: SampleParams, edits: LogitEdits | None) -> Tensor:
    edited = logits.float()
    if edits is not None:
        edited = edit(edited.clone() if edited is logits else edited, edits)
    peak = edited.amax(-1)
    if params.all_greedy:
        ids = edited.argmax(-1)
    else:
        drawn = draw(edited, peak, params)
        greedy = params.temperature == 0
        ids = torch.where(greedy, edited.argmax(-1), drawn) if bool(greedy.any()) else drawn
    return ids.masked_fill_(~peak.isfinite(), BAD_ROW)


def edit(logits: Tensor, edits: LogitEdits) -> Tensor:
    """Apply ``edits`` in place and return the same tensor."""
    at = (edits.rows, edits.tokens)
    old = logits[at]
    logits[at] = torch.where(old > 0, old / edits.repetition, old * edits.repetition) + edits.offset
    return logits


def draw(logits: Tensor, peak: Tensor, params: SampleParams) -> Tensor:
    """Inverse of the cumulative distribution at one uniform number per row. Greedy rows get any id."""
    # The peak goes first: tiny temperatures then give 0 and minus infinity, never infinity less infinity.
    z = (logits - peak[:, None]) / torch.where(params.temperature == 0, 1.0, params.temperature)[:, None]
    weights = z.exp()
    if params.any_filter:
        weights.masked_fill_(z < _floor(z, weights, params)[:, None], 0)
    return _pick(weights, uniform(params.seeds, params.positions))


def _pick(weights: Tensor, u: Tensor) -> Tensor:
    """First id whose running sum exceeds ``u`` times the total. weights ``[r, v]``, u float64 ``[r]``."""
    blocks = _blocks(weights)
    sums = blocks.sum(-1).double().cumsum(-1)
    target = (u * sums[:, -1])[:, None]
    block = torch.searchsorted(sums, target, right=True).clamp_(max=sums.shape[1] - 1)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inside = blocks[torch.arange(len(blocks), device=u.device), block[:, 0]]
    running = before + inside.double().cumsum(-1)
    # Block sums are float32: the last id with any weight stands for what rounding leaves over.
    found = torch.searchsorted(running, target, right=True)
    last = (inside > 0).long().mul_(torch.arange(1, _BLOCK + 1, device=u.device)).amax(-1, keepdim=True) - 1
    return (block * _BLOCK + torch.minimum(found, last.clamp_(min=0)))[:, 0]


def _blocks(weights: Tensor) -> Tensor:
    """``[r, v]`` -> ``[r, blocks, 256]``, padded with zeros."""
    padding = -weights.shape[1] % _BLOCK
    return F.pad(weights, (0, padding)).view(len(weights), -1, _BLOCK)


def _floor(z: Tensor, weights: Tensor, params: SampleParams) -> Tensor:
    """The lowest z that stays, ``[r]``."""
    vocab = z.shape[1]
    floor = params.min_p.log()
    top_k = torch.where(params.top_k > 0, params.top_k, vocab).clamp_(max=vocab)
    pending = ((top_k < vocab) | (params.top_p < 1)).nonzero()[:, 0]
    for size in (*(c for c in _CANDIDATES if c < vocab), vocab):
        if not len(pending):
            break
        found, settled = _ranked_floor(
            z[pending], weights[pending], top_k[pending], params.top_p[pending], size
        )
        floor[pending] = torch.where(settled, torch.maximum(floor[pending], found), floor[pending])
        pending = pending[~settled]
    return floor


def _ranked_floor(
    z: Tensor, weights: Tensor, top_k: Tensor, top_p: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """Floors of top-k, then top-p, from the ``size`` largest z; and whether ``size`` was enough, per row."""
    vocab = z.shape[1]
    ranked = z.topk(size, -1).values
    k_floor = ranked.gather(1, (top_k.clamp(max=size) - 1)[:, None])
    unlimited = (top_k == vocab)[:, None]
    kept = torch.where(unlimited | (z >= k_floor), weights, 0.0)
    total = _blocks(kept).sum(-1).double().cumsum(-1)[:, -1:]
    running = ranked.exp().double().cumsum(-1)
    wanted = top_p.double()[:, None] * total
    count = (running < wanted).sum(-1, keepdim=True)
    p_floor = ranked.gather(1, count.clamp(max=size - 1))
    p_floor = torch.where(top_p[:, None] < 1, p_floor, -torch.inf)
    k_done = unlimited | (top_k[:, None] <= size)
    p_done = (top_p[:, None] >= 1) | (count < size) | (size == vocab)
    # With top-k in force the nucleus ends within it.
    floor = torch.where(unlimited, p_floor, torch.maximum(k_floor, p_floor))
    return floor[:, 0], (k_done & p_done)[:, 0]
