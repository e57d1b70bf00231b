"""From requests' sampling parameters to the tensors of `Ops.sample`."""

from collections.abc import Sequence

import numpy as np
import torch

from chatd.engine.batch import Place
from chatd.engine.messages import SamplingParams
from chatd.engine.plan import StepRow
from chatd_kernels.ops import LogitEdits, SampleParams


def sample_params(rows: Sequence[StepRow], place: Place) -> SampleParams:
    """One entry per sampling row."""
    params = [row.params for row in rows]

    def floats(values: list[float]) -> torch.Tensor:
        return place(np.array(values, np.float32))

    def longs(values: list[int]) -> torch.Tensor:
        return place(np.array(values, np.int64))

    return SampleParams(
        temperature=floats([p.temperature for p in params]),
        top_k=longs([p.top_k for p in params]),
        top_p=floats([p.top_p for p in params]),
        min_p=floats([p.min_p for p in params]),
        seeds=longs([signed_64(p.seed) for p in params]),
        positions=longs([row.start + row.extend_len for row in rows]),
        all_greedy=all(p.temperature == 0 for p in params),
        any_filter=any(p.top_k > 0 or p.top_p < 1 or p.min_p > 0 for p in params),
    )


def signed_64(seed: int) -> int:
    """The low 64 bits of any integer, as int64 holds them."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def logit_edits(rows: Sequence[StepRow], place: Place) -> LogitEdits | None:
    """Penalties and biases of those rows that have any; None if there are none."""
    parts = [
        (np.full(len(tokens), i), tokens, repetition, offset)
        for i, row in enumerate(rows)
        if edits_logits(row.params)
        for tokens, repetition, offset in [_row_edits(row)]
    ]
    if not parts:
        return None
    return LogitEdits(*(place(np.concatenate(column)) for column in zip(*parts, strict=True)))


def edits_logits(params: SamplingParams) -> bool:
    penalties = (params.presence_penalty, params.frequency_penalty, params.repetition_penalty - 1)
    return any(penalties) or bool(params.logit_bias)


def _row_edits(
    row: StepRow,
) -> tuple[
    np.ndarray[tuple[int], np.dtype[np.int64]],
    np.ndarray[tuple[int], np.dtype[np.float32]],
    np.ndarray[tuple[int], np.dtype[np.float32]],
]:
    """Distinct tokens, their repetition factors and offsets. Takes what the ids are, not the vocabulary."""
    params, known = row.params, row.start + row.extend_len
    output, counts = np.unique(np.array(row.ids[row.prompt_len : known], np.int64), return_counts=True)
    repeats = params.repetition_penalty != 1
    # A set of 600 ids takes a third of the time of a sort of them.
    seen = np.array(sorted(set(row.ids[:known])), np.int64) if repeats else output
    biased = np.array([token for token, _ in params.logit_bias], np.int64)
    tokens = np.union1d(seen, biased) if len(biased) else seen
    offset = np.zeros(len(tokens), np.float32)
    there = np.searchsorted(tokens, output)
    offset[there] -= params.presence_penalty + params.frequency_penalty * counts
    for token, bias in params.logit_bias:
        offset[np.searchsorted(tokens, token)] += bias
    repetition = np.ones(len(tokens), np.float32)
    if repeats:
        repetition[np.searchsorted(tokens, seen)] = params.repetition_penalty
    wanted = (repetition != 1) | (offset != 0)
    return tokens[wanted], repetition[wanted], offset[wanted]
