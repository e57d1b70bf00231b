"""A data folder while a command has it and no server does."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from chatd.cli.data_reading import database_of
from chatd.cli.ids import new_id
from chatd.config import Settings
from chatd.data_dir import hold_data_dir
from chatd.price_file import load_prices
from chatd.store.store import Store

T = TypeVar("T")


@contextlib.contextmanager
def held(settings: Settings) -> Iterator[None]:
    """The data folder, which nobody else may have. `SetupError` if it is missing or in use."""
    database_of(settings)
    with hold_data_dir(settings.data_dir):
        yield


def ask_store(settings: Settings, question: Callable[[Store], Awaitable[T]]) -> T:
    """Of a held folder."""

    async def asked() -> T:
        prices = load_prices(settings.prices)
        store = await Store.open(settings.data_dir, prices=prices, clock=time.time, new_id=new_id)
        try:
            return await question(store)
        finally:
            await store.close()

    return asyncio.run(asked())
