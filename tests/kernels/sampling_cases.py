"""Rows to sample, and how the kernels of a backend are held to `reference`: the same ids, not merely the same
distribution.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from chatd_kernels.ops import LogitEdits, Ops, SampleParams
from chatd_kernels.reference import ReferenceOps

REFERENCE = ReferenceOps()

Row = tuple[float, int, float, float]
FILTERS: tuple[Row, ...] = (
    (1.0, 0, 1.0, 0.0),
    (0.7, 0, 1.0, 0.0),
    (1.0, 1, 1.0, 0.0),
    (1.0, 5, 1.0, 0.0),
    (1.3, 200, 1.0, 0.0),
    (1.0, 0, 0.9, 0.0),
    (1.0, 0, 0.0, 0.0),
    (0.8, 40, 0.95, 0.0),
    (1.0, 0, 0.999, 0.0),
    (1.0, 0, 1.0, 0.1),
    (2.0, 100, 0.7, 0.05),
    (0.0, 3, 0.5, 0.0),
    (1e-30, 0, 1.0, 0.0),
    (1.0, 10_000, 0.5, 0.0),
)
"""temperature, top_k, top_p, min_p"""
PLAIN: Row = (1.0, 0, 1.0, 0.0)


def make_params(rows: Sequence[Row], seed: int = 0) -> SampleParams:
    temperature, top_k, top_p, min_p = zip(*rows, strict=True)
    generator = torch.Generator().manual_seed(seed)
    return SampleParams(
        torch.tensor(temperature, dtype=torch.float32),
        torch.tensor(top_k),
        torch.tensor(top_p, dtype=torch.float32),
        torch.tensor(min_p, dtype=torch.float32),
        torch.randint(-(2**63), 2**63 - 1, (len(rows),), generator=generator),
        torch.randint(0, 2**40, (len(rows),), generator=generator),
        all_greedy=not any(temperature),
        any_filter=any(row[1:] != PLAIN[1:] for row in rows),
    )


def agree(
    ops: Ops, logits: Tensor, params: SampleParams, edits: LogitEdits | None, *, tolerance: float
) -> Tensor:
    """The ids, which are the reference's; so are their probabilities, up to ``tolerance``."""
    ours, theirs = torch.empty(len(logits)), torch.empty(len(logits))
    before = logits.clone()
    got = ops.sample(logits, params, edits, ours)
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())
    want = REFERENCE.sample(logits, params, edits, theirs)
    assert got.tolist() == want.tolist()
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance, equal_nan=True)
    return got


def assert_rows_stand_alone(ops: Ops, logits: Tensor) -> None:
    """What is drawn for a row does not depend on its batch. ``logits`` has a line for each of `FILTERS`."""
    params = make_params(FILTERS)
    together = ops.sample(logits, params, None)
    for i, row in enumerate(FILTERS):
        one = make_params([row])
        alone = SampleParams(
            one.temperature,
            one.top_k,
            one.top_p,
            one.min_p,
            params.seeds[i : i + 1],
            params.positions[i : i + 1],
            all_greedy=False,
            any_filter=True,
        )
        assert ops.sample(logits[i : i + 1], alone, None) == together[i]
