"""The engine's runs: begun, ended, or found dead; and what a dead one left open."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import ColumnElement, Connection, func, select, true, update

from chatd.ids import ResponseId
from chatd.store.answers import stored_text
from chatd.store.flush_batch import EndedRow
from chatd.store.ledger import load_open, store_rows
from chatd.store.records import ResponseStatus, RunCounters, RunId
from chatd.store.schema import engine_runs, pieces, responses, unpack_ids

SERVER_DIED = "server_died"
"""The error code of a response whose server did not live to end it."""

Reencode = Callable[[str, Sequence[int]], Sequence[int] | None]
"""From a text and the ids it was made of, the last of which may be half visible, to ids that decode to
exactly that text; None if they cannot be known."""


def unknown_ids(text: str, ids: Sequence[int]) -> None:
    """`Reencode` without a tokenizer. The text is encoded anew when the conversation goes on."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A response left open by a run that is over, with everything it had stored.

    ``at`` is when that run last stored something.
    """

    response_id: ResponseId
    generated: int
    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    at: int

    def ending(self, reencode: Reencode) -> EndedRow:
        """Failed, and billed for what was stored. The last token may be half visible, hence ``reencode``."""
        ids = reencode(self.text, self.token_ids) if self.text else ()
        return EndedRow(
            response_id=self.response_id,
            status=ResponseStatus.FAILED,
            finish_reason="failed",
            generated=self.generated,
            message_ids=None if ids is None else tuple(ids),
            at=self.at,
            error_code=SERVER_DIED,
            error="the server stopped while it was writing this answer",
            kv_len=self.prompt_tokens if self.generated else 0,
        )


def begin_run(conn: Connection, *, now: int) -> RunId:
    row = {"outcome": "running", "started_at": now, "updated_at": now, **asdict(RunCounters())}
    conn.execute(engine_runs.insert(), [row])
    return RunId(conn.execute(select(func.max(engine_runs.c.id))).scalar_one())


def end_run(conn: Connection, run_id: RunId, *, now: int) -> None:
    is_it = (engine_runs.c.id == run_id) & (engine_runs.c.outcome == "running")
    conn.execute(update(engine_runs).where(is_it).values(outcome="ended", updated_at=now))


def _of_other_runs(live: RunId | None) -> ColumnElement[bool]:
    return true() if live is None else responses.c.run_id != live


def find_orphans(conn: Connection, live: RunId | None) -> list[Orphan]:
    """The open responses of every run but the ``live`` one."""
    query = select(
        responses.c.seq,
        responses.c.id,
        responses.c.output_tokens,
        responses.c.prompt_tokens,
        engine_runs.c.updated_at,
    )
    query = query.join(engine_runs, engine_runs.c.id == responses.c.run_id)
    query = query.where(responses.c.status == "open", _of_other_runs(live))
    return [
        Orphan(
            response_id=ResponseId(row.id),
            generated=row.output_tokens,
            text=stored_text(conn, row.seq),
            token_ids=_stored_ids(conn, row.seq),
            prompt_tokens=row.prompt_tokens,
            at=row.updated_at,
        )
        for row in conn.execute(query.order_by(responses.c.seq)).all()
    ]


def _stored_ids(conn: Connection, response_seq: int) -> tuple[int, ...]:
    query = select(pieces.c.token_ids).where(pieces.c.response_seq == response_seq)
    blobs = conn.execute(query.order_by(pieces.c.from_seq)).scalars()
    return unpack_ids(b"".join(blobs))


def settle(conn: Connection, endings: Sequence[EndedRow], live: RunId | None, *, hidden_ttl: int) -> None:
    """Ends the orphans and declares every other run that did not end dead."""
    rows = load_open(conn, _of_other_runs(live))
    for ending in endings:
        rows[ending.response_id].end(ending)
    store_rows(conn, rows.touched, hidden_ttl=hidden_ttl)
    dead = engine_runs.c.outcome == "running"
    if live is not None:
        dead &= engine_runs.c.id != live
    conn.execute(update(engine_runs).where(dead).values(outcome="died"))
