"""Checking a data folder that no server has open."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from chatd.cli.ids import new_id
from chatd.config import Settings
from chatd.data_dir import hold_data_dir
from chatd.errors import SetupError
from chatd.price_file import load_prices
from chatd.server.report_views import verdict_of
from chatd.store.store import Store

T = TypeVar("T")


def verdict(settings: Settings) -> dict[str, Any]:
    """As ``GET /api/v1/report/verify`` answers. What a killed server left open is settled first."""
    return _ask(settings, _settled_verdict)


async def _settled_verdict(store: Store) -> dict[str, Any]:
    """A ledger that is wrong is left as it is."""
    report, settled = await store.verify(), 0
    if report.ok and report.unsettled is not None:
        settled = await store.settle()
        report = await store.verify()
    return verdict_of(report, settled)


def _ask(settings: Settings, question: Callable[[Store], Awaitable[T]]) -> T:
    if not settings.data_dir.is_dir():
        raise SetupError(f"There is no data folder {settings.data_dir}; name the server's with --data-dir.")

    async def asked() -> T:
        prices = load_prices(settings.prices)
        store = await Store.open(settings.data_dir, prices=prices, clock=time.time, new_id=new_id)
        try:
            return await question(store)
        finally:
            await store.close()

    with hold_data_dir(settings.data_dir):
        return asyncio.run(asked())
