"""Who gets in, and how far: every route, every way in, every way out."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from websockets.exceptions import ConnectionClosed, InvalidStatus

from chatd.server import protocol as wire
from chatd.server.access import NEEDS, Need, need_of
from chatd.server.app import create_app
from chatd.server.doorman import OPERATOR_HEADER
from chatd.store.key_records import KeyScope
from tests.support.accounts import Caller, caller
from tests.support.chat_lab import until
from tests.support.live_server import Client, LiveServer, bare_server, live_lab

pytestmark = pytest.mark.usefixtures("blocked_loop")

ADMIN_ONLY = {"/metrics", "/api/v1/status", "/api/v1/report/verify"}
OPERATORS = ("/api/v1/admin/", "/api/v1/operator/")
PUBLIC = {"/healthz", "/readyz", "/api/v1/login", "/api/v1/logout"}


@pytest.fixture
async def server(data_dir: Path) -> AsyncIterator[LiveServer]:
    async with live_lab(data_dir, lab={}) as (server, _):
        yield server


@contextlib.asynccontextmanager
async def nobody(server: LiveServer, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, **options) as http:
        yield http


def walk(routes: Iterable[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each method and path there is, with something in the place of ids."""
    for route in routes:
        if isinstance(route, Mount):
            yield from walk(route.routes, prefix + route.path)
        elif isinstance(route, Route):
            path = re.sub(r"\{[^}]*\}", "x", route.path.replace("{kind}", "sessions"))
            for method in route.methods or ():
                yield method, prefix + path
        elif isinstance(route, WebSocketRoute):
            yield "WEBSOCKET", prefix + route.path


def routes_of(server: LiveServer) -> list[tuple[str, str]]:
    found = [one for one in walk(create_app(server.state).routes) if one[1] != "/"]
    assert ("POST", "/v1/chat/completions") in found
    return found


# --- every route ----------------------------------------------------------------------------------


async def test_every_route_denies_who_has_no_key(server: LiveServer) -> None:
    await caller(server, "ann")
    async with nobody(server) as http:
        for method, path in routes_of(server):
            if method == "WEBSOCKET":
                with pytest.raises(InvalidStatus) as refused:
                    await server.connect().__aenter__()
                assert refused.value.response.status_code == 401
                continue
            answer = await http.request(method, path)
            assert (answer.status_code == 401) == (path not in PUBLIC), (method, path)
            if answer.status_code == 401:
                assert answer.headers["www-authenticate"] == "Bearer"
                assert method == "HEAD" or answer.json()["error"]["code"] == "unauthorized"
        for path in ("/nope", "/api/v1/nope", "/v1/nope", "//v1/models", "/api/v1/conversations/../status"):
            assert (await http.get(httpx.URL(server.url + path))).status_code == 401, path


async def test_every_route_wants_its_scope(server: LiveServer) -> None:
    callers = {
        scope: await caller(server, scope, scopes=[scope])
        for scope in (KeyScope.CHAT, KeyScope.REPORT, KeyScope.ADMIN)
    }
    for scope, who in callers.items():
        async with who.http() as http:
            for method, path in routes_of(server):
                need = need_of(path, ())
                if method == "WEBSOCKET" or need is Need.NOTHING:
                    continue
                allowed = need is Need.ANY_KEY or need.value == scope
                answer = await http.request(method, path)
                assert (answer.status_code == 403) == (not allowed), (method, path, scope)
                assert answer.status_code != 401


async def test_no_route_is_the_operators_because_it_was_forgotten(server: LiveServer) -> None:
    paths = {path for _, path in routes_of(server)}
    closed = {path for path in paths if need_of(path, ()) is Need.ADMIN}
    assert {path for path in closed if not f"{path}/".startswith(OPERATORS)} == ADMIN_ONLY
    assert {path for path in paths if need_of(path, ()) is Need.NOTHING} == PUBLIC


def test_what_a_path_needs() -> None:
    page = {"assets", "index.html"}
    assert need_of("/", page) is need_of("/assets/a.js", page) is Need.NOTHING
    assert need_of("/assetsx", page) is need_of("/v1x", page) is need_of("/api", page) is Need.ADMIN
    assert need_of("/api/v1/report/verify", page) is Need.ADMIN
    assert need_of("/api/v1/report", page) is Need.REPORT
    assert need_of("/api/v1/conversations/a/b/c", page) is Need.CHAT
    assert "/api/v1/admin" not in NEEDS


