"""A server with keys, and who comes with them."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from chatd.ids import Namespace
from chatd.store.key_records import KeyScope, Limits
from tests.support.live_server import Client, LiveServer

CHAT = (KeyScope.CHAT,)


@dataclass(frozen=True)
class Caller:
    """Whoever has the key ``name``."""

    server: LiveServer
    name: str
    secret: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.secret}"}

    @contextlib.asynccontextmanager
    async def http(self) -> AsyncIterator[httpx.AsyncClient]:
        async with httpx.AsyncClient(
            base_url=self.server.url, headers=self.headers, trust_env=False
        ) as client:
            yield client

    @contextlib.asynccontextmanager
    async def socket(self, **options: Any) -> AsyncIterator[Client]:
        async with self.server.client(additional_headers=self.headers, **options) as client:
            yield client


async def caller(
    server: LiveServer,
    name: str,
    account: str | None = None,
    scopes: Sequence[KeyScope] = CHAT,
    **limits: Any,
) -> Caller:
    """Makes a key, as the operator's command does."""
    keys = server.state.keys
    _, secret = await keys.create(name, Namespace(account or name), frozenset(scopes), Limits(**limits))
    server.state.show_out()
    return Caller(server, name, secret)
