"""Keyring: which secrets open what, in memory; what changes is in the database first.

    secret of a key   `chatd keys create`        shown once; Authorization: Bearer
    login token       `chatd keys login`         once, within `LOGIN_TOKEN_S`; the page makes a cookie of it
    cookie            POST /api/v1/login         until it expires, logs out, or the key is revoked
    ticket            POST /api/v1/ticket        once, within `TICKET_S`; opens a socket from another origin

Of all of them only hashes are kept. Without any key, and only if there never was one, the server is open.
"""

import hashlib
import secrets
from dataclasses import dataclass

from chatd.errors import Conflict, NotFound, Overloaded, Unauthorized
from chatd.ids import Namespace
from chatd.server.visitors import Visitor
from chatd.store.key_records import Key, KeyScope, Limits, Login
from chatd.store.key_store import KeyStore
from chatd.store.keys import PREFIX_CHARS, Sealed, new_secret

SECOND_US = 1_000_000
LOGIN_TOKEN_S = 600
TICKET_S = 30
COOKIE_S = 30 * 24 * 3600
MOST_PENDING = 10_000
"""Tickets and login tokens that were not used yet."""
TOKEN_BYTES = 32

_UNKNOWN = "The key is unknown or revoked."


@dataclass(frozen=True, slots=True)
class _Once:
    """Good for one visit until ``until``. ``origin`` None: from anywhere."""

    key_name: str | None
    until: int
    origin: str | None = None