async def test_without_keys_this_machine_is_let_in_but_for_the_operators_routes(server: LiveServer) -> None:
    async with nobody(server, headers={"authorization": "Bearer anything"}) as http:
        assert (await http.get("/api/v1/conversations")).status_code == 200
        assert (await http.get("/v1/models")).status_code == 200
        assert (await http.get("/api/v1/status")).status_code == 200
        assert (await http.get("/api/v1/admin/keys")).status_code == 403
        who = (await http.get("/api/v1/session")).json()
        assert (who["account"], who["key"], who["open"]) == (server.state.namespace, None, True)


async def test_the_operators_token_opens_everything(server: LiveServer) -> None:
    server.state.admin_token = "the token"
    await caller(server, "ann")
    async with nobody(server, headers={OPERATOR_HEADER: "the token"}) as http:
        assert (await http.get("/api/v1/admin/keys")).status_code == 200
        assert (await http.get("/api/v1/conversations")).status_code == 200
    async with nobody(server, headers={OPERATOR_HEADER: "another"}) as http:
        assert (await http.get("/api/v1/admin/keys")).status_code == 401


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Basic eA==", "Bearer chatd-nonsense", "bearer chatd-AAAAAAAA-x"],
)
async def test_what_is_no_key(server: LiveServer, authorization: str) -> None:
    who = await caller(server, "ann")
    async with nobody(server) as http:
        for given in (authorization, f"Bearer {who.secret}x", f"Bearer {who.secret[:-1]}"):
            answer = await http.get("/v1/models", headers={"authorization": given})
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "unauthorized"


# --- cookies, S1, S2 ------------------------------------------------------------------------------


async def log_in(http: httpx.AsyncClient, who: Caller) -> httpx.Response:
    answer = await http.post(
        "/api/v1/login", json={"key": who.secret}, headers={"origin": str(http.base_url).rstrip("/")}
    )
    assert answer.status_code == 200, answer.text
    return answer


async def test_a_cookie_is_for_the_page_alone(server: LiveServer) -> None:
    who = await caller(server, "ann")
    async with nobody(server) as http:
        answer = await log_in(http, who)
        cookie = answer.headers["set-cookie"]
        for part in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=2592000"):
            assert part in cookie
        assert "Secure" not in cookie
        assert who.secret not in cookie
        assert answer.json() == {
            "account": "ann", "key": "ann", "scopes": ["chat"], "logged_in": True, "open": False,
        }  # fmt: skip
        assert (await http.get("/api/v1/conversations")).status_code == 200
        for headers in ({}, {"origin": "http://evil.example"}, {"origin": "null"}):
            made = await http.post("/api/v1/conversations", json={}, headers=headers)
            assert made.json()["error"]["code"] == "wrong_origin", headers
        made = await http.post("/api/v1/conversations", json={}, headers={"origin": server.url})
        assert made.status_code == 201


async def test_logging_out_ends_the_cookie_and_its_sockets(server: LiveServer) -> None:
    who = await caller(server, "ann")
    async with nobody(server) as http:
        await log_in(http, who)
        other = dict(http.cookies)
        async with cookie_socket(server, other) as client, who.socket() as mine:
            await client.send(wire.SessionHello())
            await client.until(wire.SessionCreated)
            out = await http.post("/api/v1/logout", headers={"origin": server.url})
            assert (out.status_code, dict(http.cookies)) == (204, {})
            assert await close_code(client) == wire.CloseCode.UNAUTHORIZED
            await mine.send(wire.Ping())
            await mine.until(wire.Pong)
        assert (await http.get("/api/v1/session", headers=cookie_of(other))).status_code == 401


