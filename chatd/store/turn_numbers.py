"""How reuse grows over the turns of a session: all first turns together, all second ones, and so on."""

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from chatd.store.report_scope import in_ledger
from chatd.store.schema import responses
from chatd.store.usage import Scope

MOST_TURNS = 40
"""Later turns are counted with the last of these."""


@dataclass(frozen=True, slots=True)
class TurnSum:
    """``number`` 1 is the first turn of its branch's session; ``turns`` of them were admitted."""

    number: int
    turns: int
    prompt_tokens: int
    gpu_hit: int
    disk_hit: int
    computed: int

    @property
    def hit_rate(self) -> float:
        return (self.gpu_hit + self.disk_hit) / self.prompt_tokens if self.prompt_tokens else 0.0


def turn_sums(conn: Connection, scope: Scope) -> tuple[TurnSum, ...]:
    """In order. A turn's number counts all turns of its session, whether they are in the scope or not."""
    row = responses.c
    order = func.row_number().over(partition_by=row.conversation_id, order_by=row.seq)
    columns = [row[name] for name in ("prompt_tokens", "gpu_hit", "disk_hit", "computed")]
    own = Scope(namespace=scope.namespace, session=scope.session)
    numbered = select(row.seq, order.label("number")).where(row.prompt_tokens > 0, in_ledger(own)).subquery()
    number = func.min(numbered.c.number, MOST_TURNS)
    query = select(number, func.count(), *map(func.sum, columns))
    query = query.join_from(numbered, responses, row.seq == numbered.c.seq).where(in_ledger(scope))
    return tuple(TurnSum(*found) for found in conn.execute(query.group_by(number).order_by(number)))
