"""Decode steps on a CPU as lists of kernels over inputs at fixed addresses: what graphs are on a GPU.

A step of one row is 270 operations of some microseconds, and making their arguments takes Python as long
again. So the first step of so many rows is recorded, and the others are one call, during which the event
loop has the GIL.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chatd.engine.batch import page_table
from chatd.engine.plan import StepRow
from chatd.model.decoder import Decoder
from chatd.model.forward_batch import ForwardBatch
from chatd.model.kv_pool import KVPool
from chatd.model.quant import QuantLinear
from chatd.model.rope import rotation
from chatd.model.weights import Weights
from chatd_kernels.cpu import CpuOps, attention, team
from chatd_kernels.ops import Ops, PagedBatch

log = logging.getLogger(__name__)

MAX_ROWS = 64
"""Larger steps last long enough to hide what Python does."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    calls: team.Recording
    plan: attention.Plan
    hidden: Tensor


class DecodeRecordings:
    """For one thread. Inputs of all sizes are in the same memory, and so is what is computed on the way."""

    def __init__(self, decoder: Decoder, pool: KVPool, max_running: int, context_length: int) -> None:
        most, self._max_pages = min(max_running, MAX_ROWS), -(-context_length // pool.page_size)
        config = decoder.config
        self._most, self._decoder, self._pool = most, decoder, pool
        self._arena = team.Arena()
        self._residual = torch.zeros(most, config.hidden)
        self._rotate = torch.zeros(most, config.head_dim), torch.zeros(most, config.head_dim)
        self._slots = torch.zeros(2, most, dtype=torch.int64)
        self._lens = torch.zeros(most, dtype=torch.int32)
        self._table = torch.zeros(most, self._max_pages, dtype=torch.int32)
        self._recorded: dict[int, _Recorded] = {}
        self._on = True

    def calls(self, count: int) -> team.Recording:
        """Of a step of ``count`` rows, which was made before. For profiles."""
        return self._recorded[count].calls

    def serves(self, rows: Sequence[StepRow]) -> bool:
        """A pure decode step, not too large nor too long."""
        longest = self._max_pages * self._pool.page_size
        return (
            self._on
            and len(rows) <= self._most
            and all(row.extend_len == 1 and row.sample and row.start < longest for row in rows)
        )

    def hidden(self, rows: Sequence[StepRow]) -> Tensor:
        """``[rows, hidden]`` for the head, good until the next step."""
        count = len(rows)
        tokens = torch.tensor([row.ids[row.start] for row in rows])
        starts = np.array([row.start for row in rows])
        self._load(rows, starts)
        embedded = self._decoder.weights.embedding(tokens)
        self._residual.numpy()[:count] = embedded.numpy()  # torch would wake its threads for 64 rows
        recorded = self._recorded.get(count)
        if recorded is None:
            return self._record(count, int(starts.max()) + 1, embedded)
        recorded.plan.refit(int(starts.max()) + 1)
        recorded.calls.replay()
        return recorded.hidden

    def _load(self, rows: Sequence[StepRow], starts: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        count, page_size = len(rows), self._pool.page_size
        table = page_table(rows, page_size)
        self._table.numpy()[:count, : table.shape[1]] = table
        self._lens.numpy()[:count] = starts + 1
        slots = self._slots.numpy()
        slots[0, :count] = table[np.arange(count), starts // page_size]
        slots[1, :count] = starts % page_size
        turned = rotation(self._decoder.weights.inverse_frequencies, torch.from_numpy(starts))
        for there, now in zip(self._rotate, turned, strict=True):
            there[:count].copy_(now)

    def _record(self, count: int, longest: int, embedded: Tensor) -> Tensor:
        decode = PagedBatch(
            self._table[:count], self._lens[:count], torch.empty(0), max_kv_len=longest, max_q_len=1
        )
        cos, sin = self._rotate
        nothing = torch.empty(0, dtype=torch.int64)
        batch = ForwardBatch(
            nothing, nothing, self._slots[0, :count], self._slots[1, :count], nothing, decode, None, count
        )
        residual = self._residual[:count]
        plans = self._decoder.plan(batch, self._pool)
        with team.recording(self._arena) as calls:
            x = self._decoder.blocks(residual, (cos[:count], sin[:count]), batch, self._pool, plans)
            hidden = self._decoder.last_norm(x, residual)
        plan: object = plans[0]
        assert isinstance(plan, attention.Plan)
        first = hidden.clone()
        residual.copy_(embedded)
        calls.replay()
        # Also a bad row's NaN is what it was.
        if torch.allclose(first, hidden, rtol=0, atol=0, equal_nan=True):
            self._recorded[count] = _Recorded(calls, plan, hidden)
        else:
            log.error("a step of %d rows does not replay as it was: steps are not replayed", count)
            self._on = False
        return first


def can_record(weights: Weights, ops: Ops, pool: KVPool) -> bool:
    """Are all operations of a decode step kernels on threads of our own?"""
    linears = [
        linear
        for layer in weights.layers
        for linear in (layer.qkv, layer.attn_output, layer.gate_up, layer.down)
    ]
    config = weights.config
    return (
        isinstance(ops, CpuOps)
        and team.has_own_threads()
        and weights.dtype == torch.float32
        and all(isinstance(linear, QuantLinear) for linear in linears)
        and attention.fits(pool.layers[0])
        and config.hidden % 32 == 0
    )
