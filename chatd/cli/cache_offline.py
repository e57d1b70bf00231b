"""The cache's files, read and changed while no server has them."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import msgspec

from chatd.cache.block_tier import BlocksGone, Completion
from chatd.cache.disk.tier import DiskTier
from chatd.cli.disk_settings import disk_folder
from chatd.cli.held_folder import ask_store, held
from chatd.config import Settings
from chatd.engine.messages import EngineCounters, EngineState
from chatd.errors import NotFound
from chatd.ids import Namespace
from chatd.server.cache_stats import LOOKED_AT, choices_of, predictions_of
from chatd.store.records import rfc3339
from chatd.store.store import Store


@contextlib.contextmanager
def disk(settings: Settings) -> Iterator[DiskTier | None]:
    """The disk tier of a held folder; None if there is none."""
    folder = disk_folder(settings)
    if not folder.is_dir():
        yield None
        return
    tier = DiskTier.look(folder)
    try:
        yield tier
    finally:
        tier.close()


def stats(settings: Settings) -> dict[str, Any]:
    """As the server answers, with counters of an engine that does not run."""
    with held(settings):
        found = ask_store(settings, _ledger_stats)
        with disk(settings) as tier:
            seen = None if tier is None else _of_any_model(tier)
    counters = {"live": False, "counters": asdict(EngineCounters()), "state": asdict(EngineState())}
    return {**counters, "disk": seen, **found}


def _of_any_model(tier: DiskTier) -> dict[str, Any]:
    """Without a model there are no blocks of another."""
    seen = asdict(tier.stats())
    return seen | {"blocks": seen["blocks"] + seen["foreign_blocks"], "foreign_blocks": 0}


async def _ledger_stats(store: Store) -> dict[str, Any]:
    rows = await store.newest_xrays(LOOKED_AT)
    return {
        "causes": [asdict(one) for one in await store.cause_sums()],
        "choices": msgspec.to_builtins(choices_of(rows)),
        "predictions": msgspec.to_builtins(predictions_of(rows)),
        "pins": len(await store.pins()),
    }


def listing(settings: Settings) -> dict[str, Any]:
    """As the server answers; nothing is in memory."""
    with held(settings), disk(settings) as tier:
        seen = [] if tier is None else tier.ls()
        return {"paths": [], "disk": [asdict(one) | {"current": True} for one in seen]}


def pins(settings: Settings) -> dict[str, Any]:
    with held(settings):
        found = ask_store(settings, lambda store: store.pins())
    return {
        "pins": [
            {
                "name": pin.name,
                "namespace": pin.namespace,
                "what": pin.what,
                "tokens": len(pin.token_ids),
                "created_at": rfc3339(pin.created_at),
            }
            for pin in found
        ]
    }


def unpin(settings: Settings, name: str) -> None:
    """NotFound if there is no such pin."""
    with held(settings):
        ask_store(settings, lambda store: store.remove_pin(name))
        with disk(settings) as tier:
            if tier is not None:
                tier.unpin(name)


def clear(settings: Settings, namespace: str | None) -> dict[str, int]:
    """Remove records. NotFound for a namespace that has none."""
    with held(settings), disk(settings) as tier:
        if tier is None:
            return {"tokens": 0, "blocks": 0}
        if namespace is not None and namespace not in {one.namespace for one in tier.ls()}:
            raise NotFound(f"There is nothing of {namespace} on disk; `chatd cache ls` shows whose there is.")
        return {"tokens": 0, "blocks": _cleared(tier, None if namespace is None else Namespace(namespace))}


def _cleared(tier: DiskTier, namespace: Namespace | None) -> int:
    gone: list[int] = []
    done = threading.Event()

    def post(completion: Completion) -> None:
        if isinstance(completion, BlocksGone):
            gone.append(completion.blocks)
            done.set()

    tier.start(post)
    tier.clear(1, namespace)
    done.wait()
    return gone[0]
