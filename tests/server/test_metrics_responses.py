"""Figures of responses and of HTTP, under our names and vLLM's; and the dashboard that reads them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from chatd.engine.messages import EngineCounters, EngineState
from chatd.ids import Rid
from chatd.resources import dashboard
from chatd.server.figures import HttpFigures, ResponseFigures
from chatd.server.histogram import SECONDS, Histogram
from chatd.server.metrics import EngineFigures
from chatd.server.metrics_responses import HttpMetrics, ResponseMetrics
from chatd.server.metrics_vllm import VllmMetrics
from tests.server.test_metrics import DISK, Samples, samples
from tests.support.chat_lab import chat_lab, saying
from tests.support.live_server import live_lab

VLLM_READ = {
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:e2e_request_latency_seconds_sum",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:time_per_output_token_seconds_bucket",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:gpu_cache_usage_perc",
    "vllm:kv_cache_usage_perc",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_generation_tokens_bucket",
    "vllm:request_success_total",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_decode_time_seconds_sum",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_queries_total",
    "vllm:num_preemptions_total",
}
"""What dashboards for vLLM have in their expressions, as far as chatd has the like."""


def scrape(*collectors: Any) -> Samples:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return samples(generate_latest(registry).decode())


def test_a_histogram() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.add(value)
    assert histogram.buckets() == [("0.1", 2.0), ("1", 3.0), ("+Inf", 4.0)]
    assert histogram.count == 4
    assert histogram.total == pytest.approx(7.65)
    assert SECONDS[0] == 0.001
    assert SECONDS[-1] >= 120


async def test_responses(data_dir: Path) -> None:
    async with chat_lab(data_dir, saying("four")) as lab:
        first = await lab.ask("hello there, server", params={"temperature": 0})
        await lab.ask("and?", conversation_id=first.started.conversation_id)
        await lab.ask("more", params={"max_tokens": 2})
        figures = lab.service.figures
    shown = scrape(ResponseMetrics(figures, "CNY"))
    assert shown["chatd_responses_total", (("finish_reason", "end"),)] == 2
    assert shown["chatd_responses_total", (("finish_reason", "length"),)] == 1
    assert shown["chatd_responses_total", (("finish_reason", "failed"),)] == 0
    by_cache = {
        name: shown["chatd_time_to_first_token_seconds_count", (("cache", name),)] for name in ("hit", "miss")
    }
    assert by_cache == {"hit": 1, "miss": 2}
    for name in ("queue", "prefill", "decode", "response"):
        assert shown[f"chatd_{name}_seconds_count", ()] == 3
    assert shown["chatd_inter_token_latency_seconds_count", ()] == 3 + 3 + 1
    assert shown["chatd_response_output_tokens_sum", ()] == 5 + 5 + 2
    assert shown["chatd_response_prompt_tokens_count", ()] == 3


async def test_money(data_dir: Path) -> None:
    async with chat_lab(data_dir, saying("four")) as lab:
        first = await lab.ask("hello there, server")
        second = await lab.ask("and?", conversation_id=first.started.conversation_id)
        figures = lab.service.figures
    costs = [first.record.cost, second.record.cost]
    currency = costs[0].currency
    shown = scrape(ResponseMetrics(figures, currency))
    billed, saved = (shown[f"chatd_{what}_total", (("currency", currency),)] for what in ("billed", "saved"))
    assert billed == pytest.approx(sum(cost.total_nano for cost in costs) / 1e9)
    assert saved == pytest.approx(sum(cost.saved_nano for cost in costs) / 1e9)
    assert saved > 0


async def test_requests_and_sockets(data_dir: Path) -> None:
    async with (
        live_lab(data_dir) as (server, lab),
        httpx.AsyncClient(base_url=server.url, trust_env=False) as http,
    ):
        for path in ("/healthz", "/api/v1/responses/x", "/api/v1/responses/y", "/no/such/thing", "/metrics"):
            await http.get(path)
        await http.request("BREW", "/healthz")
        async with server.client() as client:
            created = await client.start()
            lab.hand.say(Rid(created.response_id), "x")
            lab.hand.finish(Rid(created.response_id))
            await client.ending(created.response_id)
        text = (await http.get("/metrics")).text
    shown = samples(text)

    def count(method: str, route: str, status: int) -> float:
        labels = (("method", method), ("route", route), ("status", str(status)))
        return shown["chatd_http_requests_total", labels]

    assert count("GET", "/healthz", 200) == 1
    assert count("GET", "/api/v1/responses/{id}", 404) == 2
    assert count("GET", "other", 404) == 1
    assert count("other", "/healthz", 405) == 1
    assert shown["chatd_sockets_total", ()] == 1
    assert shown["chatd_inter_token_latency_seconds_count", ()] == 0
    assert not any(name.startswith("vllm:") for name, _ in shown)
    for secret in (created.response_id, created.conversation_id, "hello"):
        assert secret not in text


async def test_the_number_of_series_does_not_grow_with_use(data_dir: Path) -> None:
    async with chat_lab(data_dir, saying("ok")) as lab:
        await lab.ask("one")
        before = len(scrape(ResponseMetrics(lab.service.figures, "CNY")))
        for number in range(20):
            await lab.ask(f"question {number}")
        assert len(scrape(ResponseMetrics(lab.service.figures, "CNY"))) == before


def test_the_names_vllm_has() -> None:
    figures = ResponseFigures()
    figures.ttft["hit"].add(0.2)
    figures.ttft["miss"].add(2)
    figures.ended["end"], figures.ended["stop"], figures.ended["cancelled"] = 3, 2, 1
    counters = EngineCounters(prompt_tokens=100, gpu_hit=60, generated=50)
    state = EngineState(running=2, waiting=3, restoring=1, free_pages=10, evictable_pages=60, total_pages=100)
    shown = scrape(VllmMetrics(counters, state, figures, "toy"))
    assert {name for name, _ in shown} >= VLLM_READ
    labels = (("engine", "0"), ("model_name", "toy"))
    assert all(set(labels) <= set(others) for _, others in shown)
    assert shown["vllm:num_requests_waiting", labels] == 4
    assert shown["vllm:kv_cache_usage_perc", labels] == shown["vllm:gpu_cache_usage_perc", labels] == 0.3
    assert shown["vllm:time_to_first_token_seconds_count", labels] == 2
    assert shown["vllm:time_to_first_token_seconds_bucket", (*labels[:1], ("le", "0.25"), *labels[1:])] == 1
    success = {dict(at)["finished_reason"]: n for (name, at), n in shown.items() if "success_total" in name}
    assert success == {"stop": 5, "length": 0, "abort": 1, "error": 0}


async def test_vllm_names_when_asked_for(data_dir: Path) -> None:
    async with (
        live_lab(data_dir, metrics_compat="vllm") as (server, _),
        httpx.AsyncClient(base_url=server.url, trust_env=False) as http,
    ):
        text = (await http.get("/metrics")).text
    names = {family.name for family in text_string_to_metric_families(text)}
    assert "vllm:time_to_first_token_seconds" in names


# -- the dashboard


def everything() -> set[str]:
    """Every series there can be."""
    http = HttpFigures()
    http.requests["GET", "/", 200] = 1
    shown = scrape(
        EngineFigures(EngineCounters(), EngineState(), DISK),
        ResponseMetrics(ResponseFigures(), "CNY"),
        HttpMetrics(http),
    )
    return {name for name, _ in shown} | {"chatd_ready", "chatd_connections"}


def expressions(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name in ("expr", "definition"):
                yield value
            yield from expressions(value)
    elif isinstance(node, list):
        for one in node:
            yield from expressions(one)


def test_every_metric_of_the_dashboard_exists() -> None:
    found = {name for text in expressions(json.loads(dashboard())) for name in re.findall(r"chatd_\w+", text)}
    assert len(found) > 20
    assert found - everything() == set()


def test_the_dashboard_is_sound() -> None:
    board = json.loads(dashboard())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["targets"]
        for target in panel["targets"]:
            assert target["expr"].count("(") == target["expr"].count(")")
            assert target["expr"].count("{") == target["expr"].count("}")
    counters = re.compile(r"(?<!rate\()(?<!increase\()chatd_\w+_(?:total|bucket)\b")
    for text in expressions(board):
        assert not counters.search(text), f"a counter that is not a rate: {text}"
