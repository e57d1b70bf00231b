"""Verification: everything the database claims, worked out again from what lies underneath.

Nothing is believed because it was kept. Rows are compared with their pieces, prices and messages,
messages with their parents and pieces, each engine run's counters and each roll-up with the sum of its
rows. One read transaction, so it holds at any commit, while the server writes as after a `kill -9`.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Row, and_, func, select

from chatd.ids import Namespace
from chatd.store.branches import branches_of
from chatd.store.prices import PriceBook
from chatd.store.records import (
    ROOT_KEY,
    MessageStatus,
    ResponseStatus,
    RunCounters,
    RunId,
    chain_key,
)
from chatd.store.rows import COST_COLUMNS, load_books
from chatd.store.schema import conversations, engine_runs, messages, pieces, responses, unpack_ids
from chatd.store.verify_report import Finding, VerifyReport
from chatd.store.verify_rollups import verify_rollups

COUNTERS = ("prompt_tokens", "gpu_hit", "disk_hit", "computed", "generated")
"""The counters of a run that the ledger's rows must add up to."""

_FINISH = {
    "open": (None,),
    "completed": ("end", "stop"),
    "incomplete": ("length",),
    "cancelled": ("cancelled",),
    "failed": ("failed",),
}


def verify(conn: Connection, live_run: RunId | None, live: Callable[[], RunCounters] | None) -> VerifyReport:
    """``live_run`` is the run of this process. Only it may have open responses; or, where there is none,
    the last run of all, if its server was killed and it was not settled since.

    ``live`` reads its engine's counters now: they may be ahead of what is stored, never behind.
    """
    check = _Verifier(conn, live_run)
    check.ledger()
    check.conversations()
    verify_rollups(conn, check.expect)
    check.runs(live() if live is not None and live_run is not None else None)
    return check.report()


def _killed_run(conn: Connection) -> int | None:
    """The last run, if it never ended. An earlier one was settled before its successor began."""
    last = conn.execute(select(engine_runs).order_by(engine_runs.c.id.desc()).limit(1)).one_or_none()
    return last.id if last is not None and last.outcome == "running" else None


