"""The whole HTTP interface by its own description, and the WebSocket by its: 10,000 bad and good requests.

Nothing may come but what is documented, no answer of 500, and the engine must be the same as before.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from chatd.data_dir import read_address
from chatd.server import protocol as wire
from tests.e2e.processes import ToyProcess, client_of, counts, engine_of, get, until_at_rest
from tests.support.live_server import Client

AnyCase = Case[Any]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
LENGTHS = {
    "/v1/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
}
MOST = 20
NONSENSE = ("[" * 60, '{"type":"ping","type":"ping"}', "null", "7", "\U0001f4a9")
FRAMES_AT_ONCE = 50


def tame(case: AnyCase) -> None:
    """Let no answer be long; whatever is wrong with its length stays."""
    body = case.body
    if isinstance(body, dict):
        for name in LENGTHS.get(case.operation.path, ()):
            asked = body.get(name)
            if asked is None or (isinstance(asked, int) and not isinstance(asked, bool) and asked > MOST):
                body[name] = MOST


def cases(operation: Any, ids: list[str], token: str) -> st.SearchStrategy[AnyCase]:
    """By the schema and against it; with ids that there are; as the operator."""
    kinds = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]
    if "{id}" in operation.path:
        kinds += [operation.as_strategy(path_parameters={"id": one}) for one in ids]
    if "/admin/cache" in operation.path:  # a first key would shut everybody else out
        kinds.append(operation.as_strategy(headers={"x-chatd-admin": token}))
    return st.one_of(kinds)


def some_ids(url: str) -> Iterator[str]:
    """Of a conversation, a response of it, and one of a stateless client."""
    with httpx.Client(base_url=url, trust_env=False) as http:
        made = http.post("/api/v1/conversations", json={"title": "t"}).json()["id"]
        yield made
        for body in ({"input": "x", "conversation": made}, {"input": "y"}):
            yield http.post("/v1/responses", json={**body, "max_output_tokens": 3}).json()["id"]


@pytest.mark.parametrize("examples", counts((3,), (290,), seconds=(150, 3600)))
def test_the_http_interface(toy: ToyProcess, examples: int) -> None:
    address = read_address(toy.data_dir)
    assert address is not None
    document = httpx.get(f"{toy.url}/openapi.json", trust_env=False).json()
    sent = 0
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()

        @settings(
            max_examples=examples,
            derandomize=examples < 100,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases(operation, list(some_ids(toy.url)), address.token))
        def run(case: AnyCase) -> None:
            nonlocal sent
            sent += 1
            tame(case)
            case.validate_response(case.call(base_url=toy.url, timeout=30), checks=CHECKS)

        run()
    assert sent >= examples * 20


# -- the WebSocket


class Frames:
    """Frames that are right, nearly right and not at all, drawn from a seed."""

    def __init__(self, seed: int, ids: list[str]) -> None:
        self._draw = random.Random(seed)
        self._ids = [*ids, "nope", "", "x" * 200]
        self._number = 0

    def one(self) -> bytes | str:
        frame = self._good()
        match self._draw.randrange(6):
            case 0 | 1:
                return json.dumps(frame)
            case 2:
                frame[self._draw.choice([*frame, "extra", "type"])] = self._value()
                return json.dumps(frame)
            case 3:
                frame.pop(self._draw.choice(list(frame)))
                return json.dumps(frame)
            case 4:
                text = json.dumps(frame)
                return text[: self._draw.randrange(len(text))] + self._draw.choice(
                    ["", "}", "\x00", ',"a":NaN}']
                )
            case _:
                return self._draw.randbytes(40) if self._draw.random() < 0.2 else self._draw.choice(NONSENSE)

    def _good(self) -> dict[str, Any]:
        self._number += 1
        draw, key = self._draw, f"f{self._draw.random()}"
        params: dict[str, Any] = {"max_tokens": draw.randrange(1, 8), "temperature": draw.choice([0, 1, 2])}
        about = draw.choice(self._ids)
        return draw.choice(
            [
                {"type": "ping"},
                {"type": "session.hello"},
                {"type": "response.create", "idempotency_key": key, "input": "hello", "params": params},
                {"type": "response.create", "idempotency_key": key, "regenerate": about, "params": params},
                {"type": "response.create", "idempotency_key": key, "edit": about, "input": "x"},
                {"type": "response.cancel", "response_id": about},
                {"type": "response.subscribe", "response_id": about, "after_seq": draw.randrange(5)},
                {"type": "response.ack", "response_id": about, "seq": draw.randrange(5)},
                {"type": "cache.estimate", "idempotency_key": key, "input": "hello"},
                {"type": "conversation.warm", "conversation_id": about},
            ]
        )

    def _value(self) -> Any:
        draw = self._draw
        return draw.choice(
            [None, True, -1, 1 << 60, 0.5, "", "x" * 300, [], [[]], {}, {"a": 1}, {"seed": -1}]
        )


async def drain(client: Client) -> None:
    """Hear what the frames before a ping brought. Who subscribes twice to a response hears it twice."""
    await client.send(wire.Ping())
    while not isinstance(wire.decode_server(await client.socket.recv()), wire.Pong):
        pass


@pytest.mark.parametrize(("count", "seed"), counts((600, 1), (10_000, 2), seconds=(150, 900)))
async def test_the_websocket(toy: ToyProcess, count: int, seed: int) -> None:
    """Each bad frame is answered on its own, on a connection that stays."""
    frames = Frames(seed, list(some_ids(toy.url)))
    before = await engine_of(toy)
    sent = 0
    while sent < count:
        async with client_of(toy, max_queue=None) as client:
            for _ in range(FRAMES_AT_ONCE):
                await client.socket.send(frames.one())
                sent += 1
            await drain(client)
    async with client_of(toy) as client:
        created = await client.start("count:3")
        await client.ending(created.response_id)
        assert client.text[created.response_id] == "012"
    after = await engine_of(toy)
    assert after["counters"]["steps"] > before["counters"]["steps"]


async def test_the_engine_is_the_same_and_the_ledger_right(toy: ToyProcess) -> None:
    await until_at_rest(toy, 10)
    assert (await get(toy, "/api/v1/report/verify"))["findings"] == []
    assert "a step failed" not in await toy.errors()
