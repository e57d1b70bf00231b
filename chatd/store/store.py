"""The store: conversations and the ledger in one SQLite file, behind one object.

Everything that changes something goes through the one `Writer`, everything else through `Readers`; what
is done there lies in `conversations`, `begin`, `ledger`, `runs`, `reports` and `verify`, as plain
functions of a connection. A call that has returned is committed and every later read sees it.

Cancelling a read leaves nothing behind. Cancelling a write never leaves half of it, and never takes it
back: it is stored as a whole all the same, only nobody learns its result. So a cancelled
`begin_response` may leave an open response behind: whoever calls it must shield it and end what it
opened; and a cancelled `flush` must not be sent again.

WAL with ``synchronous=NORMAL``: what was committed survives the death of the process. A power cut may
take the commits since the last checkpoint; what is left is a consistent, earlier state.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection

from chatd.errors import NotFound, SetupError
from chatd.ids import ConversationId, MessageId, Namespace, ResponseId
from chatd.resources import migrations_dir
from chatd.store import (
    archive,
    begin,
    conversations,
    kv,
    ledger,
    notes,
    reports,
    rollups,
    runs,
    search,
    stored_pieces,
    system_prompts,
    turn_numbers,
    turns,
    verify,
)
from chatd.store.archive import Archived, Stored
from chatd.store.books import to_row
from chatd.store.connect import make_engine
from chatd.store.days import today
from chatd.store.errors import LedgerViolation, StoreFailure, TipMoved
from chatd.store.flush_batch import FlushBatch
from chatd.store.key_limits import Charge
from chatd.store.key_store import KeyStore
from chatd.store.log_keeper import LogKeeper
from chatd.store.migrate import migrate
from chatd.store.notes import Note
from chatd.store.prices import PriceBook
from chatd.store.pricing import AS_BILLED, View
from chatd.store.readers import Readers, ReadGate
from chatd.store.records import (
    BegunResponse,
    CauseSum,
    Conversation,
    ConversationPage,
    ConversationView,
    KeptKV,
    NewResponse,
    Pin,
    Purge,
    ReplayTurn,
    ResponseRecord,
    RunCounters,
    RunId,
    StoredMessage,
    StoredPiece,
    XrayRow,
    micros,
)
from chatd.store.reserve import most_nano
from chatd.store.rows import load_books, response_query, to_response
from chatd.store.schema import price_books, responses
from chatd.store.search import SearchPage
from chatd.store.session_report import SessionsReport
from chatd.store.storage_days import add_storage, storage_report
from chatd.store.turn_numbers import TurnSum
from chatd.store.usage import Asked, Scope, StorageRow, StorageUse, UsageReport
from chatd.store.verify_report import VerifyReport
from chatd.store.writer import Writer

__all__ = ["DATABASE_NAME", "LedgerViolation", "Store", "StoreFailure", "TipMoved"]

DATABASE_NAME = "chatd.db"
READER_THREADS = 4
HIDDEN_TTL_S = 7 * 24 * 3600
HIDDEN_KEEP = 1000
WITHDRAWN_S = 600.0
"""How long a history that is not to be stored may be gone on with: a client that sends it again with its
next turn finds its KV."""
PRUNE_STEP = 100

T = TypeVar("T")


class Store:
    """Made by `open`, ended by `close`. Belongs to the event loop it was opened on."""

    def __init__(
        self,
        writer: Writer,
        readers: Readers,
        *,
        prices: PriceBook,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        hidden_ttl_s: float,
        hidden_keep: int,
    ) -> None:
        self._writer = writer
        self._readers = readers
        self._prices = prices
        self._clock = clock
        self._new_id = new_id
        self._hidden_ttl = micros(hidden_ttl_s)
        self._hidden_keep = hidden_keep
        self._run: RunId | None = None
        self.keys = KeyStore(writer, readers, self._now)

    @classmethod
    async def open(
        cls,
        data_dir: Path,
        *,
        prices: PriceBook,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        hidden_ttl_s: float = HIDDEN_TTL_S,
        hidden_keep: int = HIDDEN_KEEP,
        idle_s: float = 1.0,
        migrations: Path | None = None,
    ) -> "Store":
        """Opens ``data_dir/chatd.db``, made or migrated as needed (a backup first), settling nothing.

        ``clock`` gives Unix seconds, ``new_id`` ids never given before. Hidden conversations expire
        ``hidden_ttl_s`` after their last use, and a namespace keeps the newest ``hidden_keep``. After
        ``idle_s`` without a write the log is emptied. SetupError if the file cannot be used.
        """
        database = data_dir / DATABASE_NAME
        await asyncio.to_thread(migrate, database, migrations or migrations_dir())
        gate = ReadGate()
        writing = make_engine(database, begin="BEGIN IMMEDIATE", connections=1)
        reading = make_engine(database, begin="BEGIN", connections=READER_THREADS, read_only=True)
        store = cls(
            Writer(writing, LogKeeper(gate, database, idle_s=idle_s)),
            Readers(reading, gate, READER_THREADS),
            prices=prices,
            clock=clock,
            new_id=new_id,
            hidden_ttl_s=hidden_ttl_s,
            hidden_keep=hidden_keep,
        )
        try:
            await store._write(lambda conn: _register_prices(conn, prices))
            await store._write(rollups.fill)
        except BaseException:
            await asyncio.shield(store.close())
            raise
        return store

    async def close(self) -> None:
        """Stores what was asked for before, then lets go of the file."""
        await self._readers.close()
        await self._writer.close()

    async def _write(self, job: Callable[[Connection], T]) -> T:
        return await self._writer.run(job)

    async def _read(self, job: Callable[[Connection], T]) -> T:
        return await self._readers.run(job)

    def _now(self) -> int:
        return micros(self._clock())

    @property
    def prices(self) -> PriceBook:
        """What new responses are billed at."""
        return self._prices

    # --- the engine's runs ---

    async def begin_run(self) -> RunId:
        """The engine starts, its counters at 0. Responses and flushes need a run."""
        now = self._now()
        self._run = await self._write(lambda conn: runs.begin_run(conn, now=now))
        return self._run

    async def end_run(self) -> None:
        """The engine has stopped in good order, with no response open."""
        run, now = self._live_run(), self._now()
        await self._write(lambda conn: runs.end_run(conn, run, now=now))
        self._run = None

    async def settle(self, reencode: runs.Reencode = runs.unknown_ids) -> int:
        """Ends what dead runs left open: failed, ``server_died``, billed for what was stored.

        The message gets the stored pieces' text and, from ``reencode``, its ids. How many were open.
        Call it at start, before the first response.
        """
        live = self._run
        orphans = await self._read(lambda conn: runs.find_orphans(conn, live))
        endings = [orphan.ending(reencode) for orphan in orphans]
        ttl = self._hidden_ttl
        await self._write(lambda conn: runs.settle(conn, endings, live, hidden_ttl=ttl))
        return len(endings)

    def _live_run(self) -> RunId:
        if self._run is None:
            raise LedgerViolation("no engine run has begun")
        return self._run

    # --- conversations ---

    async def create_conversation(
        self, namespace: Namespace, title: str = "", system: str = ""
    ) -> Conversation:
        """An empty conversation, or with a system prompt as its root."""
        make, new_id, now = conversations.create_conversation, self._new_id, self._now()
        return await self._write(lambda conn: make(conn, namespace, title, system, new_id=new_id, now=now))

    async def list_conversations(
        self, namespace: Namespace, limit: int = 50, before: str | None = None, *, pinned: bool = False
    ) -> ConversationPage:
        """The newest first; ``before`` is the ``next`` of the page above. ``pinned``: only those that are."""
        listed = conversations.list_conversations
        return await self._read(lambda conn: listed(conn, namespace, limit, before, pinned=pinned))

    async def search(
        self, namespace: Namespace, query: str, limit: int = 20, before: str | None = None
    ) -> SearchPage:
        """Titles and texts that have all words of ``query``; see `chatd.store.search`."""
        return await self._read(lambda conn: search.search(conn, namespace, query, limit, before))

    async def conversation(self, namespace: Namespace, conversation_id: ConversationId) -> ConversationView:
        """All messages with the responses that wrote them; NotFound for unknown or foreign."""
        return await self._read(
            lambda conn: conversations.view_conversation(conn, namespace, conversation_id)
        )

    async def head(self, namespace: Namespace, conversation_id: ConversationId) -> Conversation:
        """The conversation without its messages (title, tip); NotFound for unknown or foreign."""
        return await self._read(
            lambda conn: conversations.find_conversation(conn, namespace, conversation_id)
        )

    async def rename(self, namespace: Namespace, conversation_id: ConversationId, title: str) -> Conversation:
        """NotFound for unknown or foreign."""
        now = self._now()
        return await self._write(
            lambda conn: conversations.rename(conn, namespace, conversation_id, title, now=now)
        )

    async def set_system(
        self, namespace: Namespace, conversation_id: ConversationId, system: str
    ) -> Conversation:
        """What the model is told first from the next turn on. NotFound for unknown or foreign, Conflict."""
        change, new_id, now = system_prompts.set_system, self._new_id, self._now()
        return await self._write(
            lambda conn: change(conn, namespace, conversation_id, system, new_id=new_id, now=now)
        )

    async def pin_conversation(
        self, namespace: Namespace, conversation_id: ConversationId, *, pinned: bool
    ) -> Conversation:
        """Keep it at hand, or not any more. NotFound for unknown or foreign."""
        now = self._now()
        return await self._write(
            lambda conn: conversations.pin(conn, namespace, conversation_id, pinned=pinned, now=now)
        )

    async def delete(self, namespace: Namespace, conversation_id: ConversationId) -> None:
        """Messages and pieces go, ledger rows stay. Conflict while one of its responses is open."""
        await self._write(lambda conn: conversations.delete_conversation(conn, namespace, conversation_id))

    async def listed_ids(self, namespace: Namespace) -> list[ConversationId]:
        """Every conversation in the namespace's list, the oldest first."""
        return await self._read(lambda conn: archive.listed_ids(conn, namespace))

    async def own_ids(self, namespace: Namespace, ids: Sequence[ConversationId]) -> set[ConversationId]:
        """Which of ``ids`` are conversations of the namespace."""
        return await self._read(lambda conn: archive.own_ids(conn, namespace, ids))

    async def archived(self, namespace: Namespace, ids: Sequence[ConversationId]) -> list[Archived]:
        """These conversations whole; those that are unknown, foreign or gone by now are left out."""

        def read(conn: Connection) -> list[Archived]:
            mine = archive.own_ids(conn, namespace, ids)
            seen = sorted(one for one in mine if not notes.is_withdrawn(conn, one))
            return list(archive.archived(conn, seen))

        return await self._read(read)

    async def store_archived(self, wanted: Sequence[Archived]) -> Stored:
        """Each that can be; those whose id is known stay as they are."""
        return await self._write(lambda conn: archive.store_archived(conn, wanted))

    async def prune(self, withdrawn_s: float = WITHDRAWN_S) -> int:
        """Deletes hidden conversations that have expired, and those that were withdrawn and not used for
        ``withdrawn_s``; how many. Call it now and then."""
        now, gone, step = self._now(), 0, PRUNE_STEP
        before = now - micros(withdrawn_s)

        def prune(conn: Connection) -> int:
            expired = conversations.prune_expired(conn, now=now, at_most=PRUNE_STEP)
            return expired or conversations.prune_withdrawn(conn, before=before, at_most=PRUNE_STEP)

        while step:
            step = await self._write(prune)
            gone += step
        return gone

    async def retain(self, seconds: float) -> int:
        """Deletes conversations that were not used for so long, with their KV; how many.

        One in which an answer is being written stays. What they cost stays in the ledger.
        """
        before, gone, step = self._now() - micros(seconds), 0, PRUNE_STEP
        while step == PRUNE_STEP:
            step = await self._write(
                lambda conn: conversations.prune_unused(conn, before=before, at_most=PRUNE_STEP)
            )
            gone += step
        return gone

    async def path_to(self, namespace: Namespace, message_id: MessageId) -> list[StoredMessage]:
        """Root to message; NotFound for unknown or foreign."""
        return await self._read(lambda conn: conversations.path_to(conn, namespace, message_id))

    async def kept_on(self, path: Sequence[StoredMessage]) -> list[KeptKV]:
        """What the responses that wrote a path's answers left as KV, oldest first. If the path ends in a
        question: also those that answered it."""
        return await self._read(lambda conn: kv.kept_on(conn, path))

    async def message(self, namespace: Namespace, message_id: MessageId) -> StoredMessage:
        """NotFound for unknown or foreign."""
        return await self._read(lambda conn: conversations.find_message(conn, namespace, message_id))

    async def find_chain(
        self, namespace: Namespace, keys: Sequence[bytes]
    ) -> tuple[int, StoredMessage] | None:
        """The stored message, of the hidden histories, that is deepest in ``keys`` (root first).

        With its index in ``keys``; of several the newest. Answers being written are never found. It
        may expire before it is used: `begin_response` then raises NotFound.
        """
        return await self._read(lambda conn: conversations.find_chain(conn, namespace, keys))

    # --- responses ---

    async def find_replay(
        self, namespace: Namespace, idempotency_key: str, request_hash: bytes
    ) -> BegunResponse | None:
        """What the key opened before, if anything. Conflict: it was used for another request."""
        return await self._read(
            lambda conn: begin.find_replay(conn, namespace, idempotency_key, request_hash)
        )

    async def begin_response(self, new: NewResponse) -> BegunResponse:
        """Stores the new messages and opens the ledger row, or finds an earlier one by its key.

        Conflict: the key belongs to another request, or the target is being written or has children.
        TipMoved: the conversation went on elsewhere. NotFound: an id is unknown or foreign. With a key also
        what `chatd.store.key_limits.charge` raises.
        """
        opening = begin.Opening(
            run_id=self._live_run(),
            price_version=self._prices.version,
            now=self._now(),
            new_id=self._new_id,
            hidden_ttl=self._hidden_ttl,
            hidden_keep=self._hidden_keep,
            charge=self._charge(new) if new.key_id else None,
        )
        return await self._write(lambda conn: begin.begin_response(conn, new, opening))

    def _charge(self, new: NewResponse) -> Charge:
        nano = most_nano(self._prices, new.model, new.prompt_len, new.max_tokens)
        return Charge(new.prompt_len, new.max_tokens, nano, self._prices.currency)

    async def flush(self, batch: FlushBatch) -> None:
        """Stores a batch in one transaction; LedgerViolation, and nothing stored, if it cannot be right.

        After a StoreFailure (disk full) nothing of it is stored and the same batch may be sent again.
        """
        now, ttl = self._now(), self._hidden_ttl
        await self._write(lambda conn: ledger.flush(conn, batch, now=now, hidden_ttl=ttl))

    async def response(self, namespace: Namespace, response_id: ResponseId) -> ResponseRecord:
        """The ledger row, also of a deleted conversation; NotFound for unknown or foreign."""
        return await self._read(lambda conn: _response(conn, namespace, response_id))

    async def pieces_after(self, response_id: ResponseId, seq: int) -> list[StoredPiece]:
        """The stored pieces after ``seq``, in order, the first cut so that it starts at ``seq + 1``."""
        return await self._read(lambda conn: stored_pieces.pieces_after(conn, response_id, seq))

    async def note(self, namespace: Namespace, response_id: ResponseId) -> Note:
        """What was noted of it; NotFound for unknown, foreign, or of a deleted conversation."""
        return await self._read(lambda conn: notes.find_note(conn, namespace, response_id))

    async def withdraw(self, namespace: Namespace, response_id: ResponseId) -> ConversationId | None:
        """See `chatd.store.notes.withdraw`. NotFound as for `note`."""
        return await self._write(lambda conn: notes.withdraw(conn, namespace, response_id))

    # --- KV ---

    async def purges(self, at_most: int = 100) -> list[Purge]:
        """KV of deleted conversations that is still to be removed, the oldest first."""
        return await self._read(lambda conn: kv.find_purges(conn, at_most))

    async def purged(self, seqs: Sequence[int]) -> None:
        """It was removed: think of it no more."""
        await self._write(lambda conn: kv.purged(conn, seqs))

    async def add_pin(self, name: str, namespace: Namespace, what: str, token_ids: Sequence[int]) -> Pin:
        """Conflict if the name is taken."""
        pin = Pin(name, namespace, what, tuple(token_ids), self._now())
        await self._write(lambda conn: kv.add_pin(conn, pin))
        return pin

    async def remove_pin(self, name: str) -> None:
        """NotFound if there is none of that name."""
        await self._write(lambda conn: kv.remove_pin(conn, name))

    async def pins(self) -> list[Pin]:
        """The oldest first."""
        return await self._read(kv.list_pins)

    async def newest_of(
        self, namespace: Namespace | None, at_most: int
    ) -> list[tuple[Namespace, Conversation]]:
        """The conversations used last, hidden ones too, of one namespace or (for the operator) of all."""
        return await self._read(lambda conn: conversations.newest_of(conn, namespace, at_most))

    async def owner_of(self, conversation_id: ConversationId) -> Namespace:
        """Whose conversation that is: for the operator, who may see all. NotFound if there is none."""
        return await self._read(lambda conn: kv.namespace_of(conn, conversation_id))

    async def cause_sums(self) -> list[CauseSum]:
        """Why first computed tokens were misses, over the whole ledger, the commonest first."""
        return await self._read(kv.cause_sums)

    async def newest_xrays(self, at_most: int) -> list[XrayRow]:
        """Of ended responses, the newest first."""
        return await self._read(lambda conn: kv.newest_xrays(conn, at_most))

    async def newest_turns(self, at_most: int) -> list[ReplayTurn]:
        """Ended answers that can be computed again, the newest first; see `chatd.store.turns`."""
        return await self._read(lambda conn: turns.newest_turns(conn, at_most))

    # --- reports ---

    async def sessions_report(
        self, namespace: Namespace | None = None, *, limit: int | None = None
    ) -> SessionsReport:
        """Use and cost by session, of one namespace or all."""
        return await self._read(lambda conn: reports.sessions_report(conn, namespace, limit))

    async def usage_report(self, asked: Asked) -> UsageReport:
        """A page of any report; InvalidParameter for a limit or a cursor that cannot be."""
        return await self._read(lambda conn: reports.usage_report(conn, asked))

    async def turn_sums(self, scope: Scope) -> tuple[TurnSum, ...]:
        """Reuse by the number of a turn in its session."""
        return await self._read(lambda conn: turn_numbers.turn_sums(conn, scope))

    async def add_storage(self, uses: Sequence[StorageUse]) -> None:
        """KV that was kept on disk or pinned since this was called last, at the prices of now."""
        day, version = today(self._clock()), self._prices.version
        await self._write(lambda conn: add_storage(conn, uses, day=day, price_version=version))

    async def storage_report(self, scope: Scope, view: View = AS_BILLED) -> tuple[StorageRow, ...]:
        """KV that was kept, by day."""
        return await self._read(lambda conn: storage_report(conn, scope, view))

    async def verify(self, live: Callable[[], RunCounters] | None = None) -> VerifyReport:
        """Works everything out again; see `chatd.store.verify`.

        ``live`` reads the running engine's counters. It is called once, on a reader's thread, after
        the ledger was read, so that the engine can only be ahead.
        """
        run = self._run
        return await self._read(lambda conn: verify.verify(conn, run, live))


def _register_prices(conn: Connection, prices: PriceBook) -> None:
    known = load_books(conn).get(prices.version)
    if known is None:
        conn.execute(price_books.insert(), [to_row(prices)])
    elif known != prices:
        raise SetupError(
            f"price book {prices.version!r} was used with other prices before: "
            "give the new prices a new version"
        )


def _response(conn: Connection, namespace: Namespace, response_id: ResponseId) -> ResponseRecord:
    query = response_query().where(responses.c.id == response_id, responses.c.namespace == namespace)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise NotFound("there is no such response")
    return to_response(row)
