"""/metrics: counters that are the engine's, levels that add up, no label that grows with use."""

from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from chatd.cache.disk.rates import Rate
from chatd.cache.disk.report import TierStats
from chatd.engine.messages import EngineCounters, EngineState
from chatd.ids import Rid
from chatd.server.metrics import EngineFigures
from tests.support.live_server import bare_server, live_lab

pytestmark = pytest.mark.usefixtures("blocked_loop")

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

COUNTERS = EngineCounters(
    steps=7,
    prompt_tokens=1000,
    gpu_hit=600,
    disk_hit=128,
    computed=272,
    disk_asked=400,
    evicted_pages=9,
    spilled_blocks=5,
    spilled_bytes=5000,
    spill_failures=1,
    restored_blocks=2,
    restored_bytes=2000,
    restore_failures=3,
    damaged_blocks=4,
    dropped_blocks=6,
)
STATE = EngineState(
    running=2, waiting=3, restoring=1, spill_queue=8, free_pages=10, evictable_pages=60, total_pages=100
)
DISK = TierStats(
    blocks=50,
    foreign_blocks=0,
    pinned_blocks=0,
    nbytes=250,
    quota_bytes=1000,
    segments=1,
    block_bytes=5,
    queued_reads=1,
    queued_writes=2,
    suspended="",
    fault="",
    read=Rate(),
    write=Rate(),
    events={"stored": 60, "evicted": 10},
    failures={"write ENOSPC": 2},
)


GPU, ON_DISK = (("tier", "gpu"),), (("tier", "disk"),)


def samples(text: str) -> Samples:
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def figures(disk: TierStats | None = DISK) -> Samples:
    registry = CollectorRegistry()
    registry.register(EngineFigures(COUNTERS, STATE, disk))
    return samples(generate_latest(registry).decode())


def test_figures() -> None:
    shown = figures()
    assert shown["chatd_cache_query_tokens_total", GPU] == 1000
    assert shown["chatd_cache_query_tokens_total", ON_DISK] == 400
    assert shown["chatd_cache_hit_tokens_total", GPU] == 600
    assert shown["chatd_cache_hit_tokens_total", ON_DISK] == 128
    assert shown["chatd_computed_tokens_total", ()] == 272
    assert shown["chatd_spilled_bytes_total", ()] == 5000
    assert shown["chatd_disk_failed_blocks_total", (("cause", "damaged"),)] == 4
    assert shown["chatd_spill_queue_blocks", ()] == 8
    pages = {name: shown["chatd_kv_pages", (("state", name),)] for name in ("free", "cached", "held")}
    assert pages == {"free": 10, "cached": 60, "held": 30}
    assert shown["chatd_kv_fill", GPU] == 0.9
    assert shown["chatd_kv_fill", ON_DISK] == 0.25
    assert shown["chatd_disk_errors_total", (("error", "write ENOSPC"),)] == 2


def test_without_a_tier_there_are_no_figures_of_it() -> None:
    names = {name for name, _ in figures(None)}
    assert not [
        name for name in names if name.startswith("chatd_disk_") and name != "chatd_disk_failed_blocks_total"
    ]
    empty = EngineFigures(EngineCounters(), replace(STATE, total_pages=0, free_pages=0), None)
    assert any(True for _ in empty.collect())


async def test_a_scrape(data_dir: Path) -> None:
    async with (
        live_lab(data_dir) as (server, lab),
        server.client() as client,
        httpx.AsyncClient(base_url=server.url, trust_env=False) as http,
    ):
        created = await client.start()
        lab.hand.say(Rid(created.response_id), "x")
        lab.hand.finish(Rid(created.response_id))
        await client.ending(created.response_id)
        answer = await http.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        shown = samples(answer.text)
        assert shown["chatd_generated_total", ()] == 1
        assert shown["chatd_ready", ()] == 1
        assert created.conversation_id not in answer.text


async def test_a_scrape_while_loading(data_dir: Path) -> None:
    async with bare_server(data_dir) as server:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
            shown = samples((await http.get("/metrics")).text)
        assert shown == {
            ("chatd_ready", ()): 0,
            ("chatd_connections", ()): 0,
            ("chatd_sockets_total", ()): 0,
        }
