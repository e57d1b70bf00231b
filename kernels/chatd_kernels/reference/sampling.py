"""Drawing the next id; the formula is in `Ops.sample`. Everything is done row by row in the same order
whatever the batch, so that a row's answer never depends on its neighbours."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chatd_kernels.ops import BAD_ROW, LogitEdits, SampleParams
from chatd_kernels.reference.philox import uniform

_BLOCK = 256
"""Running sums go over block sums, then within a block: exact enough in float32, and much shorter."""


def sample(
    logits: Tensor, params: SampleParams, edits: LogitEdits | None, logprobs: Tensor | None = None
) -> Tensor:
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
    bad = ~peak.isfinite()
    if logprobs is not None:
        chosen = edited.log_softmax(-1).gather(1, ids[:, None])[:, 0]
        logprobs.copy_(chosen.masked_fill_(bad, torch.nan))
    return ids.masked_fill_(bad, BAD_ROW)


def edit(logits: Tensor, edits: LogitEdits) -> Tensor:
    """Apply ``edits`` in place and return the same tensor."""
    at = (edits.rows, edits.tokens)
    old = logits[at]
    logits[at] = torch.where(old > 0, old / edits.repetition, old * edits.repetition) + edits.offset
    return logits


def draw(logits: Tensor, peak: Tensor, params: SampleParams) -> Tensor:
    """Inverse of the cumulative distribution at one uniform number per row. Greedy rows get any id."""
    # The peak goes first: tiny temperatures then give 0 and minus infinity, never infinity less infinity.
    scale = torch.where(params.temperature == 0, 1.0, params.temperature)
    weights = (logits - peak[:, None]).div_(scale[:, None]).exp_()
    if params.any_filter:
        weights.masked_fill_(weights < _floor(weights, params), 0)
    target = uniform(params.seeds, params.positions)[:, None] * _total(weights)
    return _reach(weights, target, strict=True)[:, 0]


def _floor(weights: Tensor, params: SampleParams) -> Tensor:
    """The lowest weight that stays, ``[r, 1]``. The largest is 1."""
    vocab = weights.shape[1]
    floor = params.min_p[:, None].clone()
    top_k = torch.where(params.top_k > 0, params.top_k, vocab).clamp_(max=vocab)[:, None]
    top_p = params.top_p[:, None]
    rows = ((top_k < vocab) | (top_p < 1)).nonzero()[:, 0]
    if len(rows):
        floor[rows] = torch.maximum(floor[rows], _ranked_floor(weights[rows], top_k[rows], top_p[rows]))
    return floor


def _ranked_floor(weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The higher of the floors of top-k and, among what that left, top-p. All but weights ``[r, 1]``."""
    ranked = _descending(weights)
    k_floor = ranked.gather(1, top_k - 1)
    wanted = top_p.double() * _total(torch.where(ranked >= k_floor, ranked, 0.0))
    p_floor = ranked.gather(1, _reach(ranked, wanted, strict=False))
    return torch.maximum(k_floor, torch.where(top_p < 1, p_floor, 0.0))


def _descending(weights: Tensor) -> Tensor:
    """Each row's values, largest first."""
    if weights.device.type == "cpu":
        # numpy's vectorised sort takes 0.1 ms for 49,152 values where torch's takes 3 (AVX-512).
        return torch.from_numpy(np.sort(weights.numpy(), -1)[:, ::-1].copy())
    return weights.sort(-1, descending=True).values


def _total(weights: Tensor) -> Tensor:
    """Sum per row, float64 ``[r, 1]``, added in the order that `_reach` adds in."""
    return _block_sums(_blocks(weights))[:, -1:]


def _reach(weights: Tensor, target: Tensor, *, strict: bool) -> Tensor:
    """First index whose running sum exceeds ``target`` or, not ``strict``, equals it: ``[r, 1]``.

    The last index with any weight if rounding keeps the sum below the target.
    """
    blocks = _blocks(weights)
    sums = _block_sums(blocks)
    block = torch.searchsorted(sums, target, right=strict).clamp_(max=sums.shape[1] - 1)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0]
    found = torch.searchsorted(before + inside.double().cumsum(-1), target, right=strict)
    last = (inside > 0).long().mul_(torch.arange(_BLOCK, device=target.device)).amax(-1, keepdim=True)
    return block * _BLOCK + torch.minimum(found, last)


def _blocks(weights: Tensor) -> Tensor:
    """``[r, v]`` -> ``[r, blocks, 256]``, padded with zeros."""
    return F.pad(weights, (0, -weights.shape[1] % _BLOCK)).view(len(weights), -1, _BLOCK)


def _block_sums(blocks: Tensor) -> Tensor:
    """Running sums at the ends of blocks, float64 ``[r, blocks]``."""
    return blocks.sum(-1).double().cumsum(-1)
