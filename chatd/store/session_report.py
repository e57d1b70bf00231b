"""The short report by session: what `UsageRow` says, without latencies and percentiles."""

from dataclasses import dataclass
from typing import Any

from chatd.ids import ConversationId, Namespace
from chatd.store.usage import UsageRow


@dataclass(frozen=True, slots=True)
class Used:
    """What some turns used and cost, in one currency; those without a price cost 0."""

    currency: str
    turns: int
    prompt_tokens: int
    gpu_hit: int
    disk_hit: int
    computed: int
    output_tokens: int
    cost_nano: int
    without_cache_nano: int

    @property
    def hit_rate(self) -> float:
        """Reused prompt tokens over all prompt tokens; 0.0 where no prompt was admitted."""
        return (self.gpu_hit + self.disk_hit) / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def saved_nano(self) -> int:
        return self.without_cache_nano - self.cost_nano


@dataclass(frozen=True, slots=True)
class SessionRow(Used):
    """One session: a conversation, or a stateless client's chain.

    Sessions of deleted conversations stay, with an empty title.
    """

    session_id: ConversationId
    namespace: Namespace
    title: str
    first_at: int
    last_at: int

    @classmethod
    def of(cls, row: UsageRow) -> "SessionRow":
        return cls(
            **_used(row),
            session_id=ConversationId(row.labels["session_id"]),
            namespace=Namespace(row.labels["namespace"]),
            title=row.labels["title"],
            first_at=row.first_at or 0,
            last_at=row.last_at or 0,
        )


@dataclass(frozen=True, slots=True)
class ReportTotal(Used):
    """The sum over all sessions billed in one currency."""

    sessions: int

    @classmethod
    def of(cls, row: UsageRow) -> "ReportTotal":
        return cls(**_used(row), sessions=row.sessions or 0)


@dataclass(frozen=True, slots=True)
class SessionsReport:
    """Sessions, the last used first, and one total for each currency (over all, not the page)."""

    sessions: tuple[SessionRow, ...]
    totals: tuple[ReportTotal, ...]


def _used(row: UsageRow) -> dict[str, Any]:
    return {name: getattr(row, name) or 0 for name in Used.__slots__}
