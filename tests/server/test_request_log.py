"""Ids, access lines and what goes back with every answer; and never a word of what people write."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from chatd.errors import Draining, NotReady, Overloaded
from chatd.ids import Rid
from chatd.logs import configure_logs
from chatd.server.http import error_response
from chatd.server.request_log import request_id_of
from chatd.store.connect import make_engine
from tests.support.live_server import LiveServer, bare_server, live_lab
from tests.support.openai_site import HI, site_of

pytestmark = pytest.mark.usefixtures("blocked_loop")

SECRET = "xyzzy-my-diary"
CLIENTS = ("httpx", "httpcore.http11", "httpcore.connection", "openai._base_client", "websockets.client")
"""Loggers of the other side, which is in this process only because of the tests."""


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What is logged, all of it, as JSON lines."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    configure_logs(as_json=True, level="debug", stream=(made := io.StringIO()))
    for name in CLIENTS:
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)
    yield made
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(out: io.StringIO, message: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    return [line for line in found if line["message"] == message]


def http_of(server: LiveServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, trust_env=False)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("abc-123", "abc-123"),
        ("a b\tc\n\x1b[31m<script>", "abc31mscript"),
        ("x" * 500, "x" * 128),
        ("", "new"),
        ("\u4e16\u754c", "new"),
        (None, "new"),
    ],
)
def test_ids_are_cleaned(given: str | None, kept: str) -> None:
    assert request_id_of(given, lambda: "new") == kept


async def test_every_answer_has_an_id(data_dir: Path) -> None:
    async with live_lab(data_dir) as (server, _), http_of(server) as http:
        for path in ("/healthz", "/", "/api/v1/status", "/api/v1/responses/x", "/v1/models", "/metrics"):
            assert (await http.get(path)).headers["x-request-id"]
            answer = await http.get(path, headers={"X-Request-ID": "mine"})
            assert answer.headers["x-request-id"] == "mine"
        refused = await http.get("/healthz", headers={"host": "evil.example", "x-request-id": "mine"})
        assert (refused.status_code, refused.headers["x-request-id"]) == (421, "mine")
        async with server.client(additional_headers={"X-Request-ID": "socket"}) as client:
            assert client.socket.response is not None
            assert client.socket.response.headers["x-request-id"] == "socket"


async def test_a_request_leads_to_its_answer(data_dir: Path, out: io.StringIO) -> None:
    async with site_of(data_dir) as site:
        answer = await site.http.post(
            "/v1/chat/completions",
            json={"messages": [*HI, {"role": "user", "content": SECRET}], "max_tokens": 9},
            headers={"x-request-id": "mine"},
        )
        said = answer.json()["choices"][0]["message"]["content"]
    (access,) = lines(out, "request")
    assert (access["request_id"], access["route"], access["status"]) == ("mine", "/v1/chat/completions", 200)
    assert (access["level"], access["logger"]) == ("info", "chatd.access")
    (begun,), (ended,) = lines(out, "response begun"), lines(out, "response ended")
    assert begun["response_id"] == ended["response_id"] == answer.json()["id"]
    assert begun["request_id"] == ended["request_id"] == "mine"
    assert (ended["output_tokens"], ended["finish_reason"]) == (9, "length")
    for words in (SECRET, "diary", said):
        assert words not in out.getvalue()


async def test_a_socket_leads_to_its_answers(data_dir: Path, out: io.StringIO) -> None:
    named = {"additional_headers": {"X-Request-ID": "socket"}}
    async with live_lab(data_dir) as (server, lab), server.client(**named) as client:
        for _ in range(2):
            created = await client.start(SECRET, params={"stop": [SECRET]})
            rid = Rid(created.response_id)
            lab.hand.say(rid, f"about {SECRET}")
            lab.hand.finish(rid)
            await client.ending(created.response_id)
        await client.socket.send(json.dumps({"type": SECRET}))
        await client.receive()
    assert [line["request_id"] for line in lines(out, "response ended")] == ["socket"] * 2
    access = [line for line in lines(out, "request") if line["route"] == "/ws"]
    assert [(line["method"], line["status"]) for line in access] == [("WEBSOCKET", 101)]
    assert SECRET not in out.getvalue()


async def test_paths_and_wrong_bodies_stay_out(data_dir: Path, out: io.StringIO) -> None:
    async with live_lab(data_dir) as (server, _), http_of(server) as http:
        await http.get(f"/{SECRET}?{SECRET}")
        await http.get(f"/api/v1/conversations/{SECRET}")
        await http.post("/v1/chat/completions", content=SECRET)
        await http.post("/v1/responses", json={"input": SECRET, "temperature": SECRET})
        await http.request(SECRET.upper(), "/healthz")
        made = (await http.post("/api/v1/conversations", json={"title": SECRET, "system": SECRET})).json()
        await http.patch(f"/api/v1/conversations/{made['id']}", json={"title": SECRET})
        await http.delete(f"/api/v1/conversations/{made['id']}")
    assert SECRET not in out.getvalue()
    assert SECRET.upper() not in out.getvalue()
    routes = [line["route"] for line in lines(out, "request")]
    assert routes[:2] == ["other", "/api/v1/conversations/{id}"]


def test_errors_of_the_database_show_no_words(tmp_path: Path, out: io.StringIO) -> None:
    """They name the statement, and never what was to go into it."""
    engine = make_engine(tmp_path / "x.db", begin="BEGIN", connections=1)
    with engine.connect() as conn:
        try:
            conn.execute(text("INSERT INTO nowhere VALUES (:words)"), {"words": SECRET})
        except OperationalError:
            logging.getLogger("chatd").exception("it broke")
    engine.dispose()
    assert "INSERT INTO nowhere" in out.getvalue()
    assert SECRET not in out.getvalue()


async def test_a_path_below_a_mount_that_is_no_route(data_dir: Path, out: io.StringIO) -> None:
    async with live_lab(data_dir) as (server, _), http_of(server) as http:
        for path in ("/nope", "/api/v1/nope", "/v1/nope"):
            assert (await http.get(path)).status_code == 404
        page = (await http.get("/metrics")).text
    assert 'route="other",status="404"} 3' in page, page
    assert "Traceback" not in out.getvalue()


async def test_levels(data_dir: Path, out: io.StringIO) -> None:
    async with live_lab(data_dir) as (server, _), http_of(server) as http:
        for path in ("/healthz", "/metrics", "/", "/api/v1/status"):
            await http.get(path)
    levels = {line["route"]: line["level"] for line in lines(out, "request")}
    assert levels.pop("/api/v1/status") == "info"
    assert set(levels.values()) == {"debug"}


async def test_what_passes_says_when_to_try_again(data_dir: Path) -> None:
    for error, seconds in ((Draining("x"), "5"), (NotReady("x"), "2"), (Overloaded("x"), "1")):
        assert error_response(error).headers["retry-after"] == seconds
    async with bare_server(data_dir) as server, http_of(server) as http:
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/api/v1/cache/estimate"):
            answer = await http.post(path, json={"messages": HI, "input": "x", "prompt": "x"})
            if answer.status_code == 503:
                assert answer.headers["retry-after"] == "2"
            else:
                assert path.startswith("/api")
        assert (await http.get("/v1/models")).headers["retry-after"] == "2"
