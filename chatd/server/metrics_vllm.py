"""The same figures by the names that dashboards made for vLLM read (``--metrics-compat vllm``).

Only what chatd has the like of. Both spellings of what vLLM has renamed are there, as both are in use.
"""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from chatd.engine.messages import EngineCounters, EngineState
from chatd.server.figures import ResponseFigures
from chatd.server.histogram import Histogram

LABELS = ("model_name", "engine")

REASONS = {"stop": ("end", "stop"), "length": ("length",), "abort": ("cancelled",), "error": ("failed",)}
"""vLLM's reasons, with ours."""


class VllmMetrics(Collector):
    def __init__(
        self, counters: EngineCounters, state: EngineState, figures: ResponseFigures, model: str
    ) -> None:
        self._counters = counters
        self._state = state
        self._figures = figures
        self._labels = [model, "0"]

    def collect(self) -> Iterator[Metric]:
        yield from self._levels()
        yield from self._totals()
        yield from self._histograms()

    def _levels(self) -> Iterator[Metric]:
        state = self._state
        used = state.total_pages - state.free_pages - state.evictable_pages
        fill = used / state.total_pages if state.total_pages else 0.0
        yield self._gauge("num_requests_running", "Requests that are computed.", state.running)
        waiting = state.waiting + state.restoring
        yield self._gauge("num_requests_waiting", "Requests that wait.", waiting)
        for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc"):
            yield self._gauge(name, "Share of the KV pages that requests hold (1 is all).", fill)

    def _totals(self) -> Iterator[Metric]:
        counters, ended = self._counters, self._figures.ended
        for prefix in ("", "gpu_"):
            asked, hit = counters.prompt_tokens, counters.gpu_hit
            yield self._counter(f"{prefix}prefix_cache_queries", "Prompt tokens looked up.", asked)
            yield self._counter(f"{prefix}prefix_cache_hits", "Prompt tokens found in memory.", hit)
        yield self._counter("prompt_tokens", "Prompt tokens.", counters.prompt_tokens)
        yield self._counter("generation_tokens", "Output tokens.", counters.generated)
        yield self._counter("num_preemptions", "Requests put back for want of pages.", counters.preemptions)
        success = CounterMetricFamily(
            "vllm:request_success", "Requests by how they ended.", labels=[*LABELS, "finished_reason"]
        )
        for reason, ours in REASONS.items():
            success.add_metric([*self._labels, reason], sum(ended[one] for one in ours))
        yield success

    def _histograms(self) -> Iterator[Metric]:
        figures = self._figures
        yield self._histogram("time_to_first_token_seconds", tuple(figures.ttft.values()))
        for name in ("inter_token_latency_seconds", "time_per_output_token_seconds"):
            yield self._histogram(name, [figures.gap])
        yield self._histogram("e2e_request_latency_seconds", [figures.whole])
        yield self._histogram("request_queue_time_seconds", [figures.queue])
        yield self._histogram("request_prefill_time_seconds", [figures.prefill])
        yield self._histogram("request_decode_time_seconds", [figures.decode])
        yield self._histogram("request_prompt_tokens", [figures.prompt])
        yield self._histogram("request_generation_tokens", [figures.output])

    def _gauge(self, name: str, words: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", words, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, words: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", words, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def _histogram(self, name: str, parts: Sequence[Histogram]) -> Metric:
        """All ``parts`` have the same bounds."""
        family = HistogramMetricFamily(f"vllm:{name}", "As chatd measures it.", labels=LABELS)
        columns = zip(*(part.buckets() for part in parts), strict=True)
        buckets = [(column[0][0], sum(count for _, count in column)) for column in columns]
        family.add_metric(self._labels, buckets, sum(part.total for part in parts))
        return family
