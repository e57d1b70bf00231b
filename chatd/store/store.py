"""The store: conversations and the ledger in one SQLite file, behind one object."""

from collections.abc import Callable, Sequence
from pathlib import Path

from chatd.errors import Conflict
from chatd.ids import ConversationId, MessageId, Namespace, ResponseId
from chatd.store.prices import PriceBook
from chatd.store.records import (
    BegunResponse,
    Conversation,
    ConversationPage,
    ConversationView,
    FlushBatch,
    NewResponse,
    ResponseRecord,
    RunCounters,
    RunId,
    SessionsReport,
    StoredMessage,
    StoredPiece,
    VerifyReport,
)


class TipMoved(Conflict):
    """Another message went under the tip first: read the conversation again and retry."""


class Store:
    """Every method may be cancelled; each says what that leaves behind where it matters."""

    @classmethod
    async def open(
        cls,
        data_dir: Path,
        *,
        prices: PriceBook,
        clock: Callable[[], float],
        new_id: Callable[[], str],
    ) -> "Store":
        """``clock`` gives Unix seconds, ``new_id`` ids never given before."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def settle(self, reencode: Callable[[str, Sequence[int]], Sequence[int]]) -> int:
        raise NotImplementedError

    async def begin_run(self) -> RunId:
        raise NotImplementedError

    async def end_run(self) -> None:
        raise NotImplementedError

    async def create_conversation(
        self, namespace: Namespace, title: str = "", system: str = ""
    ) -> Conversation:
        raise NotImplementedError

    async def list_conversations(
        self, namespace: Namespace, limit: int = 50, before: str | None = None
    ) -> ConversationPage:
        raise NotImplementedError

    async def conversation(self, namespace: Namespace, conversation_id: ConversationId) -> ConversationView:
        raise NotImplementedError

    async def head(self, namespace: Namespace, conversation_id: ConversationId) -> Conversation:
        """The conversation without its messages (title, tip)."""
        raise NotImplementedError

    async def rename(self, namespace: Namespace, conversation_id: ConversationId, title: str) -> Conversation:
        raise NotImplementedError

    async def delete(self, namespace: Namespace, conversation_id: ConversationId) -> None:
        """Conflict while one of its responses is open."""
        raise NotImplementedError

    async def prune(self) -> int:
        """Deletes expired and surplus hidden conversations; how many."""
        raise NotImplementedError

    async def path_to(self, namespace: Namespace, message_id: MessageId) -> list[StoredMessage]:
        """Root to message; NotFound for unknown or foreign."""
        raise NotImplementedError

    async def find_chain(
        self, namespace: Namespace, keys: Sequence[bytes]
    ) -> tuple[int, StoredMessage] | None:
        """The deepest hidden-history message whose chain key is in ``keys`` (root first), newest first."""
        raise NotImplementedError

    async def begin_response(self, new: NewResponse) -> BegunResponse:
        raise NotImplementedError

    async def flush(self, batch: FlushBatch) -> None:
        raise NotImplementedError

    async def response(self, namespace: Namespace, response_id: ResponseId) -> ResponseRecord:
        raise NotImplementedError

    async def pieces_after(self, response_id: ResponseId, seq: int) -> list[StoredPiece]:
        raise NotImplementedError

    async def sessions_report(
        self,
        namespace: Namespace | None = None,
        *,
        since: int | None = None,
        until: int | None = None,
        limit: int | None = None,
    ) -> SessionsReport:
        """None of ``namespace`` means all of them."""
        raise NotImplementedError

    async def verify(self, live: Callable[[], RunCounters] | None = None) -> VerifyReport:
        """``live`` reads the running engine's counters; called once, after the ledger was read."""
        raise NotImplementedError
