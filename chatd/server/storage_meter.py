"""StorageMeter: how much KV is kept for each namespace, and for how long.

Every `METER_S` it looks what lies on disk and what pins hold in memory. What was there at one look counts
until the next; the last stretch is added when the server stops, and is lost if it is killed. What lies on
disk while no server runs is not counted.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from chatd.errors import ChatdError
from chatd.ids import Namespace
from chatd.store.errors import StoreFailure
from chatd.store.store import Store
from chatd.store.usage import StorageUse

log = logging.getLogger(__name__)

METER_S = 60.0
DISK, PINNED = "disk", "pinned"

Levels = Mapping[Namespace, int]
"""Bytes."""


class StorageMeter:
    """``on_disk`` is called on a worker thread, ``pinned`` on the loop; ``monotonic`` gives seconds."""

    def __init__(
        self,
        store: Store,
        on_disk: Callable[[], Levels],
        pinned: Callable[[], Awaitable[Levels]],
        monotonic: Callable[[], float],
        every_s: float = METER_S,
    ) -> None:
        self._store = store
        self._on_disk = on_disk
        self._pinned = pinned
        self._monotonic = monotonic
        self._every_s = every_s
        self._seen: dict[tuple[Namespace, str], int] = {}
        self._since = monotonic()

    @property
    def levels(self) -> Mapping[tuple[Namespace, str], int]:
        """Bytes by namespace and tier, as of the last look."""
        return self._seen

    async def run(self) -> None:
        """Until cancelled; then `settle` adds the last stretch."""
        self._see(DISK, await asyncio.to_thread(self._on_disk))
        while True:
            await asyncio.sleep(self._every_s)
            await self.settle()
            await self.look()

    async def look(self) -> None:
        """What is there now. Where the engine does not say, pins count as at the last look."""
        self._see(DISK, await asyncio.to_thread(self._on_disk))
        try:
            self._see(PINNED, await self._pinned())
        except ChatdError as error:
            log.warning("pinned KV could not be counted: %s", error)

    async def settle(self) -> None:
        """Store what was kept since the last time. A store that fails is told of it the next time."""
        now, before = self._monotonic(), self._since
        elapsed_ms = round(1000 * (now - before))
        uses = [
            StorageUse(namespace, tier, nbytes * elapsed_ms // 1000)
            for (namespace, tier), nbytes in self._seen.items()
            if nbytes
        ]
        self._since = now  # first: a call that is cancelled has been stored all the same
        if not uses:
            return
        try:
            await self._store.add_storage(uses)
        except StoreFailure as error:
            self._since = before
            log.warning("what is kept could not be stored, trying again later: %s", error)

    def _see(self, tier: str, levels: Levels) -> None:
        others = {key: nbytes for key, nbytes in self._seen.items() if key[1] != tier}
        self._seen = others | {(namespace, tier): nbytes for namespace, nbytes in levels.items()}
