"""Roll-ups: sums of ended turns by day and by branch, kept in the transaction that ends a turn.

They are derived: everything in them can be worked out from the ledger again (`rebuild`), and
``chatd report --verify`` does. A turn belongs to the day (UTC) on which it was asked.

    usage_days      day x namespace x key x model x prices           reports by day, model, key, namespace
    usage_branches  session x branch x the above                     reports by session and branch
    usage_sessions  session: when it was used first and last         the order of sessions

An open turn is in none of the first two; a session is in the third from its first question on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Row, Table, bindparam, delete, func, select
from sqlalchemy.dialects.sqlite import insert

from chatd.store.latencies import Kind, add_counts, key_of, pack, unpack
from chatd.store.schema import PACE, SUMS, responses, usage_branches, usage_days, usage_sessions

DAY_US = 86_400_000_000
"""Microseconds of a day."""

DAY_KEY = ("day", "namespace", "key_id", "model", "price_version")
BRANCH_KEY = ("conversation_id", "branch_id", *DAY_KEY)
OF_TURN = (
    *("conversation_id", "branch_id", "namespace", "key_id", "model", "price_version", "opened_at"),
    *("prompt_tokens", "gpu_hit", "disk_hit", "computed", "output_tokens"),
)
"""Columns of a response that count, whether it has ended or not."""
REBUILD_STEP = 5_000


@dataclass(frozen=True, slots=True)
class Turn:
    """An ended turn: where it counts and what it adds."""

    conversation_id: str
    branch_id: str
    namespace: str
    key_id: str
    model: str
    price_version: str
    opened_at: int
    ended_at: int
    prompt_tokens: int
    gpu_hit: int
    disk_hit: int
    computed: int
    output_tokens: int
    preemptions: int
    recomputed: int
    cost_nano: int
    without_cache_nano: int
    queue_ms: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    total_ms: float | None

    @property
    def day(self) -> int:
        return self.opened_at // DAY_US

    @property
    def last_at(self) -> int:
        """A clock that was set back does not make a turn end before it began."""
        return max(self.opened_at, self.ended_at)

    @property
    def turns(self) -> int:
        return 1

    @property
    def is_hit(self) -> bool:
        """At least half of the prompt was reused. (A few tokens of the template nearly always are.)"""
        return self.prompt_tokens > 0 and 2 * (self.gpu_hit + self.disk_hit) >= self.prompt_tokens

    @property
    def timed(self) -> int:
        return int(self.ttft_ms is not None)

    @property
    def timed_tokens(self) -> int:
        return self.timed * self.computed

    @property
    def timed_us(self) -> int:
        return round(1000 * (self.ttft_ms or 0))

    @property
    def timed_product(self) -> int:
        return self.timed_tokens * self.timed_us

    @property
    def timed_squares(self) -> int:
        return self.timed_tokens**2

    def latencies(self) -> Iterable[tuple[int, int]]:
        ttft = Kind.TTFT_HIT if self.is_hit else Kind.TTFT_MISS
        values = (
            (ttft, self.ttft_ms),
            (Kind.TPOT, self.tpot_ms),
            (Kind.QUEUE, self.queue_ms),
            (Kind.TOTAL, self.total_ms),
        )
        return ((key_of(kind, ms), 1) for kind, ms in values if ms is not None)


@dataclass(slots=True)
class Tally:
    """What a row of a roll-up says of some turns."""

    sums: dict[str, int]
    counts: dict[int, int] = field(default_factory=dict)
    first_at: int = 2**62
    last_at: int = 0

    def add(self, turn: Turn) -> None:
        for name in self.sums:
            self.sums[name] += getattr(turn, name)
        add_counts(self.counts, turn.latencies())
        self.first_at = min(self.first_at, turn.opened_at)
        self.last_at = max(self.last_at, turn.last_at)


Key = tuple[Any, ...]


def tally(turns: Iterable[Turn], key: Sequence[str], sums: Sequence[str]) -> dict[Key, Tally]:
    """Turns by their ``key`` columns."""
    found: dict[Key, Tally] = {}
    for turn in turns:
        at = tuple(getattr(turn, name) for name in key)
        if at not in found:
            found[at] = Tally(dict.fromkeys(sums, 0))
        found[at].add(turn)
    return found


DAY_SUMS = (*SUMS, *PACE)


def add_turns(conn: Connection, turns: Sequence[Turn]) -> None:
    """Counts turns that end in this transaction."""
    if not turns:
        return
    _Grower(usage_days, DAY_KEY, DAY_SUMS).grow(conn, tally(turns, DAY_KEY, DAY_SUMS), times=False)
    _Grower(usage_branches, BRANCH_KEY, SUMS).grow(conn, tally(turns, BRANCH_KEY, SUMS), times=True)
    for turn in turns:
        see_session(conn, turn.conversation_id, turn.namespace, first_at=turn.opened_at, at=turn.last_at)


def see_session(conn: Connection, session: str, namespace: str, *, first_at: int, at: int) -> None:
    """The session was used at ``at``."""
    row = {"conversation_id": session, "namespace": namespace, "first_at": first_at, "last_at": at}
    conn.execute(_SEE, row)


_seen = insert(usage_sessions)
_SEE = _seen.on_conflict_do_update(
    index_elements=["conversation_id"],
    set_={
        "first_at": func.min(usage_sessions.c.first_at, _seen.excluded.first_at),
        "last_at": func.max(usage_sessions.c.last_at, _seen.excluded.last_at),
    },
)


class _Grower:
    """Adds tallies to the rows of one roll-up."""

    def __init__(self, table: Table, key: Sequence[str], sums: Sequence[str]) -> None:
        self._key = key
        where = [table.c[name] == bindparam(f"of_{name}") for name in key]
        self._find = select(table.c.latencies).where(*where)
        new = insert(table)
        grown: dict[str, Any] = {name: table.c[name] + new.excluded[name] for name in sums}
        grown["latencies"] = new.excluded.latencies
        if "first_at" in table.c:
            grown["first_at"] = func.min(table.c.first_at, new.excluded.first_at)
            grown["last_at"] = func.max(table.c.last_at, new.excluded.last_at)
        self._put = new.on_conflict_do_update(index_elements=list(key), set_=grown)

    def grow(self, conn: Connection, tallies: dict[Key, Tally], *, times: bool) -> None:
        rows = []
        for key, more in tallies.items():
            of = {f"of_{name}": value for name, value in zip(self._key, key, strict=True)}
            known = conn.execute(self._find, of).scalar_one_or_none()
            counts = unpack(known) if known else {}
            add_counts(counts, more.counts)
            row = dict(zip(self._key, key, strict=True)) | more.sums | {"latencies": pack(counts)}
            rows.append(row | ({"first_at": more.first_at, "last_at": more.last_at} if times else {}))
        conn.execute(self._put, rows)


TURN_COLUMNS = tuple(responses.c[name] for name in Turn.__slots__ if name in responses.c)
BILL = ("gpu_hit_nano", "disk_hit_nano", "computed_nano", "output_nano")


def ended_turns(conn: Connection) -> Iterable[Turn]:
    """All ended turns of the ledger, session by session."""
    query = select(*TURN_COLUMNS, *(responses.c[name] for name in BILL)).where(responses.c.status != "open")
    rows = conn.execute(query.order_by(responses.c.conversation_id), execution_options={"yield_per": 1000})
    return map(to_turn, rows)


def to_turn(row: Row[Any]) -> Turn:
    values = row._asdict()
    cost = sum(values.pop(name) for name in BILL)
    return Turn(**values, cost_nano=cost)


def fill(conn: Connection) -> None:
    """Makes the roll-ups of a ledger that has none yet."""
    if conn.execute(select(usage_sessions.c.conversation_id).limit(1)).first() is None:
        rebuild(conn)


def rebuild(conn: Connection) -> int:
    """Throws the roll-ups away and works them out again; from how many turns."""
    for table in (usage_days, usage_branches, usage_sessions):
        conn.execute(delete(table))
    turns, count = iter(ended_turns(conn)), 0
    while some := list(islice(turns, REBUILD_STEP)):
        add_turns(conn, some)
        count += len(some)
    is_open = select(responses.c.conversation_id, responses.c.namespace, responses.c.opened_at)
    for row in conn.execute(is_open.where(responses.c.status == "open")).all():
        see_session(conn, row.conversation_id, row.namespace, first_at=row.opened_at, at=row.opened_at)
    return count
