"""What a request that names no temperature is sampled with: from setting to engine, over both wires."""

import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from chatd.cli.loading import load
from chatd.config import Settings, load_settings
from chatd.engine.messages import StepOutput
from chatd.ids import Rid
from chatd.server.service import ChatService, ServiceSettings
from chatd.store.prices import PriceBook
from chatd.store.store import Store
from tests.support.chat_lab import HandEngine, counter_ids, until
from tests.support.live_server import LiveServer, new_state, running

pytestmark = [pytest.mark.model, pytest.mark.timeout(150)]


@contextlib.asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[tuple[LiveServer, HandEngine]]:
    """The model as ``chatd serve`` loads it, under an engine that only notes what it is given."""
    loaded = load(settings, lambda out: None, lambda share, what: None)

    def post(out: StepOutput) -> None:
        service.on_step(out)

    engine, ids = HandEngine(post), counter_ids()
    store = await Store.open(settings.data_dir, prices=PriceBook(), clock=time.time, new_id=ids)
    service = ChatService(
        backend=dataclasses.replace(loaded.backend, engine=engine),
        store=store,
        settings=ServiceSettings(),
        clock=time.time,
        new_id=ids,
    )
    async with service.running(), running(new_state(store, service)) as server:
        yield server, engine
    await store.close()


async def ask_socket(server: LiveServer, engine: HandEngine, params: dict[str, object]) -> float:
    async with server.client() as client:
        created = await client.start("Hello", params=params)
        return temperature(engine, created.response_id)


async def ask_openai(server: LiveServer, engine: HandEngine, params: dict[str, object]) -> float:
    """The answer is awaited by nobody: the request ends with its connection."""
    body = {"model": "any", "messages": [{"role": "user", "content": "Hello"}], "stream": True, **params}
    known = set(engine.submitted)
    async with (
        httpx.AsyncClient(base_url=server.url, trust_env=False) as http,
        http.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        assert answer.status_code == 200
        await until(lambda: bool(set(engine.submitted) - known))
        (rid,) = set(engine.submitted) - known
        return temperature(engine, rid)


def temperature(engine: HandEngine, response_id: str) -> float:
    return next(s for s in engine.submitted.values() if s.rid == Rid(response_id)).params.temperature


@pytest.mark.parametrize(("configured", "wanted"), [({}, 0.3), ({"CHATD_TEMPERATURE": "1.25"}, 1.25)])
async def test_a_request_without_a_temperature_gets_the_servers(
    data_dir: Path, model_path: Path, configured: dict[str, str], wanted: float
) -> None:
    flags = {"data_dir": str(data_dir), "model": str(model_path), "kv_bytes": "16MiB"}
    async with serving(load_settings(flags, configured)) as (server, engine):
        for ask in (ask_socket, ask_openai):
            assert await ask(server, engine, {}) == wanted
            assert await ask(server, engine, {"temperature": None}) == wanted
            assert await ask(server, engine, {"temperature": 0.7}) == 0.7
            assert await ask(server, engine, {"temperature": 0}) == 0.0
