"""From a step's plan to its tensors. Numpy over rows; nothing is done token by token."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from chatd.engine.plan import StepRow
from chatd.model.forward_batch import ForwardBatch
from chatd_kernels.ops import PagedBatch


def build_batch(
    rows: Sequence[StepRow], page_size: int, device: torch.device
) -> tuple[ForwardBatch, list[int]]:
    """The batch, and which of ``rows`` its ``sample_at`` are, in order."""
    decodes = [i for i, row in enumerate(rows) if row.extend_len == 1]
    extends = [i for i, row in enumerate(rows) if row.extend_len != 1]
    order = decodes + extends
    ordered = [rows[i] for i in order]
    lens = np.array([row.extend_len for row in ordered])
    starts = np.array([row.start for row in ordered])
    ends = lens.cumsum()
    row_of = np.repeat(np.arange(len(ordered)), lens)
    positions = np.arange(ends[-1]) - (ends - lens)[row_of] + starts[row_of]
    table = page_table(ordered, page_size)
    sampling = [i for i, row in enumerate(ordered) if row.sample]
    batch = ForwardBatch(
        tokens=_tensor(_inputs(ordered, int(ends[-1])), device),
        positions=_tensor(positions, device),
        slot_pages=_tensor(table[row_of, positions // page_size].astype(np.int64), device),
        slot_offsets=_tensor(positions % page_size, device),
        sample_at=_tensor(ends[sampling] - 1, device),
        decode=_paged(table, starts, lens, slice(0, len(decodes)), device),
        extend=_paged(table, starts, lens, slice(len(decodes), None), device),
        decode_len=len(decodes),
    )
    return batch, [order[i] for i in sampling]


def page_table(rows: Sequence[StepRow], page_size: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """int32 ``[r, max_pages]`` of the pages that hold tokens; padded with page 0."""
    used = [-(-(row.start + row.extend_len) // page_size) for row in rows]
    table = np.zeros((len(rows), max(used)), np.int32)
    for line, row, count in zip(table, rows, used, strict=True):
        line[:count] = row.pages[:count]
    return table


def _inputs(rows: Sequence[StepRow], total: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    ids = chain.from_iterable(row.ids[row.start : row.start + row.extend_len] for row in rows)
    return np.fromiter(ids, np.int64, total)


def _paged(
    table: np.ndarray[tuple[int, int], np.dtype[np.int32]],
    starts: np.ndarray[tuple[int], np.dtype[np.int64]],
    lens: np.ndarray[tuple[int], np.dtype[np.int64]],
    part: slice,
    device: torch.device,
) -> PagedBatch | None:
    q_lens, kv_lens = lens[part], (starts + lens)[part]
    if not len(q_lens):
        return None
    q_starts = np.concatenate(([0], q_lens.cumsum()))
    return PagedBatch(
        page_table=_tensor(table[part], device),
        kv_lens=_tensor(kv_lens.astype(np.int32), device),
        q_starts=_tensor(q_starts.astype(np.int32), device),
        max_kv_len=int(kv_lens.max()),
        max_q_len=int(q_lens.max()),
    )


def _tensor(
    array: np.ndarray[tuple[int, ...], np.dtype[np.int64 | np.int32]], device: torch.device
) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
