"""KV that is kept, metered: bytes of each look until the next."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from chatd.cache.block_tier import BLOCK_LEN
from chatd.errors import NotReady
from chatd.ids import Namespace
from chatd.server.storage_meter import StorageMeter
from chatd.store.errors import StoreFailure
from chatd.store.store import Store
from chatd.store.usage import Scope, StorageUse
from tests.store.scribe import NS, OTHER, opened
from tests.support.chat_lab import ME, NUM_PAGES, PAGE_SIZE, chat_lab, until

GIB = 2**30


class Shelf:
    """What there is to be metered, and the clock."""

    def __init__(self) -> None:
        self.disk: dict[Namespace, int] = {}
        self.pins: dict[Namespace, int] = {}
        self.now = 1000.0
        self.answers = True

    def meter(self, store: Store) -> StorageMeter:
        return StorageMeter(store, lambda: self.disk, self.pinned, lambda: self.now)

    async def pinned(self) -> dict[Namespace, int]:
        if not self.answers:
            raise NotReady("it is in a long step")
        return self.pins


async def kept(store: Store) -> dict[tuple[Namespace, str], int]:
    rows = await store.storage_report(Scope())
    return {(row.namespace, row.tier): row.byte_seconds for row in rows}


async def test_what_was_there_at_a_look_counts_until_the_next(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        meter = (shelf := Shelf()).meter(store)
        shelf.disk = {NS: GIB, OTHER: 7}
        shelf.pins = {NS: GIB // 2}
        shelf.now += 500
        await meter.settle()
        assert await kept(store) == {}, "nobody has looked yet"
        await meter.look()
        shelf.now += 3600
        shelf.disk, shelf.pins = {NS: 2 * GIB}, {}
        await meter.settle()
        first = {(NS, "disk"): GIB * 3600, (OTHER, "disk"): 7 * 3600, (NS, "pinned"): GIB * 1800}
        assert await kept(store) == first
        await meter.look()
        shelf.now += 0.5
        await meter.settle()
        await meter.settle()
        assert await kept(store) == first | {(NS, "disk"): GIB * 3601}


async def test_an_engine_that_does_not_answer_leaves_pins_as_they_were(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        meter = (shelf := Shelf()).meter(store)
        shelf.disk, shelf.pins = {NS: 5}, {NS: 10}
        await meter.look()
        shelf.answers, shelf.disk = False, {}
        await meter.look()
        assert meter.levels == {(NS, "pinned"): 10}


class FullStore(Store):
    """Fails to take the first thing that is kept."""

    full = True

    async def add_storage(self, uses: Sequence[StorageUse]) -> None:
        if self.full:
            self.full = False
            raise StoreFailure("no space")
        await super().add_storage(uses)


async def test_a_store_that_fails_is_told_of_it_the_next_time(data_dir: Path) -> None:
    async with chat_lab(data_dir, store_type=FullStore, by_hand=True) as lab:
        store = lab.store
        meter = (shelf := Shelf()).meter(store)
        shelf.disk = {NS: 3}
        await meter.look()
        for _ in range(2):
            shelf.now += 10
            await meter.settle()
        assert await kept(store) == {(NS, "disk"): 60}


async def test_pins_take_the_pages_that_they_hold(data_dir: Path) -> None:
    async with chat_lab(data_dir) as lab:
        lab.service.backend = replace(lab.service.backend, kv_bytes=NUM_PAGES * 100)
        answer, cache = await lab.ask("x" * 300, params={"max_tokens": 4}), lab.service.cache
        pin = await cache.pin_conversation("p", answer.started.conversation_id, system_only=False)
        await lab.service.storage.look()
        whole_pages = len(pin.token_ids) // BLOCK_LEN * BLOCK_LEN // PAGE_SIZE
        assert lab.service.storage.levels == {(ME, "pinned"): whole_pages * 100}
        assert whole_pages >= 300 // BLOCK_LEN * BLOCK_LEN // PAGE_SIZE
        await cache.unpin("p")
        await lab.service.storage.look()
        assert lab.service.storage.levels == {}


async def test_a_server_that_stops_adds_the_last_stretch(data_dir: Path) -> None:
    async with chat_lab(data_dir, on_disk=lambda: {ME: 10**15}) as lab:
        await until(lambda: bool(lab.service.storage.levels))
        await asyncio.sleep(0.01)  # a clock that has not moved counts nothing
    async with opened(data_dir, prefix="later") as store:
        assert (await kept(store))[ME, "disk"] > 0
