"""Drawing the next id: rows are dealt to threads, each goes through its logits a few times."""

import numpy as np
import torch
from torch import Tensor

from chatd_kernels.cpu import team
from chatd_kernels.cpu.forms import DTYPES
from chatd_kernels.cpu.library import Library, Spec
from chatd_kernels.ops import LogitEdits, SampleParams
from chatd_kernels.reference.philox import uniform

LANES = 16


def fits(logits: Tensor) -> bool:
    """A dtype that kernels know, rows of whole vectors."""
    return logits.dtype in DTYPES and logits.shape[1] % LANES == 0 and logits.stride(1) == 1


def spec(dtype: torch.dtype) -> Spec:
    return Spec("sampling", "make_sample", (DTYPES[dtype],))


def sample(
    library: Library, logits: Tensor, params: SampleParams, edits: LogitEdits | None, logprobs: Tensor | None
) -> Tensor:
    """See `Ops.sample`."""
    rows, vocab = logits.shape
    count = min(rows, team.threads())
    ids = torch.empty(rows, dtype=torch.int64)
    # Of each thread: the row in float32, then weights put aside.
    buffer = torch.empty(count * vocab * 2)
    numbers = _edit_numbers(edits, rows)
    draws = ids if params.all_greedy else uniform(params.seeds, params.positions)
    sums, peaks, chosen = torch.empty(rows, dtype=torch.float64), torch.empty(rows), torch.empty(rows)
    team.run(
        library.body(spec(logits.dtype)),
        count,
        logits.data_ptr(),
        logits.stride(0) * logits.itemsize,
        vocab,
        rows,
        params.temperature.data_ptr(),
        params.top_k.data_ptr(),
        params.top_p.data_ptr(),
        params.min_p.data_ptr(),
        draws.data_ptr(),
        ids.data_ptr(),
        0 if logprobs is None else sums.data_ptr(),
        peaks.data_ptr(),
        *numbers[0],
        buffer.data_ptr(),
        chosen.data_ptr(),
    )
    if logprobs is not None:
        logs = chosen.double() - peaks.double() - sums.log()
        logprobs.copy_(logs.float().masked_fill_(ids < 0, torch.nan))
    return ids


def _edit_numbers(edits: LogitEdits | None, rows: int) -> tuple[tuple[int, int, int, int], Tensor | None]:
    """Addresses of where each row's edits begin, and of the edits; and what keeps the first alive."""
    if edits is None:
        return (0, 0, 0, 0), None
    begins = torch.from_numpy(np.searchsorted(edits.rows.numpy(), np.arange(rows + 1)))
    return (
        begins.data_ptr(),
        edits.tokens.data_ptr(),
        edits.repetition.data_ptr(),
        edits.offset.data_ptr(),
    ), begins
