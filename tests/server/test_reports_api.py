"""Reports over HTTP: the figures of the store, one's own namespace alone, and mistakes named."""

import csv
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.applications import Starlette

from chatd.errors import ChatdError
from chatd.server.app import _chatd_error, _refused
from chatd.server.doorman import Doorman
from chatd.server.reports_api import KINDS, ROUTES
from chatd.server.state import AppState, ServerSettings
from chatd.server.usage_views import usage_of
from chatd.store.usage import Asked, Scope, StorageUse
from tests.store.scribe import NS, OTHER, opened
from tests.store.usage_fixture import many_turns


@pytest_asyncio.fixture
async def site(data_dir: Path) -> AsyncIterator[tuple[httpx.AsyncClient, AppState]]:
    import random

    async with opened(data_dir) as store:
        await many_turns(store, 40, random.Random(2))
        state = AppState(
            store, ServerSettings(), "0", "CNY", clock=lambda: 0.0, new_id=lambda: "x", namespace=NS
        )
        app = Starlette(routes=[ROUTES], exception_handlers={ChatdError: _chatd_error})
        app.state.chatd = state
        transport = httpx.ASGITransport(Doorman(app, state, _refused))
        async with httpx.AsyncClient(transport=transport, base_url="http://x/api/v1/reports") as client:
            yield client, state


Site = tuple[httpx.AsyncClient, AppState]


async def read(site: Site, path: str, **params: Any) -> dict[str, Any]:
    answer = await site[0].get(path, params=params)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


@pytest.mark.parametrize("kind", KINDS)
async def test_the_figures_are_the_stores(site: Site, kind: str) -> None:
    mine = Scope(namespace=NS)
    assert await read(site, kind) == usage_of(await site[1].store.usage_report(Asked(KINDS[kind], mine)))
    assert OTHER not in (await site[0].get(kind)).text


async def test_pages(site: Site) -> None:
    whole = await read(site, "sessions")
    rows: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while True:
        page = await read(site, "sessions", limit=1, **after)
        rows += page["rows"]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert rows == whole["rows"]
    assert len(rows) > 1


async def test_scopes_and_views(site: Site) -> None:
    session = (await read(site, "sessions"))["rows"][0]
    one = await read(site, "branches", session=session["session_id"], model="large")
    assert {row["session_id"] for row in one["rows"]} == {session["session_id"]}
    assert (await read(site, "days", since="2031-01-01"))["rows"] == []
    theirs = await read(site, "models", reprice="openai-like", what_if=["output=0", "gpu_hit=0"])
    assert theirs["totals"][0]["currency"] == "USD"
    cheaper = await read(site, "models", what_if="output=0,computed=0,gpu_hit=0,disk_hit=0")
    assert cheaper["totals"][0]["cost_nano"] == 0
    assert (await read(site, "storage"))["rows"] == []


async def test_kept_kv_by_day_as_a_file_too(site: Site) -> None:
    client, state = site
    await state.store.add_storage([StorageUse(NS, "disk", 2**30 * 3600)])
    priced = await read(site, "storage", what_if="storage=0.02")
    assert [(one["tier"], one["cost_nano"]) for one in priced["totals"]] == [("disk", 20_000_000)]
    assert "storage" in await read(site, "prices")
    answer = await client.get("storage?format=csv&what_if=storage=0.02")
    assert answer.headers["content-type"].startswith("text/csv")
    head, line = csv.reader(io.StringIO(answer.text.removeprefix("\ufeff")))
    assert dict(zip(head, line, strict=True)) == {k: str(v) for k, v in priced["rows"][0].items()}


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("days?since=yesterday", "since"),
        ("days?until=2026-13-01", "until"),
        ("days?limit=0", "limit"),
        ("days?limit=1001", "limit"),
        ("days?limit=x", "limit"),
        ("days?limit=1&limit=%F0%9F%8D%9E", "limit"),
        ("days?colour=red", "colour"),
        ("days?namespace=bob", "namespace"),
        ("days?after=x", "after"),
        ("sessions?after=x", "after"),
        ("days?reprice=/etc/passwd", "reprice"),
        ("days?what_if=output", "what_if"),
        ("days?what_if=output=NaN", "what_if"),
        ("days?what_if=output=1e99999", "what_if"),
        ("days?model=" + "x" * 600, "model"),
        ("storage?since=x", "since"),
        ("storage?format=xml", "format"),
    ],
)
async def test_mistakes_are_named(site: Site, path: str, param: str) -> None:
    answer = await site[0].get(path)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_an_unknown_report_is_not_found(site: Site) -> None:
    answer = await site[0].get("hats")
    assert (answer.status_code, "sessions" in answer.text) == (404, True)
