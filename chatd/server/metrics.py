"""/metrics: what Prometheus scrapes. Counters are the engine's own totals, read when somebody asks.

Never a label per conversation, account or key: the number of series must not grow with use.
"""

from collections.abc import Iterator

from anyio import to_thread
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatd.cache.disk.report import TierStats
from chatd.engine.messages import EngineCounters, EngineState
from chatd.server.metrics_responses import HttpMetrics, ResponseMetrics
from chatd.server.metrics_vllm import VllmMetrics
from chatd.server.state import AppState

COUNTED = {
    "steps": "Forward passes.",
    "generated": "Output tokens.",
    "preemptions": "Requests put back because pages ran out.",
    "recomputed": "Tokens computed again after a preemption.",
    "evicted_pages": "Pages of KV that made room for others.",
    "spilled_blocks": "64-token blocks written to disk.",
    "spilled_bytes": "Bytes of KV written to disk.",
    "restored_blocks": "64-token blocks that came back from disk.",
    "restored_bytes": "Bytes of KV that came back from disk.",
}
"""Counters of the engine that have no label, with what they count."""


class EngineFigures(Collector):
    """The figures of one moment."""

    def __init__(self, counters: EngineCounters, state: EngineState, disk: TierStats | None) -> None:
        self._counters = counters
        self._state = state
        self._disk = disk

    def collect(self) -> Iterator[Metric]:
        yield from self._tokens()
        for name, words in COUNTED.items():
            yield CounterMetricFamily(f"chatd_{name}", words, value=getattr(self._counters, name))
        yield self._failures()
        yield from self._levels()
        if self._disk is not None:
            yield from _disk_levels(self._disk)

    def _tokens(self) -> Iterator[Metric]:
        counters = self._counters
        queries = CounterMetricFamily(
            "chatd_cache_query_tokens", "Prompt tokens each tier was asked for.", labels=["tier"]
        )
        queries.add_metric(["gpu"], counters.prompt_tokens)
        queries.add_metric(["disk"], counters.disk_asked)
        hits = CounterMetricFamily(
            "chatd_cache_hit_tokens", "Prompt tokens whose KV each tier had.", labels=["tier"]
        )
        hits.add_metric(["gpu"], counters.gpu_hit)
        hits.add_metric(["disk"], counters.disk_hit)
        yield queries
        yield hits
        sources = CounterMetricFamily(
            "chatd_prompt_tokens", "Prompt tokens by where their KV came from.", labels=["source"]
        )
        for source in ("gpu_hit", "disk_hit", "computed"):
            sources.add_metric([source], getattr(counters, source))
        yield sources
        yield CounterMetricFamily(
            "chatd_computed_tokens", "Prompt tokens that had to be computed.", value=counters.computed
        )

    def _failures(self) -> Metric:
        counters = self._counters
        failures = CounterMetricFamily(
            "chatd_disk_failed_blocks", "Blocks that could not be kept or used.", labels=["cause"]
        )
        failures.add_metric(["spill"], counters.spill_failures)
        failures.add_metric(["restore"], counters.restore_failures)
        failures.add_metric(["damaged"], counters.damaged_blocks)
        failures.add_metric(["dropped"], counters.dropped_blocks)
        return failures

    def _levels(self) -> Iterator[Metric]:
        state = self._state
        requests = GaugeMetricFamily("chatd_requests", "Requests by what they do.", labels=["state"])
        for name in ("running", "waiting", "restoring"):
            requests.add_metric([name], getattr(state, name))
        yield requests
        yield GaugeMetricFamily(
            "chatd_spill_queue_blocks", "Blocks that wait to be written.", value=state.spill_queue
        )
        pages = GaugeMetricFamily("chatd_kv_pages", "Pages of KV by what holds them.", labels=["state"])
        pages.add_metric(["free"], state.free_pages)
        pages.add_metric(["cached"], state.evictable_pages)
        pages.add_metric(["held"], state.total_pages - state.free_pages - state.evictable_pages)
        yield pages
        fill = GaugeMetricFamily("chatd_kv_fill", "Share of a tier's room that is taken.", labels=["tier"])
        fill.add_metric(["gpu"], _share(state.total_pages - state.free_pages, state.total_pages))
        if self._disk is not None:
            fill.add_metric(["disk"], _share(self._disk.nbytes, self._disk.quota_bytes))
        yield fill


def _disk_levels(disk: TierStats) -> Iterator[Metric]:
    yield GaugeMetricFamily("chatd_disk_bytes", "Bytes that KV takes on disk.", value=disk.nbytes)
    yield GaugeMetricFamily("chatd_disk_quota_bytes", "Bytes that it may take.", value=disk.quota_bytes)
    yield GaugeMetricFamily("chatd_disk_blocks", "Blocks on disk that can be hit.", value=disk.blocks)
    queue = GaugeMetricFamily("chatd_disk_queue", "Jobs that wait for the disk.", labels=["kind"])
    queue.add_metric(["read"], disk.queued_reads)
    queue.add_metric(["write"], disk.queued_writes)
    yield queue
    events = CounterMetricFamily("chatd_disk_records", "What became of records on disk.", labels=["event"])
    for name, count in sorted(disk.events.items()):
        events.add_metric([name], count)
    yield events
    errors = CounterMetricFamily("chatd_disk_errors", "Errors of the disk.", labels=["error"])
    for name, count in sorted(disk.failures.items()):
        errors.add_metric([name], count)
    yield errors


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


async def metrics(request: Request) -> Response:
    """Figures for Prometheus. While the model loads only those that need no engine."""
    state: AppState = request.app.state.chatd
    registry = CollectorRegistry()
    registry.register(_Ready(state))
    registry.register(HttpMetrics(state.http))
    if (service := state.service) is not None:
        disk = None if state.disk is None else await to_thread.run_sync(state.disk.stats)
        counters, levels, figures = service.counters, service.engine_state, service.figures
        registry.register(EngineFigures(counters, levels, disk))
        registry.register(ResponseMetrics(figures, state.currency))
        if state.settings.metrics_compat == "vllm":
            registry.register(VllmMetrics(counters, levels, figures, service.backend.model_name))
    headers = {"cache-control": "no-store"}
    return Response(generate_latest(registry), headers=headers, media_type=CONTENT_TYPE_LATEST)


class _Ready(Collector):
    def __init__(self, state: AppState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        phase = self._state.phase.value
        yield GaugeMetricFamily("chatd_ready", "1 if requests are taken.", value=float(phase == "ready"))
        connections = len(self._state.connections)
        yield GaugeMetricFamily("chatd_connections", "Open WebSockets.", value=connections)


ROUTE = Route("/metrics", metrics, methods=["GET"])
