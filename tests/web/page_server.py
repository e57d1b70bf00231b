"""The real application over a toy engine, on a thread of its own, for a browser to visit."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypeVar

from starlette.applications import Starlette
from starlette.routing import Mount

from chatd.engine.plan import StepPlan
from chatd.resources import web_dir
from chatd.server.app import ChatdServer, bind, create_app, page_url, server_config
from chatd.server.state import AppState, ServerSettings
from tests.support.chat_lab import CONTEXT_LENGTH, NUM_PAGES, PAGE_SIZE, ChatLab, chat_lab
from tests.support.engines import TURN_START, PagedRunner, ScriptRunner

ResultT = TypeVar("ResultT")

PATIENCE_S = 20


class Pace:
    """How many answer tokens the engine may still make (``runner.before_step = pace``); at first no limit."""

    def __init__(self) -> None:
        self._left: int | None = None
        self._changed = threading.Condition()

    def __call__(self, plan: StepPlan) -> None:
        sampled = sum(row.sample for row in plan.rows)
        with self._changed:
            if sampled and not self._changed.wait_for(lambda: self._left != 0, PATIENCE_S):
                raise TimeoutError("the test never let the engine go on")
            if self._left is not None:
                self._left = max(0, self._left - sampled)

    def allow(self, tokens: int) -> None:
        """Make this many tokens, then hold until told to go on."""
        self._set(tokens)

    def free(self) -> None:
        self._set(None)

    def _set(self, left: int | None) -> None:
        with self._changed:
            self._left = left
            self._changed.notify_all()


def replying(reply: Callable[[str], str], num_pages: int = NUM_PAGES) -> ScriptRunner:
    """A runner that answers the last user message with ``reply(message)``, a byte a token.

    A continued answer goes on where it was broken off.
    """

    def script(prompt: Any) -> bytes:
        turns = bytes(
            255 if token == TURN_START else token for token in prompt if token < 256 or token == TURN_START
        )
        *_, user, begun = [turn.decode() for turn in turns.split(b"\xff")]
        said = reply(user.removeprefix("user\n").removesuffix("\n"))
        return said.removeprefix(begun.removeprefix("assistant\n")).encode()

    return ScriptRunner(num_pages, PAGE_SIZE, script)


class PageServer:
    """Serves ``data_dir`` while the block runs. ``model_loaded`` False leaves the server loading.

    ``web`` is the built page, ``prefix`` the path it lives under. ``by_hand``: the engine says what
    the test tells it to (``lab.hand``).
    """

    def __init__(
        self,
        data_dir: Path,
        runner: PagedRunner,
        *,
        prefix: str = "",
        model_loaded: bool = True,
        web: Path | None = None,
        max_running: int = 16,
        step_tokens: int = 64,
        context_length: int = CONTEXT_LENGTH,
        by_hand: bool = False,
    ) -> None:
        self.pace = Pace()
        self.url = ""
        self.lab: ChatLab
        self.state: AppState
        runner.before_step = self.pace
        self._data_dir, self._runner = data_dir, runner
        self._max_running, self._step_tokens = max_running, step_tokens
        self._context_length, self._by_hand = context_length, by_hand
        self._prefix, self._model_loaded = prefix, model_loaded
        self._web = web or web_dir()
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="page-server", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._server: ChatdServer

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.pace.free()
        self.on_loop(self._server.stop)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server did not stop"

    def on_loop(self, action: Callable[[], ResultT]) -> ResultT:
        """Run ``action`` on the server's event loop and return its result."""

        async def run() -> ResultT:
            return action()

        return self.wait_for(run())

    def wait_for(self, coroutine: Coroutine[Any, Any, ResultT], patience_s: float = PATIENCE_S) -> ResultT:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(patience_s)

    def wait_for_a_stop(self) -> None:
        """Until some running answer was told to end. A page says that it stops before the server knows."""

        deadline = time.monotonic() + PATIENCE_S
        while not self.on_loop(self._is_stopping):
            assert time.monotonic() < deadline, "no stop came"

    def _is_stopping(self) -> bool:
        return any(live.cancelled for live in self.lab.service._hub.open_responses())

    def finish_loading(self) -> None:
        self.on_loop(lambda: self.state.model_ready(self.lab.service))

    def cut_connections(self) -> None:
        """As a lost network does: no close frame, no goodbye."""

        def cut() -> None:
            for protocol in list(self._server.server_state.connections):
                protocol.transport.abort()

        self.on_loop(cut)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            raise

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with chat_lab(
            self._data_dir,
            self._runner,
            by_hand=self._by_hand,
            max_running=self._max_running,
            step_tokens=self._step_tokens,
            context_length=self._context_length,
            num_pages=len(self._runner.kv),
        ) as self.lab:
            self.state = AppState(
                store=self.lab.store,
                settings=ServerSettings(port=0, web_dir=self._web, drain_timeout_s=0.2),
                version="test",
                currency="CNY",
                clock=time.monotonic,
                new_id=lambda: "session",
            )
            if self._model_loaded:
                self.state.model_ready(self.lab.service)
            app = create_app(self.state)
            if self._prefix:  # as behind a proxy that serves other things too
                app = Starlette(routes=[Mount(self._prefix, app)])
            listener = bind(self.state.settings)
            self.url = f"{page_url(listener, self.state.settings)}{self._prefix}/"
            config = server_config(app, self.state.settings)
            self._server = ChatdServer(config, self.state, lambda: self._started.set_result(None))
            await self._server.serve([listener])
