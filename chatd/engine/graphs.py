"""Decode steps as captured graphs: one for each of a few batch sizes, over inputs at fixed addresses.

A step with fewer rows than its graph is padded with rows of one token whose only page is the scratch page.
Lengths are read on the device and keys are split as the context length wants it, so a graph serves every
step of its size.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from chatd.engine.batch import fill_pending, page_table, pending_sources
from chatd.engine.device import Device, Work
from chatd.engine.plan import StepRow
from chatd.engine.staging import Stage
from chatd.ids import Rid
from chatd.model.decoder import Decoder
from chatd.model.forward_batch import ForwardBatch
from chatd.model.kv_pool import KVPool
from chatd_kernels.ops import PagedBatch

MAX_ROWS = 512
"""Larger steps are launched kernel by kernel: they last long enough to hide that."""


def bucket_sizes(max_running: int) -> list[int]:
    """1, 2, 4, then every 8th up to 256 and every 32nd from there on, up to ``max_running`` or `MAX_ROWS`."""
    largest = min(max_running, MAX_ROWS)
    sizes = [1, 2, 4, *range(8, 257, 8), *range(288, MAX_ROWS + 1, 32)]
    return [size for size in sizes if size < largest] + [largest]


class DecodeGraphs:
    """``ids`` int64 is where steps leave the ids they sample: pending rows take their inputs from there."""

    def __init__(
        self,
        device: Device,
        decoder: Decoder,
        pool: KVPool,
        ids: Tensor,
        max_running: int,
        context_length: int,
    ) -> None:
        self.sizes = bucket_sizes(max_running)
        self._device = device
        self._decoder = decoder
        self._pool = pool
        self._ids = ids
        self._max_pages = -(-context_length // pool.page_size)
        most = self.sizes[-1]
        self._inputs = _Inputs(most, self._max_pages, pool.scratch_page, device)
        dtype = decoder.weights.dtype
        self._hidden = device.zeros(most, decoder.config.hidden, dtype=dtype)
        self._replays: dict[int, Work] = {}

    def capture(self, progress: Callable[[float, str], None]) -> None:
        """All sizes, the largest first: the others find room in its memory."""
        stage = Stage(self._device)
        for i, size in enumerate(reversed(self.sizes)):
            progress(i / len(self.sizes), f"capturing decode steps, graph {i + 1} of {len(self.sizes)}")
            self._pad(size, stage)
            self._replays[size] = self._device.capture(self._step(size))

    def _pad(self, size: int, stage: Stage) -> None:
        """Inputs of a step without rows: what runs to capture it touches the scratch page only."""
        numbers = stage.place(self._inputs.numbers(size, (), {}, self._pool.page_size))
        table = stage.place(np.full((size, self._max_pages), self._pool.scratch_page, np.int32))

        def load() -> None:
            stage.upload()
            self._inputs.load(numbers, table)

        self._device.main.run(load)
        self._device.main.mark().wait()
        stage.clear()

    def size_for(self, rows: Sequence[StepRow]) -> int | None:
        """The graph that serves ``rows``; None if they are no pure decode step, or too many or too long."""
        if len(rows) > self.sizes[-1] or any(row.extend_len != 1 for row in rows):
            return None
        if any(row.start >= self._max_pages * self._pool.page_size for row in rows):
            return None
        return self.sizes[bisect_left(self.sizes, len(rows))]

    def prepare(
        self, size: int, rows: Sequence[StepRow], sampled: Mapping[Rid, int], stage: Stage
    ) -> Callable[[], Tensor]:
        """Place the inputs. The answer is work of the main queue: ``[rows, hidden]`` for the head."""
        inputs = self._inputs
        numbers = stage.place(inputs.numbers(size, rows, sampled, self._pool.page_size))
        table = stage.place(inputs.table(size, rows, self._pool.page_size))

        def run() -> Tensor:
            inputs.load(numbers, table)
            self._replays[size]()
            return self._hidden[: len(rows)]

        return run

    def _step(self, size: int) -> Work:
        """What is captured. It reads inputs and writes ``_hidden``, nothing else of this object."""
        numbers, table = self._inputs.views(size)
        tokens, sources, positions, slot_pages, slot_offsets, kv_lens = numbers.unbind()
        whole = self._device.zeros(size + 1, dtype=torch.int64)
        self._device.main.run(lambda: _count(whole))
        longest = self._max_pages * self._pool.page_size

        def step() -> None:
            fill_pending(tokens, sources, self._ids)
            lens = kv_lens.int()
            decode = PagedBatch(table, lens, whole.int(), max_kv_len=longest, max_q_len=1)
            batch = ForwardBatch(
                tokens, positions, slot_pages, slot_offsets, whole[:size], decode, None, decode_len=size
            )
            self._hidden[:size].copy_(self._decoder.hidden(batch, self._pool))

        return step


def _count(numbers: Tensor) -> None:
    """0, 1, 2 and so on."""
    torch.arange(len(numbers), out=numbers)


def _pitch(size: int) -> int:
    """Rows of numbers begin at multiples of 16 bytes: for other pointers kernels are compiled again."""
    return size + size % 2


class _Inputs:
    """Numbers ``[6, size]`` and a page table ``[size, max_pages]`` for each size, in the same two buffers."""

    def __init__(self, most: int, max_pages: int, scratch_page: int, device: Device) -> None:
        self._max_pages = max_pages
        self._scratch_page = scratch_page
        self._numbers = device.zeros(6 * _pitch(most), dtype=torch.int64)
        self._table = device.zeros(most, max_pages, dtype=torch.int32)

    def views(self, size: int) -> tuple[Tensor, Tensor]:
        pitch = _pitch(size)
        return self._numbers[: 6 * pitch].view(6, pitch)[:, :size], self._table[:size]

    def load(self, numbers: Tensor, table: Tensor) -> None:
        self._numbers[: numbers.numel()].copy_(numbers.view(-1))
        self._table[: table.shape[0], : table.shape[1]].copy_(table)

    def numbers(
        self, size: int, rows: Sequence[StepRow], sampled: Mapping[Rid, int], page_size: int
    ) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Rows: token, source, position, page and offset of its slot, and tokens with KV."""
        numbers = np.empty((6, _pitch(size)), np.int64)
        count, starts = len(rows), np.array([row.start for row in rows])
        numbers[:, count:] = np.array([[0], [-1], [0], [self._scratch_page], [0], [1]])
        numbers[0, :count] = [0 if row.pending else row.ids[row.start] for row in rows]
        numbers[1, :count] = pending_sources(rows, sampled)
        numbers[2, :count] = starts
        numbers[3, :count] = [row.pages[row.start // page_size] for row in rows]
        numbers[4, :count] = starts % page_size
        numbers[5, :count] = starts + 1
        return numbers

    def table(
        self, size: int, rows: Sequence[StepRow], page_size: int
    ) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
        """As wide as this step needs: what is right of it in the buffer are pages, and never looked at."""
        used = page_table(rows, page_size)
        table = np.full((size, used.shape[1]), self._scratch_page, np.int32)
        table[: len(rows)] = used
        return table