class _Verifier:
    def __init__(self, conn: Connection, live_run: RunId | None) -> None:
        self._conn = conn
        self._live_run = live_run
        self._killed_run = None if live_run is not None else _killed_run(conn)
        self._unsettled = 0
        self._books = load_books(conn)
        self._findings: list[Finding] = []
        self._sums: dict[int, dict[str, int]] = {}
        self._counts = dict.fromkeys(("runs", "responses", "messages", "pieces"), 0)

    def report(self) -> VerifyReport:
        unsettled = None if self._killed_run is None else self._unsettled
        return VerifyReport(findings=tuple(self._findings), **self._counts, unsettled=unsettled)

    def expect(self, holds: bool, check: str, subject: str, message: str) -> None:
        if not holds:
            self._findings.append(Finding(check, subject, message))

    # --- the ledger: each row by itself, with its pieces, and with the message it wrote ---

    def ledger(self) -> None:
        query = select(
            responses,
            conversations.c.id.label("kept"),
            conversations.c.namespace.label("kept_namespace"),
            messages.c.id.label("wrote"),
            messages.c.conversation_id.label("wrote_in"),
            messages.c.text.label("wrote_text"),
            messages.c.status.label("wrote_status"),
        )
        # A deleted conversation leaves its rows here and nothing there.
        source = responses.outerjoin(
            conversations, conversations.c.id == responses.c.conversation_id
        ).outerjoin(messages, messages.c.id == responses.c.message_id)
        query = query.select_from(source).order_by(responses.c.message_id, responses.c.seq)
        rows = self._conn.execute(query, execution_options={"yield_per": 256})
        for _, wrote in groupby(rows, key=lambda row: row.message_id):
            self._writers(list(wrote))
        owned = select(responses.c.seq).where(responses.c.seq == pieces.c.response_seq).exists()
        for seq in self._conn.execute(select(pieces.c.response_seq).where(~owned).distinct()).scalars():
            self.expect(False, "pieces", str(seq), "pieces of a response that is not in the ledger")

    def _writers(self, rows: Sequence[Row[Any]]) -> None:
        """The responses that wrote one message, in their order."""
        end = rows[0].base_len
        for row in rows:
            self._counts["responses"] += 1
            self._row(row)
            self._bill(row)
            text = self._pieces(row)
            self._run_sums(row)
            follows = row.base_len == end or row.kept is None
            self.expect(follows, "text", row.id, "does not continue where the last one ended")
            end = self._text(row, text)
        last = rows[-1]
        if last.wrote is not None:
            self._message_end(last, end)

    def _row(self, row: Row[Any]) -> None:
        is_open = row.status == ResponseStatus.OPEN
        ends = [row.finish_reason, row.ended_at, *(getattr(row, name) for name in COST_COLUMNS)]
        whole = all(end is None for end in ends) if is_open else all(end is not None for end in ends)
        self.expect(whole, "ending", row.id, f"is {row.status} with half an ending")
        fits = row.finish_reason in _FINISH.get(row.status, ())
        self.expect(fits, "ending", row.id, f"is {row.status} with reason {row.finish_reason}")
        orphan = is_open and row.run_id not in (self._live_run, self._killed_run)
        self._unsettled += is_open and not orphan
        self.expect(not orphan, "ending", row.id, f"is open in run {row.run_id}, which is over")
        parts = row.gpu_hit + row.disk_hit + row.computed
        self.expect(row.prompt_tokens == parts, "buckets", row.id, f"{row.prompt_tokens} is not {parts}")
        counts = (row.gpu_hit, row.disk_hit, row.computed, row.output_tokens, row.delivered, row.acknowledged)
        self.expect(min(counts) >= 0, "buckets", row.id, "has a negative count")
        arrived = row.acknowledged <= row.delivered
        self.expect(arrived, "buckets", row.id, f"{row.acknowledged} of {row.delivered} sent tokens arrived")
        if row.admitted_at is None:
            self.expect(not any(counts[:4]), "buckets", row.id, "was never admitted and has tokens")
        else:
            same = row.prompt_tokens == row.prompt_len
            self.expect(same, "buckets", row.id, f"{row.prompt_tokens} of {row.prompt_len} prompt tokens")

    def _bill(self, row: Row[Any]) -> None:
        book: PriceBook | None = self._books.get(row.price_version)
        if book is None:
            self.expect(False, "cost", row.id, f"has unknown prices {row.price_version}")
            return
        if row.status == ResponseStatus.OPEN:
            return
        cost = book.cost(
            gpu_hit=row.gpu_hit,
            disk_hit=row.disk_hit,
            computed=row.computed,
            output=row.output_tokens,
            model=row.model,
        )
        for name in COST_COLUMNS:
            stored, right = getattr(row, name), getattr(cost, name)
            self.expect(stored == right, "cost", row.id, f"{name} is {stored}, should be {right}")

    def _pieces(self, row: Row[Any]) -> str:
        """The text of all pieces of a row."""
        query = select(pieces).where(pieces.c.response_seq == row.seq).order_by(pieces.c.from_seq)
        seq, ids_len, texts = 0, 0, []
        for piece in self._conn.execute(query):
            self._counts["pieces"] += 1
            self.expect(
                piece.from_seq == seq + 1, "pieces", row.id, f"piece {piece.from_seq} follows piece {seq}"
            )
            self._piece_ends(row, piece)
            seq = piece.seq
            ids_len += len(piece.token_ids) // 4
            texts.append(piece.text)
        kept = seq if row.kept is not None else row.last_seq
        self.expect(kept == row.last_seq, "pieces", row.id, f"ends at piece {kept}, not {row.last_seq}")
        lost = row.kept is None and seq > 0
        self.expect(not lost, "pieces", row.id, "has pieces of a deleted conversation")
        most = row.output_tokens
        self.expect(ids_len <= most, "pieces", row.id, f"stored {ids_len} ids of {most} generated")
        return "".join(texts)

    def _piece_ends(self, row: Row[Any], piece: Row[Any]) -> None:
        ends = unpack_ids(piece.piece_ends)
        rising = all(a <= b for a, b in zip((0, *ends), ends, strict=False))
        right = rising and ends[-1] == len(piece.text) and len(ends) == piece.seq - piece.from_seq + 1
        self.expect(right, "pieces", row.id, f"row of piece {piece.from_seq} cannot be cut: {ends}")

    def _text(self, row: Row[Any], text: str) -> int:
        """Compares the pieces' text with its stretch of the message; where that ends."""
        end: int = row.base_len + len(text)
        if row.wrote is None:
            gone = row.kept is None
            self.expect(gone, "text", row.id, f"wrote message {row.message_id}, which is missing")
            return end
        here = row.wrote_in == row.conversation_id and row.namespace == row.kept_namespace
        self.expect(here, "message", row.id, "wrote in another conversation or namespace than its own")
        if row.status != ResponseStatus.OPEN:
            same = row.wrote_text[row.base_len : end] == text
            self.expect(same, "text", row.id, "the message's text is not that of the pieces")
        else:
            end = row.base_len
        return end

    def _message_end(self, last: Row[Any], end: int) -> None:
        message_id, is_open = last.wrote, last.status == ResponseStatus.OPEN
        whole = len(last.wrote_text) == end
        self.expect(whole, "text", message_id, "has text that no response wrote")
        status = MessageStatus.STREAMING if is_open else last.status
        same = last.wrote_status == status
        self.expect(same, "message", message_id, f"is {last.wrote_status}, its response {last.status}")

    def _run_sums(self, row: Row[Any]) -> None:
        sums = self._sums.setdefault(row.run_id, dict.fromkeys(COUNTERS, 0))
        for name in COUNTERS[:-1]:
            sums[name] += getattr(row, name)
        sums["generated"] += row.output_tokens

    # --- the trees ---

    def conversations(self) -> None:
        query = select(conversations).order_by(conversations.c.seq)
        for row in self._conn.execute(query).all():
            self._tree(row)
        lost = select(messages.c.id).where(
            ~select(conversations.c.id).where(conversations.c.id == messages.c.conversation_id).exists()
        )
        for message_id in self._conn.execute(lost).scalars():
            self.expect(False, "tree", message_id, "is in no conversation")

    def _tree(self, conversation: Row[Any]) -> None:
        query = select(messages).where(messages.c.conversation_id == conversation.id)
        rows = self._conn.execute(query.order_by(messages.c.seq)).all()
        keys: dict[str, bytes | None] = {}
        for row in rows:
            self._counts["messages"] += 1
            self._parent(row, keys, Namespace(conversation.namespace))
            keys[row.id] = row.chain_key
        tip = conversation.tip_id
        has_tip = tip in keys if rows else tip is None
        self.expect(has_tip, "tree", conversation.id, f"tip {tip} is not one of its messages")
        streaming = [row.id for row in rows if row.status == MessageStatus.STREAMING]
        for message_id in set(streaming) - self._open_messages(streaming):
            self.expect(False, "message", message_id, "is streaming, but no response writes it")
        tree = ((row.id, row.parent_id) for row in rows)
        self._branches(conversation.id, branches_of(conversation.id, tree))

    def _branches(self, session: str, right: Mapping[str, str]) -> None:
        query = select(responses.c.id, responses.c.message_id, responses.c.branch_id)
        for row in self._conn.execute(query.where(responses.c.conversation_id == session)).all():
            same = row.branch_id == right.get(row.message_id, row.branch_id)
            self.expect(same, "branch", row.id, f"is on branch {row.branch_id} and belongs on another")

    def _parent(self, row: Row[Any], keys: dict[str, bytes | None], namespace: Namespace) -> None:
        """A parent is stored before its children, so a tree where each is known has no cycle."""
        if row.parent_id is not None and row.parent_id not in keys:
            self.expect(False, "tree", row.id, f"its parent {row.parent_id} does not come before it")
            return
        above = ROOT_KEY if row.parent_id is None else keys[row.parent_id]
        self.expect(above is not None, "tree", row.id, "hangs under an answer that is being written")
        if above is not None and row.chain_key is not None:
            right = row.chain_key == chain_key(namespace, above, row.role, row.text)
            self.expect(right, "chain", row.id, "its chain key is not that of its text and parent")

    def _open_messages(self, ids: Sequence[str]) -> set[str]:
        is_open = and_(responses.c.message_id.in_(ids), responses.c.status == "open")
        return set(self._conn.execute(select(responses.c.message_id).where(is_open)).scalars())

    # --- the runs ---

    def runs(self, live: RunCounters | None) -> None:
        for row in self._conn.execute(select(engine_runs).order_by(engine_runs.c.id)).all():
            self._counts["runs"] += 1
            sums = self._sums.pop(row.id, dict.fromkeys(COUNTERS, 0))
            for name in COUNTERS:
                kept = getattr(row, name)
                self.expect(
                    kept == sums[name], "run", str(row.id), f"{name}: counted {kept}, rows say {sums[name]}"
                )
            over = row.outcome != "running" or row.id in (self._live_run, self._killed_run)
            self.expect(over, "run", str(row.id), "neither runs nor was it settled")
            if live is not None and row.id == self._live_run:
                self._live(row, live)
        for run_id in self._sums:
            self.expect(False, "run", str(run_id), "has responses, but there is no such run")

    def _live(self, row: Row[Any], live: RunCounters) -> None:
        """With nothing open the engine has nothing to count, unless a response was begun since."""
        open_rows = select(func.count()).where(responses.c.status == "open")
        idle = self._conn.execute(open_rows).scalar_one() == 0
        for name in COUNTERS:
            kept, now = getattr(row, name), getattr(live, name)
            message = f"{name}: the engine counts {now}, the ledger {kept}"
            self.expect(now >= kept, "live", str(row.id), message)
            self.expect(now <= kept or not idle, "live", str(row.id), message)
