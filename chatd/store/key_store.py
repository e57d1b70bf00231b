"""KeyStore: keys and logins of one database, behind the store's writer and readers."""

from collections.abc import Callable, Sequence

from chatd.ids import Namespace
from chatd.store import keys
from chatd.store.key_limits import use_of
from chatd.store.key_records import Key, KeyScope, KeyUse, Limits, Login
from chatd.store.keys import Sealed
from chatd.store.readers import Readers
from chatd.store.writer import Writer


class KeyStore:
    """``now`` gives Unix microseconds. What cancelling leaves behind: see `chatd.store.store`."""

    def __init__(self, writer: Writer, readers: Readers, now: Callable[[], int]) -> None:
        self._writer = writer
        self._readers = readers
        self.now = now

    async def create(
        self, name: str, account: Namespace, scopes: frozenset[KeyScope], limits: Limits, secret: str
    ) -> Key:
        """Conflict if the name was ever used."""
        now = self.now()
        return await self._writer.run(
            lambda conn: keys.create_key(
                conn, name=name, account=account, scopes=scopes, limits=limits, secret=secret, now=now
            )
        )

    async def all(self) -> list[Sealed]:
        """The revoked ones too, the oldest first."""
        return await self._readers.run(keys.list_keys)

    async def uses(self) -> list[tuple[Key, KeyUse]]:
        """Every key with what counts against its limits now."""
        now = self.now()
        return await self._readers.run(
            lambda conn: [(one.key, use_of(conn, one.key, now=now)) for one in keys.list_keys(conn)]
        )

    async def revoke(self, name: str) -> Key:
        """And its logins. NotFound if there is none of that name."""
        now = self.now()
        return await self._writer.run(lambda conn: keys.revoke_key(conn, name, now=now))

    async def add_login(self, login: Login) -> None:
        await self._writer.run(lambda conn: keys.add_login(conn, login))

    async def remove_login(self, of: bytes) -> None:
        await self._writer.run(lambda conn: keys.remove_login(conn, of))

    async def logins(self) -> Sequence[Login]:
        """Expired ones may be among them."""
        return await self._readers.run(keys.list_logins)
