"""The engine's side of one request: what it knows, what it holds, and how an id becomes text."""

from dataclasses import dataclass, field
from typing import Protocol

from chatd.cache.block_tier import Block
from chatd.cache.prefix_cache import Lease
from chatd.cache.restoring import Restore
from chatd.cache.tiering import Found
from chatd.engine.messages import Submit, TierOutcome
from chatd.engine.plan import PageCopy
from chatd.ids import Rid


class Answer(Protocol):
    """Detokeniser and stop strings of one running answer (`chatd.text.answer.AnswerText`)."""

    def push(self, token_id: int) -> tuple[str, tuple[int, ...], bool]:
        """Newly visible text, the ids now wholly visible, and whether a stop string matched."""
        ...

    def finish(self) -> tuple[str, tuple[int, ...]]:
        """Release what is held back."""
        ...

    def answer_ids(self) -> tuple[int, ...]:
        """Ids that decode to the visible text, with the control ids that were pushed."""
        ...


@dataclass(slots=True, eq=False)
class Req:
    """One request. It is waiting while ``lease`` is None, restoring while it has a ``restore``, else running.

    ``ids[:kv_len]`` have KV in ``lease.pages``, by the steps that were committed. Steps that still fly will
    make it ``planned_len`` and bring ``pending`` more ids. ``visible`` generated ids are wholly shown. A
    running request always has at least one id without KV: the last sampled id gets its KV in the next step.
    ``rank`` is its place among all: its turn (see `chatd.engine.turn_order`), then its arrival. It was handed
    in at second ``came``, and first left the queue ``queue_s`` later (None: not yet).
    """

    submit: Submit
    rank: tuple[int, int]
    answer: Answer
    came: float = 0.0
    queue_s: float | None = None
    ids: list[int] = field(init=False)
    lease: Lease | None = None
    kv_len: int = 0
    planned_len: int = 0
    pending: int = 0
    flights: int = 0
    copy: PageCopy | None = None
    restore: Restore | None = None
    found: Found | None = None
    blocks: list[Block] | None = None
    disk_hit: int = 0
    restored_len: int = 0
    restore_s: float = 0.0
    outcome: TierOutcome | None = None
    admitted: bool = False
    seq: int = 0
    visible: int = 0
    position: int = 0
    preemptions: int = 0
    recomputed: int = 0

    def __post_init__(self) -> None:
        self.ids = list(self.submit.prompt_ids)

    @property
    def rid(self) -> Rid:
        return self.submit.rid

    @property
    def prompt_len(self) -> int:
        return len(self.submit.prompt_ids)

    @property
    def generated(self) -> int:
        return len(self.ids) - self.prompt_len

    @property
    def remaining_len(self) -> int:
        """Ids that no step gives KV yet: 1 while decoding, more while there is something to prefill."""
        return len(self.ids) + self.pending - self.planned_len

    def take(self, lease: Lease) -> None:
        """Begin, or begin again, with the KV of ``lease``."""
        self.lease, self.copy = lease, lease.copy
        self.kv_len = self.planned_len = lease.cached_len

    @property
    def limit_len(self) -> int:
        """The most ids it may ever hold."""
        return self.prompt_len + self.submit.max_tokens


def common_prefix_len(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix, by bisection over slice comparisons (they run in C)."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        mid = (low + high) // 2
        if a[low:mid] == b[low:mid]:
            low = mid
        else:
            high = mid
    return low
