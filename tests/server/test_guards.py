"""Host and Origin, on their own and in front of the real server."""

import asyncio
import logging
from pathlib import Path

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send
from websockets.exceptions import InvalidStatus

from chatd.server.guards import (
    Addresses,
    Authority,
    Guard,
    Origin,
    content_policy,
    parse_authority,
    parse_origin,
)
from tests.support.live_server import LiveServer, bare_server

HERE = ("127.0.0.1", 8000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", Authority("localhost", 80)),
        ("LocalHost:8000", Authority("localhost", 8000)),
        ("127.0.0.1:1", Authority("127.0.0.1", 1)),
        ("[::1]", Authority("[::1]", 80)),
        ("[::1]:8000", Authority("[::1]", 8000)),
        *[
            (bad, None)
            for bad in (
                "", ":", ":80", "localhost:", "localhost:x", "localhost:-1", "localhost:123456", "::1",
                "[::1", "a b", "a@b", "a/b", "a,b", "localhost:80:80", "localhost:８０", "a\tb", "a#b", "a?b",
                "[]x:1", "évil", "localhost:80\n",
            )
        ],
    ],
)  # fmt: skip
def test_parse_authority(text: str, expected: Authority | None) -> None:
    assert parse_authority(text, 80) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://localhost:8000", Origin("http", Authority("localhost", 8000))),
        ("https://chat.example.org", Origin("https", Authority("chat.example.org", 443))),
        *[
            (bad, None)
            for bad in ("null", "", "localhost:8000", "ftp://localhost", "file://", "http://", "http://a/b",
                        "http:/localhost", "http://user@localhost", "http://localhost:8000, http://evil")
        ],
    ],
)  # fmt: skip
def test_parse_origin(text: str, expected: Origin | None) -> None:
    assert parse_origin(text) == expected


async def ask(
    headers: dict[str, str] | list[tuple[str, str]],
    *,
    method: str = "GET",
    kind: str = "http",
    bound: str = "127.0.0.1",
    allowed: tuple[str, ...] = (),
    scheme: str | None = None,
    server: tuple[str, int] = HERE,
) -> tuple[int, dict[str, str]]:
    """Status and headers that the guard around an application of 200s answers with."""
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        start = "websocket.http.response.start" if scope["type"] == "websocket" else "http.response.start"
        await send({"type": start, "status": 200, "headers": [(b"x-app", b"reached")]})

    async def receive() -> Message:
        raise AssertionError("the guard reads no body")

    async def send(message: Message) -> None:
        sent.append(message)

    pairs = headers.items() if isinstance(headers, dict) else headers
    scope = {
        "type": kind,
        "scheme": scheme or ("ws" if kind == "websocket" else "http"),
        "method": method,
        "path": "/",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs],
        "server": server,
        "extensions": {"websocket.http.response": {}},
    }
    await Guard(app, Addresses(bound, allowed))(scope, receive, send)
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST:8000", "[::1]:8000"])
async def test_s2_our_own_names(host: str) -> None:
    assert (await ask({"host": host}))[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421),
        ("evil.example:8000", 421),
        ("127.0.0.1.evil.example:8000", 421),
        ("localhost.evil.example:8000", 421),
        ("evil-localhost:8000", 421),
        ("localhost.:8000", 421),
        ("127.0.0.1", 421),
        ("127.0.0.1:80", 421),
        ("127.0.0.1:8001", 421),
        ("192.168.1.5:8000", 421),
        ("", 400),
        (":8000", 400),
        ("127.0.0.1:8000@evil.example", 400),
        ("evil.example/127.0.0.1:8000", 400),
        ("127.0.0.1:8000, evil.example", 400),
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_s2_other_hosts(host: str, status: int, kind: str) -> None:
    got, headers = await ask({"host": host}, kind=kind)
    assert got == status
    assert "x-app" not in headers
    assert "default-src 'none'" in headers["content-security-policy"]


async def test_s2_no_host_and_two_hosts() -> None:
    assert (await ask({}))[0] == 400
    assert (await ask([("host", "127.0.0.1:8000"), ("host", "evil.example")]))[0] == 400


async def test_s2_the_default_port_may_be_left_out() -> None:
    assert (await ask({"host": "localhost"}, server=("127.0.0.1", 80)))[0] == 200


async def test_s2_configured_names() -> None:
    allowed = ("chat.example.org", "other.example:8443")
    for host in ("chat.example.org", "Chat.Example.org:443", "other.example:8443"):
        assert (await ask({"host": host}, allowed=allowed))[0] == 200
    for host in ("chat.example.org:8000", "a.chat.example.org", "chat.example.org.evil", "other.example"):
        assert (await ask({"host": host}, allowed=allowed))[0] == 421


async def test_s2_bound_to_all_addresses() -> None:
    for bound in ("0.0.0.0", "::"):
        for host in ("192.168.1.5:8000", "[fe80::1]:8000", "localhost:8000"):
            assert (await ask({"host": host}, bound=bound))[0] == 200
        for host in ("evil.example:8000", "192.168.1.5:9000", "1.2.3.4.evil:8000"):
            assert (await ask({"host": host}, bound=bound))[0] == 421


