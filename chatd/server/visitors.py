"""Who asks: the account, the key and the rights behind one request or one socket."""

from dataclasses import dataclass

from starlette.requests import HTTPConnection

from chatd.ids import Namespace
from chatd.store.key_records import Key, KeyScope, Room

ALL_SCOPES = frozenset(KeyScope)
VISITOR = "chatd.visitor"
"""Where in an ASGI scope the visitor stands."""


@dataclass(slots=True, eq=False)
class Visitor:
    """``namespace`` is the account's. Without a ``key`` it is this machine's own user: everybody who gets
    here while there are no keys, and later the operator.

    ``login`` is the hash of the cookie that it came in with. ``room`` is what the key has left after the
    last answer that was asked for.
    """

    namespace: Namespace
    key: Key | None = None
    login: bytes | None = None
    is_operator: bool = False
    """Can read the data folder, or has a key for all of that."""
    room: Room | None = None

    @property
    def scopes(self) -> frozenset[KeyScope]:
        return ALL_SCOPES if self.key is None else self.key.scopes

    @property
    def key_id(self) -> str:
        """As the ledger has it: "" without a key."""
        return "" if self.key is None else self.key.name


def visitor_of(connection: HTTPConnection) -> Visitor:
    """Who asks. Every route but the few public ones has one."""
    visitor: Visitor = connection.scope[VISITOR]
    return visitor
