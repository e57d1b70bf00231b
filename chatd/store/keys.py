"""Keys and logins, as functions of a connection.

Of a secret only a hash is kept, keyed with a salt of the key's own. A secret has 256 random bits, so nobody
can guess what the hash is of, and a slow hash would only slow down the server.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, select, update

from chatd.errors import Conflict, NotFound
from chatd.ids import Namespace
from chatd.store.key_records import Budget, Key, KeyScope, Limits, Login, Period
from chatd.store.schema import api_keys, logins

SECRET_BYTES = 32
SALT_BYTES = 32
LOOKUP_CHARS = 8
BRAND = "chatd-"
PREFIX_CHARS = len(BRAND) + LOOKUP_CHARS
"""What is kept of a secret in the clear. It is found by this, and known by it in lists."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A key with what its secret is checked by."""

    key: Key
    salt: bytes
    hash: bytes

    def opens(self, secret: str) -> bool:
        """Takes the same time whether it does or not."""
        return hmac.compare_digest(hash_of(secret, self.salt), self.hash)


def new_secret() -> str:
    """``chatd-``, 8 characters that are kept in the clear, and 256 bits that are not."""
    lookup = secrets.token_urlsafe(LOOKUP_CHARS)[:LOOKUP_CHARS]
    return f"{BRAND}{lookup}-{secrets.token_urlsafe(SECRET_BYTES)}"


def hash_of(secret: str, salt: bytes) -> bytes:
    return hashlib.blake2b(
        secret.encode("utf-8", "surrogatepass"), key=salt, digest_size=32, person=b"chatd-key"
    ).digest()


def create_key(
    conn: Connection,
    *,
    name: str,
    account: Namespace,
    scopes: frozenset[KeyScope],
    limits: Limits,
    secret: str,
    now: int,
) -> Key:
    """Conflict if the name was ever used: the ledger's rows speak of it."""
    if find_key(conn, name) is not None:
        raise Conflict(f"There is, or was, a key {name}: take another name.")
    salt, budget = secrets.token_bytes(SALT_BYTES), limits.budget
    row: dict[str, object] = {
        "name": name,
        "account": account,
        "prefix": secret[:PREFIX_CHARS],
        "salt": salt,
        "hash": hash_of(secret, salt),
        "scopes": " ".join(sorted(scopes)),
        "requests_per_min": limits.requests_per_min,
        "tokens_per_min": limits.tokens_per_min,
        "turns": limits.turns,
        "budget_nano": None if budget is None else budget.nano,
        "budget_period": None if budget is None else budget.period,
        "budget_currency": None if budget is None else budget.currency,
        "created_at": now,
    }
    conn.execute(api_keys.insert(), [row])
    return load_key(conn, name)


def find_key(conn: Connection, name: str) -> Key | None:
    row = conn.execute(select(api_keys).where(api_keys.c.name == name)).one_or_none()
    return None if row is None else _to_key(row)


def load_key(conn: Connection, name: str) -> Key:
    """NotFound if there is none of that name."""
    key = find_key(conn, name)
    if key is None:
        raise NotFound(f"There is no key {name}; `chatd keys list` lists them.")
    return key


def list_keys(conn: Connection) -> list[Sealed]:
    """All there ever were, the oldest first."""
    rows = conn.execute(select(api_keys).order_by(api_keys.c.created_at, api_keys.c.name))
    return [Sealed(_to_key(row), row.salt, row.hash) for row in rows]


def revoke_key(conn: Connection, name: str, *, now: int) -> Key:
    """And log out the pages that came in with it. Idempotent. NotFound if there is none."""
    load_key(conn, name)
    live = (api_keys.c.name == name) & api_keys.c.revoked_at.is_(None)
    conn.execute(update(api_keys).where(live).values(revoked_at=now))
    conn.execute(delete(logins).where(logins.c.key_name == name))
    return load_key(conn, name)


def _to_key(row: Row[Any]) -> Key:
    has_budget = row.budget_nano is not None
    budget = Budget(row.budget_nano, Period(row.budget_period), row.budget_currency) if has_budget else None
    return Key(
        name=row.name,
        account=Namespace(row.account),
        prefix=row.prefix,
        scopes=frozenset(map(KeyScope, row.scopes.split())),
        limits=Limits(row.requests_per_min, row.tokens_per_min, row.turns, budget),
        created_at=row.created_at,
        revoked_at=row.revoked_at,
    )


# --- pages that are logged in ---


def add_login(conn: Connection, login: Login) -> None:
    """Forgets those that have expired."""
    conn.execute(delete(logins).where(logins.c.expires_at <= login.created_at))
    row = {"hash": login.hash, "key_name": login.key_name}
    conn.execute(logins.insert(), [row | {"created_at": login.created_at, "expires_at": login.expires_at}])


def remove_login(conn: Connection, of: bytes) -> None:
    """No error if it is not there."""
    conn.execute(delete(logins).where(logins.c.hash == of))


def list_logins(conn: Connection) -> list[Login]:
    rows = conn.execute(select(logins))
    return [Login(row.hash, row.key_name, row.created_at, row.expires_at) for row in rows]
