"""Forgetter: takes the KV of deleted conversations out of every tier.

    store.delete, store.prune -> purges (same transaction) -> Forget -> CacheDone -> purged

A purge is on file until the engine has carried it out, so a crash in between loses none.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Sequence

from chatd.engine.messages import Forget
from chatd.errors import NotReady
from chatd.ids import Namespace
from chatd.server.engine_calls import EngineCalls
from chatd.store.errors import StoreFailure
from chatd.store.records import Purge
from chatd.store.store import Store

log = logging.getLogger(__name__)

LOOK_S = 60.0
"""Between two looks when nobody says that there is something: hidden histories go by themselves."""
STEP = 50
"""Paths in one command."""


class Forgetter:
    def __init__(self, store: Store, calls: EngineCalls) -> None:
        self._store = store
        self._calls = calls
        self._wanted = asyncio.Event()

    def wake(self) -> None:
        """Something was deleted."""
        self._wanted.set()

    async def run(self) -> None:
        """Until cancelled; what is not done then is done after the next start."""
        while True:
            self._wanted.clear()
            try:
                await self._forget_all()
            except (StoreFailure, NotReady) as error:
                log.warning("KV of deleted conversations is still there, trying again later: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wanted.wait()

    async def _forget_all(self) -> None:
        while rows := await self._store.purges(STEP):
            by_owner: dict[Namespace, list[Purge]] = defaultdict(list)
            for row in rows:
                by_owner[row.namespace].append(row)
            for namespace, theirs in by_owner.items():
                await self._forget(namespace, theirs)

    async def _forget(self, namespace: Namespace, rows: Sequence[Purge]) -> None:
        paths = tuple(row.token_ids for row in rows)
        await self._calls.done(Forget(self._calls.new_rid(), namespace, paths))
        await self._store.purged([row.seq for row in rows])
