"""From a step's plan to its tensors. Numpy over rows; nothing is done token by token."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chatd.engine.plan import StepRow
from chatd.ids import Rid
from chatd.model.forward_batch import ForwardBatch
from chatd_kernels.ops import PagedBatch

Array = np.ndarray[Any, np.dtype[Any]]
Place = Callable[[Array], Tensor]
"""From an array to a tensor on the device that will hold it: `chatd.engine.staging.Stage.place`."""


def build_batch(rows: Sequence[StepRow], page_size: int, place: Place) -> tuple[ForwardBatch, list[int]]:
    """The batch, and which of ``rows`` its ``sample_at`` are, in order. A pending row's token is 0."""
    order = decodes_first(rows)
    ordered = [rows[i] for i in order]
    decode_len = sum(row.extend_len == 1 for row in rows)
    lens = np.array([row.extend_len for row in ordered])
    starts = np.array([row.start for row in ordered])
    ends = lens.cumsum()
    row_of = np.repeat(np.arange(len(ordered)), lens)
    positions = np.arange(ends[-1]) - (ends - lens)[row_of] + starts[row_of]
    table = page_table(ordered, page_size)
    sampling = [i for i, row in enumerate(ordered) if row.sample]
    batch = ForwardBatch(
        tokens=place(_inputs(ordered, int(ends[-1]))),
        positions=place(positions),
        slot_pages=place(table[row_of, positions // page_size].astype(np.int64)),
        slot_offsets=place(positions % page_size),
        sample_at=place(ends[sampling] - 1),
        decode=_paged(table, starts, lens, slice(0, decode_len), place),
        extend=_paged(table, starts, lens, slice(decode_len, None), place),
        decode_len=decode_len,
    )
    return batch, [order[i] for i in sampling]


def decodes_first(rows: Sequence[StepRow]) -> list[int]:
    """The order of ``rows`` in a batch."""
    decodes = [i for i, row in enumerate(rows) if row.extend_len == 1]
    return decodes + [i for i, row in enumerate(rows) if row.extend_len != 1]


def pending_sources(
    rows: Sequence[StepRow], sampled: Mapping[Rid, int]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each row with one input, in order: where in the last step's ids its input is; -1 if it is known."""
    decodes = [row for row in rows if row.extend_len == 1]
    return np.array([sampled[row.rid] if row.pending else -1 for row in decodes], np.int64)


def fill_pending(tokens: Tensor, sources: Tensor, ids: Tensor) -> None:
    """Work of the main queue: ``ids[sources]`` into ``tokens`` where there is a source; 0 for a bad row."""
    theirs = ids.index_select(0, sources.clamp(min=0)).clamp_(min=0)
    tokens.copy_(torch.where(sources < 0, tokens, theirs))


def page_table(rows: Sequence[StepRow], page_size: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """int32 ``[r, max_pages]`` of the pages that hold tokens; padded with page 0."""
    used = [-(-(row.start + row.extend_len) // page_size) for row in rows]
    table = np.zeros((len(rows), max(used)), np.int32)
    for line, row, count in zip(table, rows, used, strict=True):
        line[:count] = row.pages[:count]
    return table


def _inputs(rows: Sequence[StepRow], total: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    ids = chain.from_iterable(
        (0,) if row.pending else row.ids[row.start : row.start + row.extend_len] for row in rows
    )
    return np.fromiter(ids, np.int64, total)


def _paged(table: Array, starts: Array, lens: Array, part: slice, place: Place) -> PagedBatch | None:
    q_lens, kv_lens = lens[part], (starts + lens)[part]
    if not len(q_lens):
        return None
    q_starts = np.concatenate(([0], q_lens.cumsum()))
    return PagedBatch(
        page_table=place(table[part]),
        kv_lens=place(kv_lens.astype(np.int32)),
        q_starts=place(q_starts.astype(np.int32)),
        max_kv_len=int(kv_lens.max()),
        max_q_len=int(q_lens.max()),
    )
