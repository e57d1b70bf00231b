"""Responses and HTTP for /metrics: how long things took, what they cost, how they ended."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from chatd.engine.messages import FinishReason
from chatd.server.figures import NANO, HttpFigures, ResponseFigures
from chatd.server.histogram import Histogram

DURATIONS = {
    "chatd_inter_token_latency_seconds": ("gap", "Between two tokens of one response."),
    "chatd_queue_seconds": ("queue", "From a request's hand-over to the engine until it left the queue."),
    "chatd_prefill_seconds": ("prefill", "From there to the first token, with what came from disk."),
    "chatd_decode_seconds": ("decode", "From the first token to the end."),
    "chatd_response_seconds": ("whole", "From a request to its end."),
}
SIZES = {
    "chatd_response_prompt_tokens": ("prompt", "Tokens of a prompt."),
    "chatd_response_output_tokens": ("output", "Tokens of an answer."),
}


class ResponseMetrics(Collector):
    """``currency`` is the one that is billed in now: it is there before the first bill."""

    def __init__(self, figures: ResponseFigures, currency: str) -> None:
        self._figures = figures
        self._currency = currency

    def collect(self) -> Iterator[Metric]:
        figures = self._figures
        ended = CounterMetricFamily(
            "chatd_responses", "Responses by how they ended.", labels=["finish_reason"]
        )
        for reason in FinishReason:
            ended.add_metric([reason.value], figures.ended[reason.value])
        yield ended
        yield self._money("chatd_billed", "What responses cost, in the currency's unit.", figures.billed)
        yield self._money(
            "chatd_saved",
            "What they would have cost more without a cache, in the currency's unit.",
            figures.saved,
        )
        yield labelled(
            "chatd_time_to_first_token_seconds",
            "From a request to its first token; a hit had at least half of its prompt reused.",
            "cache",
            figures.ttft,
        )
        for name, (attribute, words) in (DURATIONS | SIZES).items():
            yield plain(name, words, getattr(figures, attribute))

    def _money(self, name: str, words: str, nanos: Mapping[str, int]) -> Metric:
        money = CounterMetricFamily(name, words, labels=["currency"])
        for currency in sorted({*nanos, self._currency} - {""}):
            money.add_metric([currency], nanos.get(currency, 0) / NANO)
        return money


class HttpMetrics(Collector):
    """Routes are those of the server: a path that is none of them is `other`."""

    def __init__(self, figures: HttpFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "chatd_http_requests", "Requests that were answered.", labels=["method", "route", "status"]
        )
        for (method, route, status), count in sorted(self._figures.requests.items()):
            requests.add_metric([method, route, str(status)], count)
        yield requests
        yield CounterMetricFamily(
            "chatd_sockets", "WebSockets that were opened.", value=self._figures.sockets
        )


def plain(name: str, words: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(name, words, buckets=histogram.buckets(), sum_value=histogram.total)


def labelled(name: str, words: str, label: str, histograms: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, words, labels=[label])
    for value, histogram in histograms.items():
        family.add_metric([value], histogram.buckets(), histogram.total)
    return family
