"""The application as a whole: page, headers, errors, health, and how the server ends."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from chatd.engine.messages import FinishReason
from chatd.errors import SetupError
from chatd.ids import ResponseId, Rid
from chatd.server import protocol as wire
from chatd.server.app import bind, create_app, ending_signals, page_url, server_config
from chatd.server.state import ServerSettings
from chatd.server.transport import SocketProtocol
from chatd.store.prices import PriceBook
from chatd.store.records import ResponseStatus
from chatd.store.store import Store
from tests.support.chat_lab import ME, counter_ids, until
from tests.support.engines import ChecksumRunner, Gate
from tests.support.live_server import Client, LiveServer, bare_server, live_lab, new_state

pytestmark = pytest.mark.usefixtures("blocked_loop")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def web_dir(tmp_path: Path) -> Path:
    """A page as Vite builds it."""
    folder = tmp_path / "dist"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><title>chat</title>", "utf-8")
    (folder / "favicon.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>", "utf-8")
    (folder / "assets" / "index-BfX3k2.js").write_text("export {}", "utf-8")
    (tmp_path / "secret.txt").write_text("secret", "utf-8")
    return folder


@contextlib.asynccontextmanager
async def http_of(server: LiveServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
        yield http


# --- page, headers, errors ------------------------------------------------------------------------


async def test_the_page_and_how_long_it_is_kept(data_dir: Path, web_dir: Path) -> None:
    async with bare_server(data_dir, web_dir=web_dir) as server, http_of(server) as http:
        page = await http.get("/")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert page.headers["cache-control"] == "no-cache"
        script = await http.get("/assets/index-BfX3k2.js")
        assert script.headers["content-type"].startswith("text/javascript")
        assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert (await http.get("/favicon.svg")).headers["cache-control"] == "no-cache"
        again = await http.get("/", headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert (await http.head("/")).status_code == 200


async def test_v1_nothing_outside_the_page_is_served(data_dir: Path, web_dir: Path) -> None:
    async with bare_server(data_dir, web_dir=web_dir) as server, http_of(server) as http:
        (web_dir / "link").symlink_to(web_dir.parent / "secret.txt")
        for path in (
            "../secret.txt", "%2e%2e/secret.txt", "..%2fsecret.txt", "assets/..%2f..%2fsecret.txt", "nope",
            "%5c..%5csecret.txt", "a%00b", "x" * 300, "link", "//etc/passwd", "assets/",
        ):  # fmt: skip
            answer = await http.get(httpx.URL(f"{server.url}/{path}"))
            assert answer.status_code == 404, path
            assert b"secret" not in answer.content


async def test_a_page_that_was_not_built_says_so(data_dir: Path) -> None:
    async with bare_server(data_dir) as server, http_of(server) as http:
        page = await http.get("/")
        assert (page.status_code, "was not built" in page.text) == (503, True)
        assert page.headers["content-type"].startswith("text/html")


async def _fail(request: Request) -> Response:
    raise ZeroDivisionError("a bug")


async def test_r3_headers_on_every_page_and_error_page(data_dir: Path, web_dir: Path) -> None:
    async with bare_server(data_dir, web_dir=web_dir) as server, http_of(server) as http:
        server.server.config.app.routes.insert(0, Route("/fail", _fail))  # type: ignore[union-attr]
        asked = [
            (200, await http.get("/")),
            (200, await http.get("/assets/index-BfX3k2.js")),
            (200, await http.get("/healthz")),
            (503, await http.get("/readyz")),
            (200, await http.get("/api/v1/conversations")),
            (404, await http.get("/nope")),
            (404, await http.get("/api/v1/nope")),
            (404, await http.get("/v1/nope")),
            (405, await http.put("/api/v1/status")),
            (405, await http.post("/")),
            (400, await http.post("/api/v1/conversations", content=b"{")),
            (403, await http.post("/api/v1/conversations", headers={"origin": "http://evil.example"})),
            (421, await http.get("/", headers={"host": "evil.example"})),
            (500, await http.get("/fail")),
        ]
        for status, answer in asked:
            assert answer.status_code == status, answer.url
            policy = answer.headers["content-security-policy"]
            assert "unsafe-inline" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert "server" not in answer.headers
            if status >= 400 and answer.url.path != "/readyz":
                assert answer.json()["error"]["message"]
                assert "ZeroDivisionError" not in answer.text


async def test_errors_under_v1_are_in_openais_shape(data_dir: Path) -> None:
    async with bare_server(data_dir) as server, http_of(server) as http:
        for answer in (await http.get("/v1/nope"), await http.put("/v1/models")):
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_behind_a_path_prefix(data_dir: Path, web_dir: Path) -> None:
    async with bare_server(data_dir, web_dir=web_dir, root_path="/chat") as server, http_of(server) as http:
        assert (await http.get("/")).status_code == 200  # the proxy has cut the prefix off
        assert (await http.get("/assets/index-BfX3k2.js")).status_code == 200
        assert (await http.get("/api/v1/conversations")).status_code == 200
        assert "type" in (await http.get("/v1/nope")).json()["error"]
        async with server.client() as client:
            await client.send(wire.Ping())
            assert await client.receive() == wire.Pong()


# --- health ---------------------------------------------------------------------------------------


async def test_readiness_while_the_model_loads(data_dir: Path) -> None:
    async with bare_server(data_dir) as server, http_of(server) as http:
        assert (await http.get("/healthz")).status_code == 200
        server.state.progress, server.state.loading = 0.25, "reading weights"
        ready = await http.get("/readyz")
        assert ready.status_code == 503
        assert ready.json() == {"status": "loading", "progress": 0.25, "what": "reading weights"}
        answer = await http.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
        assert answer.json()["error"]["message"] == "the model is loading, 25 %"


async def test_d6_readiness_knows_a_stalled_engine_and_a_recovered_one(data_dir: Path) -> None:
    runner, gate = ChecksumRunner(1024, 16), Gate()
    runner.before_step = gate
    async with (
        live_lab(data_dir, lab={"runner": runner}, stall_s=0.2) as (server, _),
        http_of(server) as http,
        server.client() as client,
    ):
        assert (await http.get("/readyz")).json()["status"] == "ready"
        created = await client.start(params={"max_tokens": 4})
        while (ready := await http.get("/readyz")).status_code == 200:
            pass
        assert ready.json()["status"] == "stalled"
        assert (await http.get("/healthz")).status_code == 200
        gate.open()
        await client.ending(created.response_id)
        while (await http.get("/readyz")).status_code != 200:  # the step under way ends first
            pass


# --- the server -----------------------------------------------------------------------------------


async def test_the_server_is_configured_as_the_design_says(data_dir: Path) -> None:
    store = await Store.open(data_dir, prices=PriceBook(), clock=time.time, new_id=counter_ids())
    state = new_state(store, ping_interval_s=7.0, ping_timeout_s=9.0)
    config = server_config(create_app(state), state.settings)
    await store.close()
    assert config.ws is SocketProtocol
    assert not config.ws_per_message_deflate
    assert (config.ws_ping_interval, config.ws_ping_timeout) == (7.0, 9.0)
    assert config.timeout_graceful_shutdown is not None
    assert not config.server_header
    assert config.ws_max_size > wire.FRAME_LIMITS.max_bytes


def test_a_taken_port_is_a_clear_error() -> None:
    with contextlib.closing(bind(ServerSettings(port=0))) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        assert page_url(taken, ServerSettings(port=0, root_path="/chat")) == f"http://127.0.0.1:{port}"
        with pytest.raises(SetupError, match=f"127.0.0.1:{port}.*another server.*--port"):
            bind(ServerSettings(port=port))


@pytest.mark.parametrize(
    ("host", "why"), [("no-such-host.invalid", "has that name"), ("192.0.2.1", "has no such address")]
)
def test_an_address_that_is_not_ours_is_not_called_taken(host: str, why: str) -> None:
    with pytest.raises(SetupError, match=f"{host}.*{why}.*--host") as caught:
        bind(ServerSettings(host=host))
    assert "another server" not in caught.value.message


@dataclass
class Listener:
    """A client that reads until it is closed, and what it heard."""

    client: Client
    events: list[wire.ServerEvent]
    code: int = 0

    async def read_all(self) -> None:
        try:
            while True:
                self.events.append(await self.client.receive())
        except ConnectionClosed as closed:
            self.code = closed.rcvd.code if closed.rcvd is not None else 0


async def test_o3_shutdown_under_load(data_dir: Path) -> None:
    """100 sockets, 10 answers: 5 end in time, 5 are cancelled; each socket hears all of it, then 1012."""
    async with contextlib.AsyncExitStack() as stack:
        server, lab = await stack.enter_async_context(live_lab(data_dir, drain_timeout_s=0.5))
        clients = [await stack.enter_async_context(server.client()) for _ in range(100)]
        created = [await client.start(f"question {n}") for n, client in enumerate(clients[:10])]
        for one in created:
            lab.hand.say(Rid(one.response_id), "some ", "text")
        listeners = [Listener(client, []) for client in clients]
        async with asyncio.TaskGroup() as tasks:
            for listener in listeners:
                tasks.create_task(listener.read_all())
            began = time.monotonic()
            server.server.stop()
            async with http_of(server) as http:
                await until(lambda: server.state.draining)
                with pytest.raises(httpx.ConnectError):
                    await http.get("/healthz")
            for one in created[:5]:
                lab.hand.finish(Rid(one.response_id), FinishReason.END)
        assert time.monotonic() - began < 15
        for n, listener in enumerate(listeners):
            assert listener.code == wire.CloseCode.RESTART
            assert wire.ServerDraining(0.5) in listener.events
            kinds = [type(event) for event in listener.events if isinstance(event, wire.Ending)]
            assert kinds == (
                [wire.ResponseCompleted] if n < 5 else [wire.ResponseCancelled] if n < 10 else []
            )
        for n, one in enumerate(created):
            record = await lab.record(ResponseId(one.response_id))
            assert record.status is (ResponseStatus.COMPLETED if n < 5 else ResponseStatus.CANCELLED)
            assert record.output_tokens == 2


async def test_o3_what_is_new_is_refused_while_it_drains(data_dir: Path) -> None:
    async with live_lab(data_dir, drain_timeout_s=5) as (server, lab), server.client() as client:
        created = await client.start("still running")
        server.server.stop()
        assert await client.until(wire.ServerDraining) == wire.ServerDraining(5)
        await client.send(wire.ResponseCreate("k2", "one more"))
        assert (await client.until(wire.Error)).code == "draining"
        lab.hand.say(Rid(created.response_id), "done")
        lab.hand.finish(Rid(created.response_id), FinishReason.END)
        assert isinstance(await client.ending(created.response_id), wire.ResponseCompleted)
        with pytest.raises(ConnectionClosed) as closed:
            await client.until(wire.Error)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == wire.CloseCode.RESTART


@contextlib.asynccontextmanager
async def toy_process(
    data_dir: Path, drain_s: float
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The server in a process of its own; also its WebSocket address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.toy_server", str(data_dir), str(drain_s), "0.05",
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    port = (await process.stdout.readline()).decode().strip()
    try:
        yield process, f"ws://127.0.0.1:{port}/ws"
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@contextlib.asynccontextmanager
async def client_at(url: str) -> AsyncIterator[Client]:
    async with connect(url, subprotocols=[Subprotocol(wire.SUBPROTOCOL)], proxy=None) as raw:
        yield Client(raw)


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
async def test_o3_a_signal_ends_the_process_in_order(data_dir: Path, sig: signal.Signals) -> None:
    async with toy_process(data_dir, 0.5) as (process, url), client_at(url) as client:
        created = await client.start(params={"max_tokens": 4000, "ignore_eos": True})
        await client.until(wire.ResponseDelta)
        began = time.monotonic()
        process.send_signal(sig)
        assert await client.until(wire.ServerDraining) == wire.ServerDraining(0.5)
        assert isinstance(await client.ending(created.response_id), wire.ResponseCancelled)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"settled\n"
        assert await process.wait() == 0
        assert time.monotonic() - began < 15
    store = await Store.open(data_dir, prices=PriceBook(), clock=time.time, new_id=counter_ids())
    record = await store.response(ME, ResponseId(created.response_id))
    await store.close()
    assert record.status is ResponseStatus.CANCELLED
    assert record.output_tokens >= client.seq[created.response_id] > 0


async def test_o3_the_second_signal_does_not_wait(data_dir: Path) -> None:
    async with toy_process(data_dir, 60) as (process, url), client_at(url) as client:
        await client.start(params={"max_tokens": 4000, "ignore_eos": True})
        process.send_signal(signal.SIGTERM)
        await client.until(wire.ServerDraining)
        await asyncio.sleep(0.6)  # sooner it would count as the same wish
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        assert time.monotonic() - began < 15


async def test_an_upgrade_elsewhere_is_refused(data_dir: Path) -> None:
    async with bare_server(data_dir) as server:
        for path in ("/", "/ws/", "/api/v1/status", "/v1/chat/completions"):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(f"ws://127.0.0.1:{server.port}{path}", proxy=None):
                    pass
            assert refused.value.response.status_code in (403, 404)


@pytest.mark.parametrize("kept", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_closed_terminal_ends_a_server_that_was_not_told_to_outlive_it(kept: signal.Handlers) -> None:
    before = signal.signal(signal.SIGHUP, kept)
    try:
        assert (signal.SIGHUP in ending_signals()) is (kept is signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGHUP, before)
