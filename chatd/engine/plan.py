"""What the scheduler decides for one step and what the runner answers. Both live on the engine thread."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from chatd.engine.messages import SamplingParams
from chatd.ids import Rid


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy the first ``slots`` slots of page ``src`` to page ``dst`` (all layers), before the pass."""

    src: int
    dst: int
    slots: int


@dataclass(slots=True)
class StepRow:
    """One request's share of a step: compute KV of ``extend_len`` tokens from position ``start``.

    ``ids`` are all ids known so far (prompt and generated), of which ``ids[start:start + extend_len]``
    are the step's inputs; ``pages`` is its page-table row, long enough for all of them. Both are the
    request's own lists: read them during ``run`` only, and do not change them. With ``sample`` the
    row's last token yields the id at position ``start + extend_len``.
    """

    rid: Rid
    ids: Sequence[int]
    start: int
    extend_len: int
    pages: Sequence[int]
    sample: bool
    prompt_len: int
    params: SamplingParams


@dataclass(slots=True)
class StepPlan:
    """``copies`` run first and in order; then one forward pass over ``rows``."""

    copies: list[PageCopy]
    rows: list[StepRow]


BAD_ROW = -1
"""In a runner's answer: this row's logits were NaN or had no finite entry."""


class Runner(Protocol):
    """Runs plans. The only part of the engine that touches tensors."""

    vocab_size: int

    def run(self, plan: StepPlan) -> list[int]:
        """One id (or `BAD_ROW`) per row with ``sample``, in row order."""
        ...
