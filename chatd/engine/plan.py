"""What the scheduler decides for one step and what the runner answers. Both live on the engine thread."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chatd.engine.messages import SamplingParams
from chatd.ids import Rid


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy the first ``slots`` slots of page ``src`` to page ``dst`` (all layers), before the pass."""

    src: int
    dst: int
    slots: int


class HostBuffer(Protocol):
    """Room for the page records of one block in host memory (pinned, where there is a device)."""

    @property
    def view(self) -> memoryview:
        """Writable bytes, as many as a block has. Not to be used after `release`."""
        ...

    def release(self) -> None:
        """Give it back. Idempotent; from any thread."""
        ...


@dataclass(frozen=True, slots=True)
class PageSpill:
    """Copy the records of ``pages`` (a block's, in order) to ``buffer``, as they are before this step."""

    ticket: int
    pages: tuple[int, ...]
    buffer: HostBuffer


@dataclass(frozen=True, slots=True)
class PageRestore:
    """Copy the records in ``buffer`` from number ``skip`` on to ``pages``, which nothing else touches until
    it is done.
    """

    ticket: int
    pages: tuple[int, ...]
    buffer: HostBuffer
    skip: int = 0


@dataclass(slots=True)
class StepRow:
    """One request's share of a step: compute KV of ``extend_len`` tokens from position ``start``.

    ``ids`` are all ids known so far (prompt and generated), of which ``ids[start:start + extend_len]``
    are the step's inputs; ``pages`` is its page-table row, long enough for all of them. Both are the
    request's own lists: read them during ``launch`` only, and do not change them. With ``sample`` the
    row's last token yields the id at position ``start + extend_len``.

    With ``pending`` the last input is not in ``ids`` yet: it is what the step before, which still runs,
    samples for this rid. Such a row has ``extend_len`` 1 and parameters that do not look at earlier ids.
    """

    rid: Rid
    ids: Sequence[int]
    start: int
    extend_len: int
    pages: Sequence[int]
    sample: bool
    prompt_len: int
    params: SamplingParams
    pending: bool = False
    preemptions: int = 0
    """Of the request when the row was made, for `Scheduler.commit`. The runner does not look at it."""


@dataclass(slots=True)
class StepPlan:
    """``spills`` and ``restores`` first, then ``copies`` in order, then one forward pass over ``rows``.

    A page of ``spills`` may be among those that the rest of the step overwrites.
    """

    copies: list[PageCopy]
    rows: list[StepRow]
    spills: list[PageSpill] = field(default_factory=list)
    restores: list[PageRestore] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.spills or self.restores)


BAD_ROW = -1
"""In a runner's answer: this row's logits were NaN or had no finite entry."""


class Flight(Protocol):
    """A step under way."""

    def wait(self) -> list[int]:
        """One id (or `BAD_ROW`) per row with ``sample``, in row order. Raises what the step raised."""
        ...


class Runner(Protocol):
    """Runs plans. The only part of the engine that touches tensors. Everything but buffers: one thread."""

    vocab_size: int
    overlaps: bool
    """``launch`` returns while the step still runs: the next one may be launched before `Flight.wait`."""

    def launch(self, plan: StepPlan) -> Flight:
        """Begin a step. Steps run in the order they were launched."""
        ...

    def copies_done(self, *, wait: bool) -> list[int]:
        """Tickets of spills and restores that are complete and were not told of yet, in order.

        With ``wait``, if any are under way, at least one. The buffer of a spill holds its bytes now; the
        pages of a restore may be read by the next plan.
        """
        ...

    def take_buffer(self) -> HostBuffer | None:
        """None while all are in use."""
        ...


class Done:
    """A step that was over when ``launch`` returned."""

    __slots__ = ("_ids",)

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    def wait(self) -> list[int]:
        return self._ids