WRONG_ORIGINS = [
    "http://evil.example",
    "https://evil.example:8000",
    "null",
    "",
    "https://127.0.0.1:8000",  # other scheme
    "http://127.0.0.1:8001",  # other port
    "http://127.0.0.1",
    "http://localhost:8000",  # another name for the same server, but not the one that was asked
    "http://127.0.0.1:8000.evil.example",
    "http://127.0.0.1.evil.example:8000",
    "http://evil127.0.0.1:8000",
    "http://evil.example/127.0.0.1:8000",
    "http://127.0.0.1:8000@evil.example",
    "http://127.0.0.1:8000/",
    "file://",
    "chrome-extension://abc",
]


@pytest.mark.parametrize("origin", WRONG_ORIGINS)
async def test_s1_wrong_origin(origin: str) -> None:
    asked = {"host": "127.0.0.1:8000", "origin": origin, "cookie": "session=valid"}
    assert (await ask(asked, kind="websocket"))[0] == 403
    for method in ("POST", "PUT", "PATCH", "DELETE", "WHATEVER"):
        assert (await ask(asked, method=method))[0] == 403
    for method in ("GET", "HEAD", "OPTIONS"):
        assert (await ask(asked, method=method))[0] == 200  # nothing changes, and nothing may be read


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000"])
async def test_s1_right_origin(host: str) -> None:
    asked = {"host": host, "origin": f"http://{host}"}
    assert (await ask(asked, kind="websocket"))[0] == 200
    assert (await ask(asked, method="POST"))[0] == 200
    secure = {"host": host, "origin": f"https://{host}"}
    assert (await ask(secure, kind="websocket", scheme="wss"))[0] == 200
    assert (await ask(asked, kind="websocket", scheme="wss"))[0] == 403


async def test_s1_two_origins() -> None:
    own = "http://127.0.0.1:8000"
    asked = [("host", "127.0.0.1:8000"), ("origin", own), ("origin", "http://evil.example")]
    assert (await ask(asked, kind="websocket"))[0] == 403


async def test_s1_no_origin_is_for_programs_only() -> None:
    program = {"host": "127.0.0.1:8000", "authorization": "Bearer key"}
    assert (await ask(program, kind="websocket"))[0] == 200
    assert (await ask(program, method="POST"))[0] == 200
    for name, value in (("cookie", "a=b"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "websocket")):
        assert (await ask({**program, name: value}, kind="websocket"))[0] == 403
        assert (await ask({**program, name: value}, method="POST"))[0] == 403


async def test_s1_behind_a_proxy_that_ends_tls() -> None:
    allowed = ("chat.example.org",)
    asked = {"host": "chat.example.org", "origin": "https://chat.example.org"}
    assert (await ask(asked, kind="websocket", allowed=allowed))[0] == 200
    for origin in ("https://evil.example", "https://chat.example.org:8443", "null"):
        assert (await ask({**asked, "origin": origin}, kind="websocket", allowed=allowed))[0] == 403


async def test_the_policy_allows_no_inline_and_no_other_host() -> None:
    _, headers = await ask({"host": "127.0.0.1:8000"})
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "connect-src 'self' ws://127.0.0.1:8000 wss://127.0.0.1:8000;" in policy
    assert "frame-ancestors 'none'" in policy
    assert content_policy(None).count("ws") == 0
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-app"] == "reached"


# --- the real thing -------------------------------------------------------------------------------


async def upgrade(server: LiveServer, **headers: str) -> int:
    """The status an upgrade is answered with: 101, or the refusal's."""
    try:
        async with server.connect(additional_headers=headers):
            return 101
    except InvalidStatus as refused:
        answer = refused.response
    assert b"error" in answer.body
    assert answer.headers["x-content-type-options"] == "nosniff"
    return answer.status_code


async def test_s1_upgrades_are_refused_before_they_are_accepted(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bare_server(data_dir) as server:
        own = f"http://127.0.0.1:{server.port}"
        assert await upgrade(server, Origin=own) == 101
        assert await upgrade(server) == 101
        for origin in ("http://evil.example", "null", own.replace("http", "https"), own + "1", own + ".evil"):
            assert await upgrade(server, Origin=origin, Cookie="session=valid") == 403
        assert await upgrade(server, Cookie="session=valid") == 403
        assert not server.state.connections
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_who_sends_too_much_is_told_so(data_dir: Path) -> None:
    """Also on a connection that is kept, whose client sends all of it before it reads."""
    async with (
        bare_server(data_dir) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http,
    ):
        for _ in range(3):
            assert (await http.get("/healthz")).status_code == 200
            assert (await http.post("/api/v1/conversations", content=bytes(8 << 20))).status_code == 413


async def raw_status(server: LiveServer, request: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request.encode())
    status = (await reader.readline()).split()[1]
    writer.close()
    await writer.wait_closed()
    return int(status)


async def test_s2_hosts_on_a_real_connection(data_dir: Path) -> None:
    async with bare_server(data_dir) as server:
        lines = {
            f"Host: 127.0.0.1:{server.port}": 200,
            "Host: evil.example": 421,
            "Host: 127.0.0.1:1": 421,
            "Host:": 400,
            "X-Other: 1": 400,
            f"Host: 127.0.0.1:{server.port}\r\nHost: evil.example": 400,
        }
        for line, status in lines.items():
            request = f"GET /healthz HTTP/1.1\r\n{line}\r\nConnection: close\r\n\r\n"
            assert await raw_status(server, request) == status, line
        assert await raw_status(server, "GET /healthz HTTP/1.0\r\n\r\n") == 400
        absolute = f"GET http://evil.example/healthz HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n"
        assert await raw_status(server, absolute) in (200, 400, 404, 421)
