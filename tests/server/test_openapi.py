"""/openapi.json: every route is in it, described by the types that go over the wire, and it is sound."""

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import schemathesis
from starlette.routing import WebSocketRoute

from chatd.errors import InvalidParameter
from chatd.server import params as rules
from chatd.server import reports_api
from chatd.server.app import create_app
from chatd.server.openapi import api_routes, document
from chatd.server.openapi_table import TABLE
from chatd.server.params import parse_params
from chatd.server.protocol import Usage
from chatd.store.prices import PriceBook
from chatd.store.reports import MAX_PAGE
from chatd.store.store import Store
from tests.support.chat_lab import counter_ids
from tests.support.live_server import bare_server, new_state


@pytest.fixture
async def routes(data_dir: Path) -> Any:
    store = await Store.open(data_dir, prices=PriceBook(), clock=lambda: 0.0, new_id=counter_ids())
    try:
        yield create_app(new_state(store)).routes
    finally:
        await store.close()


async def test_it_is_served_while_the_model_loads(data_dir: Path) -> None:
    async with (
        bare_server(data_dir) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False) as http,
    ):
        answer = await http.get("/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    found = answer.json()
    assert (found["openapi"], found["info"]["version"]) == ("3.1.0", "1.2.3")
    schemathesis.openapi.from_dict(found).validate()


async def test_a_stream_that_ends_with_a_word_says_so(routes: Any) -> None:
    paths = document(routes, "1")["paths"]
    ends = {}
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        content = paths[path]["post"]["responses"]["200"]["content"]
        data = content["text/event-stream"]["schema"]["properties"]["data"]
        ends[path] = {"const": "[DONE]"} in data.get("anyOf", ())
    assert list(ends.values()) == [True, True, False]


async def test_every_route_is_described_and_nothing_else(routes: Any) -> None:
    found = document(routes, "1")
    served = {(path, m.lower()) for path, r in api_routes(routes) for m in (r.methods or ()) if m != "HEAD"}
    assert {(path, method) for path, one in found["paths"].items() for method in one} == served
    endpoints = {route.endpoint for _, route in api_routes(routes)}
    undescribed = {path for path, route in api_routes(routes) if route.endpoint not in TABLE}
    assert not [path for path in undescribed if path.startswith("/v1/")]
    assert set(TABLE) - endpoints == set()
    for path, one in found["paths"].items():
        for method, operation in one.items():
            assert operation["summary"], (method, path)
            assert "4XX" in operation["responses"]
    sockets = [route.path for route in routes if isinstance(route, WebSocketRoute)]
    assert sockets == [found["x-chatd-websocket"]["path"]]


async def test_every_reference_leads_somewhere(routes: Any) -> None:
    found = document(routes, "1", "/chat")
    assert found["servers"] == [{"url": "/chat"}]
    components = found["components"]["schemas"]

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if "$ref" in node:
                assert node["$ref"].removeprefix("#/components/schemas/") in components
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(found)
    fields = {field.name for field in msgspec.structs.fields(Usage)}
    assert set(components["protocol.Usage"]["properties"]) == fields


async def test_what_reports_may_be_asked_for_is_described(routes: Any) -> None:
    described = {query.name: query.schema for query in TABLE[reports_api.report].query}
    assert set(described) == reports_api.PARAMS
    assert described["limit"]["maximum"] == MAX_PAGE
    answers = document(routes, "1")["paths"]["/api/v1/reports/storage"]["get"]["responses"]["200"]["content"]
    assert set(answers) == {"application/json", "text/csv"}


async def test_the_ranges_of_parameters_are_those_that_are_checked(routes: Any) -> None:
    """The ends of each range are taken and what lies beyond is not."""
    properties = document(routes, "1")["components"]["schemas"]["ChatRequest"]["properties"]
    for name in sorted(rules.NAMES):
        schema = next(one for one in properties[name]["anyOf"] if one.get("type") != "null")
        for end, beyond in (("minimum", -1), ("maximum", 1)):
            if end in schema:
                assert is_taken(name, schema[end])
                assert not is_taken(name, schema[end] + beyond)
        for value in schema.get("enum", ()):
            assert is_taken(name, value)
    text, texts, _ = properties["stop"]["anyOf"]
    assert is_taken("stop", ["x" * text["maxLength"]] * texts["maxItems"])
    assert not is_taken("stop", ["x"] * (texts["maxItems"] + 1))
    assert not is_taken("stop", "x" * (text["maxLength"] + 1))


def is_taken(name: str, value: Any) -> bool:
    try:
        parse_params({name: value}, vocab_size=2**40, new_seed=lambda: 1)
    except InvalidParameter:
        return False
    return True
