"""A chat service behind its OpenAI endpoint on a loopback port, with the official client and a plain one."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from openai import AsyncOpenAI
from starlette.types import ASGIApp

from chatd.server.app import bind, create_app, server_config
from chatd.server.state import AppState, ServerSettings
from tests.support.chat_lab import ME, ChatLab, chat_lab, until
from tests.support.engines import PagedRunner

HI = [{"role": "user", "content": "hi"}]


@dataclass(frozen=True)
class Site:
    """A served lab, an OpenAI client of it, and a plain HTTP client."""

    lab: ChatLab
    url: str
    ai: AsyncOpenAI
    http: httpx.AsyncClient

    async def post(self, **body: Any) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json={"messages": HI, **body})

    async def chat(self, messages: list[dict[str, str]], **given: Any) -> Any:
        """A greedy plain completion."""
        return await self.ai.chat.completions.create(
            model="any",
            messages=messages,
            temperature=0,
            **given,
        )


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, settings: ServerSettings) -> AsyncIterator[str]:
    """``app`` on a free port of the loopback; its URL."""
    listener = bind(settings)
    server = uvicorn.Server(server_config(app, settings))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server.serve([listener]))
    await until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def site_of(
    data_dir: Path,
    runner: PagedRunner | None = None,
    wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    **lab_options: Any,
) -> AsyncIterator[Site]:
    settings = ServerSettings(port=0)
    numbers = itertools.count()
    async with chat_lab(data_dir, runner, **lab_options) as lab:
        state = AppState(
            store=lab.store,
            settings=settings,
            version="test",
            currency="CNY",
            clock=time.monotonic,
            new_id=lambda: f"s{next(numbers)}",
            namespace=ME,
            service=lab.service,
        )
        async with (
            serving(wrap(create_app(state)), settings) as url,
            httpx.AsyncClient(base_url=url, timeout=15) as http,
            AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as ai,
        ):
            yield Site(lab, url, ai, http)
