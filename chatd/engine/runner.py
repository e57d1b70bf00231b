"""Runs step plans on a model: the only part of the engine that touches tensors."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from chatd.engine.batch import build_batch, fill_pending, pending_sources
from chatd.engine.device import Device, InlineDevice, Mark
from chatd.engine.graphs import DecodeGraphs
from chatd.engine.page_moves import PageMoves
from chatd.engine.plan import Done, Flight, HostBuffer, PageCopy, StepPlan, StepRow
from chatd.engine.recordings import DecodeRecordings, can_record
from chatd.engine.sampling import logit_edits, sample_params
from chatd.engine.staging import Stage
from chatd.engine.warm_up import warm_up_steps
from chatd.ids import Rid
from chatd.model.decoder import Decoder
from chatd.model.kv_pool import KVPool
from chatd.model.weights import Weights
from chatd_kernels.ops import LogitEdits, Ops, SampleParams

MAX_SAMPLED = 4096
"""Rows of a step that may sample: the most that may run at once."""


class TorchRunner:
    """`chatd.engine.plan.Runner` on any device. Of requests it knows which ids of the last step are whose.

    A step that raises in `launch` has begun its spills and restores: their tickets come all the same.
    """

    def __init__(self, weights: Weights, pool: KVPool, ops: Ops, device: Device | None = None) -> None:
        self.vocab_size = weights.config.vocab_size
        self.pool = pool
        self._ops = ops
        self._decoder = Decoder(weights, ops)
        self._device = InlineDevice() if device is None else device
        self.overlaps = self._device.overlaps
        self._moves = PageMoves(pool, ops, self._device)
        self._stages: list[Stage] = []
        self._graphs: DecodeGraphs | None = None
        self._recordings: DecodeRecordings | None = None
        self._ids = self._device.zeros(MAX_SAMPLED, dtype=torch.int64)
        self._sampled: dict[Rid, int] = {}
        """Where in ``_ids`` the last step's ids are."""

    @property
    def block_bytes(self) -> int:
        """Size of a host buffer."""
        return self._moves.buffers.block_bytes

    def take_buffer(self) -> HostBuffer | None:
        return self._moves.buffers.take()

    def copies_done(self, *, wait: bool) -> list[int]:
        return self._moves.done(wait=wait)

    def launch(self, plan: StepPlan) -> Flight:
        self._moves.begin(plan.spills, plan.restores)
        if plan.copies:
            self._device.main.run(lambda: self._copy(plan.copies))
        return self._launch_rows(plan.rows) if plan.rows else Done([])

    def capture(
        self, max_running: int, context_length: int, progress: Callable[[float, str], None]
    ) -> list[int]:
        """From now on steps that only decode run as graphs of these sizes. Takes seconds on a GPU."""
        assert max_running <= MAX_SAMPLED
        graphs = DecodeGraphs(self._device, self._decoder, self.pool, self._ids, max_running, context_length)
        graphs.capture(progress)
        self._graphs = graphs
        return graphs.sizes

    def record(self, max_running: int, context_length: int) -> None:
        """From now on steps that only decode are recorded and replayed, if they are all kernels of a CPU."""
        if can_record(self._decoder.weights, self._ops, self.pool):
            self._recordings = DecodeRecordings(self._decoder, self.pool, max_running, context_length)

    def warm_up(self, step_tokens: int, max_running: int, context_length: int) -> None:
        """Run what a start should have run: see `chatd.engine.warm_up`. Only the scratch page is touched."""
        pool = self.pool
        limits = (step_tokens, max_running, context_length)
        for rows in warm_up_steps(pool.scratch_page, pool.page_size, *limits):
            self.launch(StepPlan([], rows)).wait()

    def _copy(self, copies: Sequence[PageCopy]) -> None:
        pool = self.pool
        for copy in copies:
            self._ops.copy_slots(pool.planes, copy.src, copy.dst, copy.slots, pool.scales)

    def _launch_rows(self, rows: Sequence[StepRow]) -> Flight:
        stage = self._stages.pop() if self._stages else Stage(self._device)
        hidden, order = self._inputs(rows, stage)
        sampling = [rows[i] for i in order]
        params = sample_params(sampling, stage.place)
        edits = logit_edits(sampling, stage.place)
        ids = stage.ids(len(order))

        def step() -> None:
            stage.upload()
            self._sample(hidden(), params, edits, ids)

        self._device.main.run(step)
        self._sampled = {row.rid: at for at, row in enumerate(sampling)}
        return _StepFlight(self._device.main.mark(), stage, order, self._stages)

    def _inputs(self, rows: Sequence[StepRow], stage: Stage) -> tuple[Callable[[], Tensor], list[int]]:
        """Work that gives what the head takes, a line for each of the rows whose numbers come with it."""
        recordings = self._recordings
        if recordings is not None and recordings.serves(rows):
            return lambda: recordings.hidden(rows), list(range(len(rows)))
        size = None if self._graphs is None else self._graphs.size_for(rows)
        if self._graphs is None or size is None:
            batch, order = build_batch(rows, self.pool.page_size, stage.place)
            pending = any(row.pending for row in rows)
            sources = stage.place(pending_sources(rows, self._sampled)) if pending else None

            def eager() -> Tensor:
                if sources is not None:
                    fill_pending(batch.tokens[: batch.decode_len], sources, self._ids)
                return self._decoder.hidden(batch, self.pool)

            return eager, order
        replay = self._graphs.prepare(size, rows, self._sampled, stage)
        order = [i for i, row in enumerate(rows) if row.sample]
        return (replay, order) if len(order) == len(rows) else (_selected(replay, order, stage), order)

    def _sample(self, hidden: Tensor, params: SampleParams, edits: LogitEdits | None, out: Tensor) -> None:
        if not len(out):
            return
        logits = self._decoder.weights.head(hidden)
        ids = self._ops.sample(logits, params, edits)
        self._ids[: len(ids)].copy_(ids)
        out.copy_(ids, non_blocking=True)


def _selected(hidden: Callable[[], Tensor], lines: list[int], stage: Stage) -> Callable[[], Tensor]:
    at = stage.place(np.array(lines, np.int64))
    return lambda: hidden().index_select(0, at)


class _StepFlight:
    """``order``: the row of each id. The stage goes back once the ids were read."""

    def __init__(self, mark: Mark, stage: Stage, order: list[int], stages: list[Stage]) -> None:
        self._mark = mark
        self._stage: Stage | None = stage
        self._order = order
        self._stages = stages
        self._ids: list[int] = []

    def wait(self) -> list[int]:
        self._mark.wait()
        if self._stage is not None:
            ids = self._stage.ids(len(self._order)).tolist()
            self._ids = [token for _, token in sorted(zip(self._order, ids, strict=True))]
            self._stage.clear()
            self._stages.append(self._stage)
            self._stage = None
        return self._ids
