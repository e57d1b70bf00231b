"""V1, S1, S2, S4, T1 and odd requests, as bytes on a socket of the real process."""

import json
from typing import Any

import pytest

from chatd.server import protocol as wire
from tests.e2e.frames import status_of, upgrade
from tests.e2e.processes import ToyProcess, client_of, completion, engine_of, get, port_of, post, raw_socket

NAMES = {
    "parent": "..",
    "two up": "../../etc/passwd",
    "encoded": "%2e%2e",
    "encoded twice": "%252e%252e%252f",
    "encoded slashes": "..%2f..%2f..%2fetc%2fpasswd",
    "backslashes": "..%5c..%5cetc",
    "nul": "a%00b",
    "long": "x" * 300,
    "fullwidth dots": "%ef%bc%8e%ef%bc%8e",
    "overlong utf-8": "%c0%ae%c0%ae",
    "no utf-8": "%ff%fe",
    "a header": "%0d%0aSet-Cookie:%20x=1",
    "absolute": "%2fetc%2fpasswd",
    "half a surrogate": "%ed%a0%80",
    "sql": "'%20or%201=1--",
    "emoji": "%f0%9f%92%a9",
    "broken escape": "%zz",
}
ROUTES = (
    "GET /api/v1/conversations/{}",
    "PATCH /api/v1/conversations/{}",
    "DELETE /api/v1/conversations/{}",
    "GET /api/v1/responses/{}",
    "GET /v1/models/{}",
    "GET /assets/{}",
    "GET /{}",
)