def cookie_of(cookies: dict[str, str]) -> dict[str, str]:
    return {"cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}


def cookie_socket(server: LiveServer, cookies: dict[str, str], origin: str | None = None) -> Any:
    return server.client(additional_headers=cookie_of(cookies), origin=origin or server.url)


async def close_code(client: Client) -> int:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await client.socket.recv()
    assert client.socket.close_code is not None
    return client.socket.close_code


async def test_s1_a_good_cookie_from_another_origin(server: LiveServer) -> None:
    who = await caller(server, "ann")
    async with nobody(server) as http:
        await log_in(http, who)
        cookies, port = dict(http.cookies), server.port
    for origin in (
        "http://evil.example", "null", f"https://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}",
        f"http://127.0.0.1:{port}.evil.example", f"http://evil.example:{port}", f"http://x127.0.0.1:{port}",
    ):  # fmt: skip
        with pytest.raises(InvalidStatus) as refused:
            await cookie_socket(server, cookies, origin).__aenter__()
        assert refused.value.response.status_code == 403, origin
    with pytest.raises(InvalidStatus) as refused:
        await server.client(additional_headers=cookie_of(cookies)).__aenter__()
    assert refused.value.response.status_code == 403
    async with cookie_socket(server, cookies) as client:
        await client.send(wire.Ping())
        await client.until(wire.Pong)
    async with who.socket() as client:  # no Origin: a program
        await client.send(wire.Ping())
        await client.until(wire.Pong)


async def test_s2_a_good_key_for_another_host(server: LiveServer) -> None:
    who = await caller(server, "ann")
    async with who.http() as http:
        for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1:1", ""):
            answer = await http.get("/api/v1/conversations", headers={"host": host})
            assert answer.status_code in (400, 421), host


async def test_a_proxy_that_is_trusted_says_that_it_is_https(data_dir: Path) -> None:
    for trusted, secure in ((("127.0.0.0/8",), True), ((), False), (("10.0.0.0/8",), False)):
        async with (
            bare_server(data_dir, trusted_proxies=trusted, allowed_hosts=("chat.example",)) as server,
            nobody(server) as http,
        ):
            name = f"ann{len(server.state.keys._by_name)}-{secure}-{len(trusted)}"
            who = await caller(server, name)
            headers = {"host": "chat.example", "x-forwarded-proto": "https", "origin": "https://chat.example"}
            answer = await http.post("/api/v1/login", json={"key": who.secret}, headers=headers)
            assert answer.status_code == 200
            assert ("Secure" in answer.headers["set-cookie"]) == secure


async def test_a_login_token_is_good_once(server: LiveServer) -> None:
    await caller(server, "ann")
    token = server.state.keys.new_login_token("ann")
    async with nobody(server, headers={"origin": server.url}) as http:
        first = await http.post("/api/v1/login", json={"token": token})
        assert (first.status_code, first.json()["key"]) == (200, "ann")
        assert (await http.post("/api/v1/login", json={"token": token})).status_code == 401
        own = server.state.keys.new_login_token(None)
        operator = (await http.post("/api/v1/login", json={"token": own})).json()
        assert (operator["account"], operator["key"]) == (server.state.namespace, None)
        assert (await http.get("/api/v1/admin/keys")).status_code == 200
        for body in ({}, {"key": "x", "token": "y"}):
            assert (await http.post("/api/v1/login", json=body)).status_code == 400


async def test_logins_outlive_a_restart(data_dir: Path) -> None:
    async with bare_server(data_dir) as server, nobody(server) as http:
        await log_in(http, await caller(server, "ann"))
        ((_, cookie),) = dict(http.cookies).items()
    async with bare_server(data_dir) as server:
        await server.state.keys.load()
        assert server.state.keys.by_cookie(cookie).key_id == "ann"


# --- tickets --------------------------------------------------------------------------------------


async def test_a_ticket_opens_one_socket_from_its_origin(server: LiveServer) -> None:
    who = await caller(server, "ann")
    app = "https://app.example"

    async def ticket() -> str:
        async with who.http() as http:
            answer = await http.post("/api/v1/ticket", json={"origin": app})
            assert answer.status_code == 201
            return str(answer.json()["ticket"])

    def socket(ticket: str, origin: str) -> Any:
        return server.client(uri=f"ws://127.0.0.1:{server.port}/ws?ticket={ticket}", origin=origin)

    good = await ticket()
    async with socket(good, app) as client:
        await client.send(wire.Ping())
        await client.until(wire.Pong)
    for used, origin in ((good, app), (await ticket(), "https://evil.example"), ("x", app), ("", server.url)):
        with pytest.raises(InvalidStatus) as refused:
            await socket(used, origin).__aenter__()
        assert refused.value.response.status_code == 401


async def test_a_ticket_does_not_open_a_server_without_keys(server: LiveServer) -> None:
    async with nobody(server) as http:
        assert (await http.post("/api/v1/ticket", json={})).status_code == 409
    with pytest.raises(InvalidStatus) as refused:
        await server.client(
            uri=f"ws://127.0.0.1:{server.port}/ws?ticket=x", origin="https://evil.example"
        ).__aenter__()
    assert refused.value.response.status_code == 401


# --- revocation -----------------------------------------------------------------------------------


async def test_revoking_closes_sockets_and_ends_answers(data_dir: Path) -> None:
    async with live_lab(data_dir) as (server, lab):
        server.state.admin_token = "t"
        ann, bob = await caller(server, "ann"), await caller(server, "bob")
        async with (
            ann.socket() as hers,
            bob.socket() as his,
            nobody(server, headers={OPERATOR_HEADER: "t"}) as http,
        ):
            started, other = await hers.start(), await his.start()
            lab.hand.say(started.response_id, "x")  # type: ignore[arg-type]
            await hers.until(wire.ResponseDelta)
            async with asyncio.timeout(5):
                assert (await http.delete("/api/v1/admin/keys/ann")).status_code == 200
                assert await close_code(hers) == wire.CloseCode.UNAUTHORIZED
                await until(lambda: lab.service.open_count == 1)
            assert other.response_id in lab.hand.submitted
            async with ann.http() as gone:
                assert (await gone.get("/api/v1/conversations")).status_code == 401
            record = await lab.store.response("ann", started.response_id)  # type: ignore[arg-type]
            assert (record.status, record.output_tokens) == ("cancelled", 1)
            listed = (await http.get("/api/v1/admin/keys")).json()["keys"]
            assert [key["revoked_at"] is None for key in listed] == [False, True]
            lab.hand.finish(other.response_id)  # type: ignore[arg-type]


async def test_revoking_ends_streams_and_requests_that_wait(data_dir: Path) -> None:
    """Those of the key alone: an answer that another key of the account asked for goes on."""
    async with live_lab(data_dir) as (server, lab):
        server.state.admin_token = "t"
        ann, laptop = await caller(server, "ann"), await caller(server, "laptop", "ann")
        async with (
            ann.http() as hers,
            laptop.http() as gone,
            nobody(server, headers={OPERATOR_HEADER: "t"}) as operator,
        ):
            body = {"input": "x", "background": True}
            theirs = (await hers.post("/v1/responses", json=body)).json()["id"]
            lab.hand.say(theirs, "x")
            chat = {"model": "m", "messages": [{"role": "user", "content": "y"}]}
            waiting = asyncio.create_task(gone.post("/v1/chat/completions", json=chat))
            await until(lambda: lab.service.open_count == 2)
            async with (
                asyncio.timeout(5),
                gone.stream("GET", f"/v1/responses/{theirs}?stream=true") as stream,
            ):
                lines = stream.aiter_lines()
                async for line in lines:
                    if "output_text.delta" in line:
                        break
                assert (await operator.delete("/api/v1/admin/keys/laptop")).status_code == 200
                assert not [line async for line in lines if "response.completed" in line]
                answer = await waiting
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
            await until(lambda: lab.service.open_count == 1)
            assert theirs in lab.hand.submitted
            assert not server.state.visits


async def test_a_key_that_revokes_itself_is_told_so(server: LiveServer) -> None:
    root = await caller(server, "root", scopes=list(KeyScope))
    async with root.http() as http:
        answer = await http.delete("/api/v1/admin/keys/root")
        assert (answer.status_code, answer.json()["name"]) == (200, "root")
        assert (await http.get("/v1/models")).status_code == 401


async def test_the_first_key_shows_out_who_has_none(server: LiveServer) -> None:
    async with server.client() as client:
        await client.send(wire.Ping())
        await client.until(wire.Pong)
        await caller(server, "ann")
        assert await close_code(client) == wire.CloseCode.UNAUTHORIZED


async def test_revoking_the_last_key_does_not_open_the_server(server: LiveServer) -> None:
    await caller(server, "ann")
    await server.state.keys.revoke("ann")
    async with nobody(server) as http:
        assert (await http.get("/v1/models")).status_code == 401


# --- the operator's routes ------------------------------------------------------------------------


async def test_keys_by_the_operators_routes(server: LiveServer) -> None:
    server.state.admin_token = "t"
    async with nobody(server, headers={OPERATOR_HEADER: "t"}) as http:
        made = await http.post(
            "/api/v1/admin/keys",
            json={"name": "ann", "account": "home", "turns": 2, "budget": {"nano": 5, "period": "day"}},
        )
        assert made.status_code == 201
        body = made.json()
        secret = body.pop("secret")
        assert (body["account"], body["first"], body["scopes"]) == ("home", True, ["chat", "report"])
        assert body["budget"] == {"nano": 5, "period": "day", "currency": "CNY"}
        listed = await http.get("/api/v1/admin/keys")
        assert secret not in listed.text
        assert listed.json()["keys"][0]["use"]["turns"] == 0
        for wrong in (
            {"name": ""}, {"name": "a b"}, {"name": "../x"}, {"name": "é"}, {"name": "x" * 64},
            {"name": "b", "turns": 0},
            {"name": "b", "account": ""}, {"name": "b", "scopes": []}, {"name": "b", "scopes": ["all"]},
            {"name": "b", "budget": {"nano": -1, "period": "day"}}, {"name": "b", "requests_per_min": 2**60},
        ):  # fmt: skip
            assert (await http.post("/api/v1/admin/keys", json=wrong)).status_code == 400, wrong
        assert (await http.post("/api/v1/admin/keys", json={"name": "ann"})).status_code == 409
        assert (await http.delete("/api/v1/admin/keys/nobody")).status_code == 404
        assert (await http.post("/api/v1/admin/logins", json={"key": "nobody"})).status_code == 404
        assert (await http.post("/api/v1/admin/logins", json={"key": "ann"})).status_code == 201
