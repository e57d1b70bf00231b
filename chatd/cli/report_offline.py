"""Checking a data folder that no server has open."""

from typing import Any

from chatd.cli.held_folder import ask_store, held
from chatd.config import Settings
from chatd.server.report_views import verdict_of
from chatd.store.store import Store


def verdict(settings: Settings) -> dict[str, Any]:
    """As ``GET /api/v1/report/verify`` answers. What a killed server left open is settled first."""
    with held(settings):
        return ask_store(settings, _settled_verdict)


async def _settled_verdict(store: Store) -> dict[str, Any]:
    """A ledger that is wrong is left as it is."""
    report, settled = await store.verify(), 0
    if report.ok and report.unsettled is not None:
        settled = await store.settle()
        report = await store.verify()
    return verdict_of(report, settled)