class Keyring:
    """``local`` is the account of who needs no key. Call `load` before the first visitor comes."""

    def __init__(self, store: KeyStore, local: Namespace) -> None:
        self._store = store
        self._local = local
        self._by_prefix: dict[str, Sealed] = {}
        self._by_name: dict[str, Key] = {}
        self._logins: dict[bytes, Login] = {}
        self._tickets: dict[bytes, _Once] = {}
        self._tokens: dict[bytes, _Once] = {}

    async def load(self) -> None:
        """What the database has."""
        for sealed in await self._store.all():
            self._put(sealed)
        self._logins = {login.hash: login for login in await self._store.logins()}

    def _put(self, sealed: Sealed) -> None:
        self._by_prefix[sealed.key.prefix] = sealed
        self._by_name[sealed.key.name] = sealed.key

    @property
    def is_open(self) -> bool:
        """Nobody needs a key. Revoking the last one does not open the server again."""
        return not self._by_name

    @property
    def live_count(self) -> int:
        return sum(key.revoked_at is None for key in self._by_name.values())

    # --- who is it ---

    def local_visitor(self) -> Visitor:
        """This machine's own user."""
        return Visitor(self._local)

    def operator(self, login: bytes | None = None) -> Visitor:
        return Visitor(self._local, login=login, is_operator=True)

    def by_secret(self, secret: str) -> Visitor:
        """Unauthorized unless it is that of a live key."""
        sealed = self._by_prefix.get(secret[:PREFIX_CHARS])
        if sealed is None or not sealed.opens(secret):
            raise Unauthorized(_UNKNOWN)
        return self._of_key(sealed.key.name)

    def by_cookie(self, cookie: str) -> Visitor:
        """Unauthorized unless it is logged in."""
        login = self._logins.get(_hash(cookie))
        if login is None or login.expires_at <= self._store.now():
            raise Unauthorized("This page is not logged in any more.")
        return self._named(login.key_name, login.hash)

    def by_ticket(self, ticket: str, origin: str | None) -> Visitor:
        """Takes the ticket. Unauthorized unless it is good, and for a page of ``origin``."""
        once = self._take(self._tickets, ticket, "The ticket is unknown, was used, or is too old.")
        if once.origin is not None and once.origin != origin:
            raise Unauthorized("The ticket is for a page of another origin.")
        return self._named(once.key_name)

    def is_good(self, visitor: Visitor) -> bool:
        """Would it be let in now?"""
        if visitor.login is not None and visitor.login not in self._logins:
            return False
        if visitor.key is None:
            return self.is_open or visitor.is_operator
        return self._by_name[visitor.key.name].revoked_at is None

    def _named(self, name: str | None, login: bytes | None = None) -> Visitor:
        return self.operator(login) if name is None else self._of_key(name, login)

    def _of_key(self, name: str, login: bytes | None = None) -> Visitor:
        key = self._by_name[name]
        if key.revoked_at is not None:
            raise Unauthorized(_UNKNOWN)
        return Visitor(key.account, key, login, is_operator=KeyScope.ADMIN in key.scopes)

    # --- keys ---

    async def create(
        self, name: str, account: Namespace, scopes: frozenset[KeyScope], limits: Limits
    ) -> tuple[Key, str]:
        """The key and its secret, which nobody will ever see again. Conflict if the name was ever used."""
        secret = new_secret()
        key = await self._store.create(name, account, scopes, limits, secret)
        self._put(next(one for one in await self._store.all() if one.key.name == name))
        return key, secret

    async def revoke(self, name: str) -> Key:
        """From now on nobody comes in with it; who is in has to be shown out. NotFound if there is none."""
        key = await self._store.revoke(name)
        self._by_name[name] = key
        self._logins = {h: login for h, login in self._logins.items() if login.key_name != name}
        return key

    # --- what is good once ---

    def new_login_token(self, key_name: str | None) -> str:
        """For the page of a key, or of the operator. NotFound for a key that is unknown or revoked."""
        if key_name is not None:
            key = self._by_name.get(key_name)
            if key is None or key.revoked_at is not None:
                raise NotFound(
                    f"There is no key {key_name} that is not revoked; `chatd keys list` lists them."
                )
        elif self.is_open:
            raise Conflict("There are no keys, so nobody has to log in.")
        return self._issue(self._tokens, _Once(key_name, self._store.now() + LOGIN_TOKEN_S * SECOND_US))

    def new_ticket(self, visitor: Visitor, origin: str | None) -> str:
        """A socket's way in for a page of ``origin``. Conflict while there are no keys."""
        if self.is_open:
            raise Conflict("There are no keys: sockets need no ticket, and other origins are kept out.")
        until = self._store.now() + TICKET_S * SECOND_US
        return self._issue(self._tickets, _Once(visitor.key_id or None, until, origin))

    def _issue(self, pending: dict[bytes, _Once], once: _Once) -> str:
        now = self._store.now()
        for used in [h for h, one in pending.items() if one.until <= now]:
            del pending[used]
        if len(pending) >= MOST_PENDING:
            raise Overloaded("Too many tickets wait to be used. Try again later.")
        token = secrets.token_urlsafe(TOKEN_BYTES)
        pending[_hash(token)] = once
        return token

    def _take(self, pending: dict[bytes, _Once], token: str, why: str) -> _Once:
        once = pending.pop(_hash(token), None)
        if once is None or once.until <= self._store.now():
            raise Unauthorized(why)
        return once

    # --- pages ---

    async def log_in(self, *, secret: str | None = None, token: str | None = None) -> tuple[str, Visitor]:
        """A cookie for the page of a key (by its secret) or of whoever the login token is for.

        Unauthorized unless one of them is good.
        """
        if secret is not None:
            name = self.by_secret(secret).key_id or None
        else:
            why = "The login address was used, or is too old. `chatd keys login` makes another."
            name = self._take(self._tokens, token or "", why).key_name
        self._named(name)  # not revoked meanwhile
        cookie, now = secrets.token_urlsafe(TOKEN_BYTES), self._store.now()
        login = Login(_hash(cookie), name, now, now + COOKIE_S * SECOND_US)
        await self._store.add_login(login)
        self._logins = {h: one for h, one in self._logins.items() if one.expires_at > now}
        self._logins[login.hash] = login
        return cookie, self._named(name, login.hash)

    async def log_out(self, login: bytes) -> None:
        """No error if it was logged out already."""
        self._logins.pop(login, None)
        await self._store.remove_login(login)


def _hash(token: str) -> bytes:
    """Of 256 random bits."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
