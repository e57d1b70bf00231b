"""Stored answers computed again with the cache off, and compared.

The stored ids are forced through the model: prompt and answer go through in chunks, as a prompt does, on
fresh pages of their own, and at every position of the answer what comes out is compared with what is stored.

In float32 it must be the same id. In other formats two right computations of one prompt differ in the last
bits, so no logit may have moved by more than `LOGIT_TOLERANCE`:

- greedy: where the argmax differs, the stored id's logit is at most twice that below the best;
- drawn (from all ids: answers with top-k, top-p or min-p are left out): the number that was drawn lies in the
  stored id's stretch of the cumulative distribution, or at most ``tanh(LOGIT_TOLERANCE / temperature / 2)``
  beside it: logits that moved by so much move no border further.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chatd.engine.batch import build_batch
from chatd.engine.messages import SamplingParams
from chatd.engine.plan import StepRow
from chatd.engine.sampling import logit_edits, sample_params
from chatd.ids import ResponseId, Rid
from chatd.model.decoder import Decoder
from chatd.model.kv_pool import KVPool, page_bytes, plan_pages
from chatd.model.weights import Weights
from chatd_kernels.ops import Ops
from chatd_kernels.reference.philox import uniform
from chatd_kernels.reference.sampling import edit

LOGIT_TOLERANCE = 0.25
"""Half of the largest gap seen between two best logits whose order a right computation in bf16 changed was
0.125 (SmolLM2, 1,280 positions)."""
CHUNK = 256
"""Tokens in a step, and lines of logits at once."""


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """``ids`` is prompt and answer; those from ``prompt_len`` on are compared."""

    response_id: ResponseId
    ids: tuple[int, ...]
    prompt_len: int
    params: SamplingParams

    @property
    def has_filters(self) -> bool:
        """Not all ids could be drawn, so that a small change of a logit can change much."""
        params = self.params
        return params.temperature > 0 and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0)


@dataclass(frozen=True, slots=True)
class Differing:
    """An id that came out otherwise. ``distance`` in logits if greedy, else in cumulative probability, of
    which ``allowed`` is what rounding can do."""

    response_id: ResponseId
    position: int
    stored: int
    computed: int
    distance: float
    allowed: float

    @property
    def is_wrong(self) -> bool:
        return not self.distance <= self.allowed


class Replayer:
    """A model, loaded for this. ``exact``: the ids must be the same."""

    def __init__(self, weights: Weights, kv: torch.dtype, ops: Ops, page_size: int, *, exact: bool) -> None:
        self.exact = exact
        self._weights = weights
        self._kv = kv
        self._ops = ops
        self._page_size = page_size
        self._decoder = Decoder(weights, ops)

    def compare(self, turn: StoredTurn) -> list[Differing]:
        """Where the model, from nothing, says something else than what is stored."""
        with torch.inference_mode():
            return [one for at, logits in self._logits(turn) for one in self._differing(turn, at, logits)]

    def _logits(self, turn: StoredTurn) -> Iterator[tuple[int, Tensor]]:
        """Positions of the answer with float32 logits ``[n, vocab]`` for them, in order."""
        pool, end = self._pool(len(turn.ids)), len(turn.ids) - 1
        for start in range(0, end, CHUNK):
            row = self._row(turn, start, min(CHUNK, end - start), pool)
            batch, _ = build_batch([row], self._page_size, self._put)
            skipped = min(max(0, turn.prompt_len - 1 - start), row.extend_len)
            wanted = torch.arange(skipped, row.extend_len, device=self._weights.device)
            hidden = self._decoder.hidden(replace(batch, sample_at=wanted), pool)
            if len(wanted):
                yield start + skipped + 1, self._weights.head(hidden).float()

    def _pool(self, tokens: int) -> KVPool:
        """Fresh pages, one after the other."""
        config, page_size = self._weights.config, self._page_size
        nbytes = (2 + tokens // page_size) * page_bytes(config, self._kv, page_size)
        plan = plan_pages(config, self._kv, page_size, nbytes)
        return KVPool(config, plan, self._kv, self._weights.device)

    def _row(self, turn: StoredTurn, start: int, extend_len: int, pool: KVPool) -> StepRow:
        pages = list(range(-(-len(turn.ids) // pool.page_size)))
        rid = Rid(turn.response_id)
        return StepRow(rid, turn.ids, start, extend_len, pages, True, turn.prompt_len, turn.params)

    def _put(self, array: np.ndarray[Any, np.dtype[Any]]) -> Tensor:
        return torch.from_numpy(array).to(self._weights.device)

    def _differing(self, turn: StoredTurn, at: int, logits: Tensor) -> Iterator[Differing]:
        """``logits`` are those that positions ``at`` and after were chosen by; they are changed."""
        rows = [
            StepRow(Rid(""), turn.ids, position - 1, 1, [], True, turn.prompt_len, turn.params)
            for position in range(at, at + len(logits))
        ]
        params = sample_params(rows, self._put)
        edits = logit_edits(rows, self._put)
        if edits is not None:
            edit(logits, edits)
        for line, token in enumerate(self._ops.sample(logits, params, None).tolist()):
            stored = turn.ids[at + line]
            if token != stored:
                u = uniform(params.seeds[line : line + 1], params.positions[line : line + 1])
                distance, allowed = self._distance(turn.params, logits[line], stored, float(u[0]))
                yield Differing(turn.response_id, at + line, stored, token, distance, allowed)

    def _distance(self, params: SamplingParams, logits: Tensor, stored: int, u: float) -> tuple[float, float]:
        """How far the stored id was from being the answer, and how far rounding lets it be."""
        if params.temperature == 0:
            return float(logits.max() - logits[stored]), 0.0 if self.exact else 2 * LOGIT_TOLERANCE
        weights = ((logits - logits.max()) / params.temperature).exp().double()
        ends = weights.cumsum(0) / weights.sum()
        low, high = float(ends[stored - 1]) if stored else 0.0, float(ends[stored])
        allowed = 0.0 if self.exact else math.tanh(LOGIT_TOLERANCE / params.temperature / 2)
        return max(low - u, u - high, 0.0), allowed