async def ask(server: ToyProcess, line: str, *headers: str, body: bytes = b"", host: str = "") -> bytes:
    """The whole answer to one request."""
    named = host or f"Host: 127.0.0.1:{port_of(server)}"
    lines = [f"{line} HTTP/1.1", named, "Connection: close", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    async with raw_socket(server) as raw:
        await raw.send("\r\n".join([*lines, "", ""]).encode() + body)
        return await raw.rest()


def body_of(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("name", NAMES)
async def test_v1_names(toy: ToyProcess, name: str) -> None:
    """Refused as what is not there, on every route that takes a name; nothing made, nothing given away."""
    before = sorted(path.name for path in toy.data_dir.iterdir())
    for route in ROUTES:
        body = b'{"title":"t"}' if route.startswith("PATCH") else b""
        answer = await ask(toy, route.format(NAMES[name]), body=body)
        # A path that is its own parent folder's may be sent on to that folder, and no further.
        assert status_of(answer) in ({404, 405, 307} if name in ("parent", "encoded") else {404}), route
        assert b"root:" not in answer
        assert b"set-cookie" not in answer.lower()
        assert b"content-security-policy" in answer
    assert sorted(path.name for path in toy.data_dir.iterdir()) == before


@pytest.mark.parametrize("name", ["..", "../../x", "a\\b", "x" * 128, "\u202e", "．．", "%2e", "' or 1=1"])
async def test_v1_names_in_frames(toy: ToyProcess, name: str) -> None:
    async with client_of(toy) as client:
        for frame in (
            wire.ResponseCreate("k", "x", conversation_id=name),
            wire.ResponseCreate("k", "x", conversation_id=name, parent_id=name),
            wire.ResponseCreate("k", "x", edit=name),
            wire.ResponseCreate("k", regenerate=name),
            wire.ResponseCreate("k", continues=name),
            wire.ResponseCancel(name),
            wire.ResponseSubscribe(name, 0),
        ):
            await client.send(frame)
            assert (await client.until(wire.Error)).code == "not_found"


ORIGINS = {
    "http://evil.example": False,
    "null": False,
    "": False,
    "https://127.0.0.1:{port}": False,
    "http://127.0.0.1:1": False,
    "http://127.0.0.1:{port}.evil.example": False,
    "http://evil127.0.0.1:{port}": False,
    "http://127.0.0.1:{port}@evil.example": False,
    "http://127.0.0.1:{port} http://evil.example": False,
    "http://localhost:{port}": False,  # another name is another origin
    "file://": False,
    "http://127.0.0.1:{port}": True,
}


@pytest.mark.parametrize("origin", ORIGINS)
async def test_s1_origin(toy: ToyProcess, origin: str) -> None:
    """Of upgrades, refused before they are accepted, and of what changes things."""
    header = f"Origin: {origin.format(port=port_of(toy))}"
    async with raw_socket(toy) as raw:
        host = f"Host: 127.0.0.1:{port_of(toy)}"
        await raw.send("\r\n".join(["GET /ws HTTP/1.1", host, *upgrade(header), "", ""]).encode())
        head = await raw.until(lambda heard: b"\r\n\r\n" in heard)
    assert status_of(head) == (101 if ORIGINS[origin] else 403)
    made = await ask(toy, "POST /api/v1/conversations", header, body=b"{}")
    assert status_of(made) == (201 if ORIGINS[origin] else 403)
    asked = await ask(toy, "POST /v1/chat/completions", header, "Content-Type: text/plain", body=b"{}")
    assert status_of(asked) == (400 if ORIGINS[origin] else 403)


async def test_s1_a_browser_must_name_its_origin_and_a_program_need_not(toy: ToyProcess) -> None:
    for header, status in (("X: y", 201), ("Cookie: a=b", 403), ("Sec-Fetch-Site: cross-site", 403)):
        assert status_of(await ask(toy, "POST /api/v1/conversations", header, body=b"{}")) == status


@pytest.mark.parametrize(
    ("host", "statuses"),
    [
        ("X: no host", {400}),
        ("Host:", {400}),
        ("Host: evil.example", {421}),
        ("Host: 127.0.0.1", {421}),
        ("Host: 127.0.0.1:1", {421}),
        ("Host: evil@127.0.0.1:{port}", {400}),
        ("Host: 127.0.0.1:{port}\r\nHost: evil.example", {400}),
        ("X-Forwarded-Host: 127.0.0.1:{port}\r\nHost: evil.example", {421}),
        ("Host: LocalHost:{port}", {200}),
    ],
)
async def test_s2_host(toy: ToyProcess, host: str, statuses: set[int]) -> None:
    """Of every route, the page included."""
    for path in ("/", "/api/v1/status", "/healthz", "/v1/models", "/no/such/page"):
        answer = await ask(toy, f"GET {path}", host=host.format(port=port_of(toy)))
        assert status_of(answer) in statuses | ({404, 503} if statuses == {200} else set())


async def test_t1_nothing_a_client_sends_chooses_its_namespace(toy: ToyProcess) -> None:
    """There is one account: whatever name a request gives, it is that one, and nothing else is matched."""
    text = "A prompt that is long enough to be found in the cache again. " * 4
    async with raw_socket(toy) as raw:
        await raw.send(completion(toy, text, max_tokens=1))
        await raw.until(lambda heard: b"[DONE]" in heard)
    names = ("Namespace", "User", "Account", "Forwarded-User", "Chatd-Namespace")
    headers = [*(f"X-{name}: other" for name in names), "Authorization: Bearer other"]
    body = {"namespace": "other", "user": "other", "account": "other", "cache_salt": "x"}
    asked = {"messages": [{"role": "user", "content": text}], "max_tokens": 1, **body}
    answer = await ask(
        toy,
        "POST /v1/chat/completions",
        *headers,
        "Authorization: Bearer other",
        body=json.dumps(asked).encode(),
    )
    usage = body_of(answer)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
    for name, value in (("title", {"namespace": "other"}), ("params", {})):
        refused = await ask(toy, "POST /api/v1/conversations", body=json.dumps({name: value}).encode())
        assert status_of(refused) == 400
    async with client_of(toy, additional_headers={"X-Namespace": "other"}) as client:
        frame = {"type": "response.create", "idempotency_key": "n", "input": text, "namespace": "other"}
        await client.socket.send(json.dumps(frame))
        assert (await client.until(wire.Error)).code in ("bad_frame", "invalid_parameter")


async def test_s4_unknown_ids_look_the_same_everywhere(toy: ToyProcess) -> None:
    shapes = set()
    for line in (
        "GET /api/v1/conversations/{}",
        "DELETE /api/v1/conversations/{}",
        "GET /api/v1/responses/{}",
    ):
        for unknown in ("0" * 32, "nonsense", "x" * 500):
            answer = await ask(toy, line.format(unknown))
            error = body_of(answer)["error"]
            shapes.add((status_of(answer), error["code"], error["retryable"], tuple(sorted(error))))
    assert len(shapes) == 1


async def test_broken_requests_are_refused_one_by_one(toy: ToyProcess) -> None:
    """And the server answers the next good one."""
    host = f"Host: 127.0.0.1:{port_of(toy)}\r\n".encode()
    for raw_bytes, status in (
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\n" + host + b"Content-Length: -5\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\n" + host + b"Content-Length: 99999999999\r\n\r\n", 413),
        (post(toy, "/v1/chat/completions", {"messages": []}) * 3, 400),
    ):
        async with raw_socket(toy) as raw:
            await raw.send(raw_bytes)
            answer = await raw.until(lambda heard: b"\r\n\r\n" in heard)
            assert status_of(answer) == status
    assert (await engine_of(toy))["running"] == 0
    assert (await get(toy, "/readyz"))["status"] == "ready"
