"""One account is one namespace: what is another's answers like what is not there. Limits, over the wire."""

import asyncio
import json
import random
import re
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from chatd.ids import Namespace, Rid
from chatd.server import archive_api, native_api, openai_api
from chatd.server import protocol as wire
from chatd.server.backend import ServiceSettings
from chatd.server.looks import LOOKS_A_REQUEST
from chatd.store.key_records import Budget, KeyScope, Period
from chatd.store.reserve import most_nano
from tests.support.accounts import Caller, caller
from tests.support.chat_lab import ME, ChatLab, chat_lab
from tests.support.live_server import LiveServer, live_lab

pytestmark = pytest.mark.usefixtures("blocked_loop")

Site = tuple[LiveServer, ChatLab]
FULL = [pytest.mark.full, pytest.mark.timeout(300)]
GREEDY = {"temperature": 0, "max_tokens": 4}
NOTED_BY_EACH = {"date", "x-request-id", "content-length"}


@pytest.fixture
async def site(data_dir: Path) -> AsyncIterator[Site]:
    async with live_lab(data_dir, lab={}) as (server, lab):
        yield server, lab


async def talk(who: Caller, text: str = "hello") -> wire.ResponseCreated:
    """A conversation with one answer."""
    async with who.socket() as client:
        started = await client.start(text, params=GREEDY)
        await client.ending(started.response_id)
        return started


# --- S4 -------------------------------------------------------------------------------------------


def shape(answer: httpx.Response, asked: str) -> tuple[Any, ...]:
    """All that an answer tells, but for what each one has of its own."""
    headers = {name: value for name, value in answer.headers.items() if name not in NOTED_BY_EACH}
    return answer.status_code, headers, answer.text.replace(asked, "ID")


ROUTES = [
    ("GET", "/api/v1/conversations/{conversation}", None),
    ("PATCH", "/api/v1/conversations/{conversation}", {"title": "mine"}),
    ("DELETE", "/api/v1/conversations/{conversation}", None),
    ("POST", "/api/v1/conversations/{conversation}/warm", None),
    ("GET", "/api/v1/responses/{response}", None),
    ("POST", "/api/v1/cache/estimate", {"conversation_id": "{conversation}", "input": "x"}),
    ("POST", "/api/v1/cache/estimate", {"conversation_id": "OWN", "parent_id": "{message}", "input": "x"}),
    ("POST", "/api/v1/cache/estimate", {"edit": "{question}", "input": "x"}),
    ("POST", "/api/v1/cache/estimate", {"regenerate": "{message}"}),
    ("POST", "/api/v1/cache/estimate", {"continue": "{message}"}),
    ("GET", "/v1/responses/{response}", None),
    ("DELETE", "/v1/responses/{response}", None),
    ("POST", "/v1/responses/{response}/cancel", None),
    ("GET", "/v1/responses/{response}/input_items", None),
    ("POST", "/v1/responses", {"input": "x", "previous_response_id": "{response}"}),
    ("POST", "/v1/responses", {"input": "x", "conversation": "{conversation}"}),
    ("GET", "/api/v1/conversations/{conversation}/export", None),
    ("GET", "/api/v1/reports/sessions?session={conversation}", None),
]


def ids_of(started: wire.ResponseCreated) -> dict[str, str]:
    return {
        "conversation": started.conversation_id,
        "response": started.response_id,
        "message": started.message_id,
        "question": started.user_message_id or "",
    }


async def test_s4_the_ids_of_others_answer_like_unknown_ones(site: Site) -> None:
    server, _ = site
    ann = await caller(server, "ann")
    bob = await caller(server, "bob", scopes=list(KeyScope))
    theirs = ids_of(await talk(ann))
    own = await talk(bob)
    async with bob.http() as http:
        for method, path, body in ROUTES:
            kind = re.search(r"\{(\w+)\}", path + json.dumps(body)[1:])
            assert kind
            shapes = []
            for value in (theirs[kind[1]], "f" * len(theirs[kind[1]])):
                place, sent = (text.replace(kind[0], value) for text in (path, json.dumps(body)))
                sent = sent.replace("OWN", own.conversation_id)
                content = None if body is None else sent
                shapes.append(shape(await http.request(method, place, content=content), value))
            assert shapes[0] == shapes[1], (method, path)
            status, _, text = shapes[0]
            assert status == 404 or path.startswith("/api/v1/reports"), (method, path, text)
    async with ann.http() as http:  # and nothing became of it
        assert (await http.get(f"/api/v1/conversations/{theirs['conversation']}")).json()["title"] == "hello"


def test_s4_every_route_with_an_id_is_walked() -> None:
    walked = {re.sub(r"\{\w+\}", "{id}", path.partition("?")[0]) for _, path, _ in ROUTES}
    there = {
        prefix + route.path
        for mount, prefix in ((native_api.ROUTES, "/api/v1"), (openai_api.ROUTES, "/v1"))
        for route in mount.routes
        if isinstance(route, Route) and "{id}" in route.path
    }
    there |= {route.path for route in archive_api.ROUTES if "{id}" in route.path}
    assert there <= walked


async def test_s4_over_the_socket(site: Site) -> None:
    server, _ = site
    ann, bob = await caller(server, "ann"), await caller(server, "bob")
    theirs, own = ids_of(await talk(ann)), (await talk(bob)).conversation_id
    asked: list[tuple[str, Any]] = [
        ("conversation", lambda id, key: wire.ResponseCreate(key, "x", conversation_id=id)),
        ("message", lambda id, key: wire.ResponseCreate(key, "x", conversation_id=own, parent_id=id)),
        ("question", lambda id, key: wire.ResponseCreate(key, "x", edit=id)),
        ("message", lambda id, key: wire.ResponseCreate(key, regenerate=id)),
        ("message", lambda id, key: wire.ResponseCreate(key, continues=id)),
        ("response", lambda id, key: wire.ResponseCancel(id)),
        ("response", lambda id, key: wire.ResponseSubscribe(id, 0)),
        ("conversation", lambda id, key: wire.CacheEstimate(key, "x", conversation_id=id)),
        ("conversation", lambda id, key: wire.ConversationWarm(id)),
    ]
    async with bob.socket() as client:
        for kind, make in asked:
            told = []
            for value in (theirs[kind], "f" * len(theirs[kind])):
                await client.send(make(value, f"key-{value}"))
                error = await client.until(wire.Error)
                told.append(wire.encode(error).decode().replace(value, "ID"))
            assert told[0] == told[1]
            assert '"code":"not_found"' in told[0], told[0]


async def test_lists_reports_and_news_are_of_ones_own_account(site: Site) -> None:
    server, _ = site
    ann = await caller(server, "ann", scopes=list(KeyScope))
    laptop = await caller(server, "laptop", "ann")
    bob = await caller(server, "bob", scopes=list(KeyScope))
    async with laptop.socket() as hers, bob.socket() as his:
        started = await talk(ann)
        assert (await hers.until(wire.ConversationUpdated)).conversation_id == started.conversation_id
        await his.send(wire.Ping())
        assert isinstance(await his.receive(), wire.Pong)
    for who, count in ((ann, 1), (laptop, 1), (bob, 0)):
        async with who.http() as http:
            listed = (await http.get("/api/v1/conversations")).json()["conversations"]
            assert len(listed) == count, who.name
    async with bob.http() as his, ann.http() as hers:
        for kind in ("sessions", "branches", "days", "models", "keys", "namespaces"):
            assert (await his.get(f"/api/v1/reports/{kind}")).json()["rows"] == [], kind
        (row,) = (await hers.get("/api/v1/reports/keys")).json()["rows"]
        assert (row["key_id"], row["turns"]) == ("ann", 1)
        assert (await his.get("/api/v1/report")).json()["sessions"] == []


def auc(first: Sequence[float], second: Sequence[float]) -> float:
    """The probability that a value of ``first`` is above one of ``second``."""
    above = sum((a > b) + (a == b) / 2 for a in first for b in second)
    return above / (len(first) * len(second))


@pytest.mark.parametrize(
    ("probes", "most"),
    [(60, 0.70), pytest.param(500, 0.56, marks=FULL)],
)
async def test_s4_in_the_same_time(site: Site, probes: int, most: float) -> None:
    """Interleaved in random order: whatever else the machine does, it does to both."""
    server, _ = site
    ann, bob = await caller(server, "ann"), await caller(server, "bob")
    theirs = (await talk(ann)).conversation_id
    dice = random.Random(3)
    took: dict[str, list[float]] = {theirs: [], "f" * len(theirs): []}
    async with bob.http() as http:
        for _ in range(probes):
            for value in dice.sample(sorted(took), 2):
                began = time.perf_counter()
                await http.get(f"/api/v1/conversations/{value}")
                took[value].append(time.perf_counter() - began)
    found = auc(*took.values())
    assert 1 - most < found < most


@pytest.mark.parametrize(
    ("probes", "most"),
    [(40, 0.75), pytest.param(500, 0.55, marks=FULL)],
)
async def test_t1_no_hits_and_no_haste_on_anothers_prompt(data_dir: Path, probes: int, most: float) -> None:
    """B sends a prompt that A has cached, or one that nobody has: reuse and first-token time say nothing."""
    ann, bob, dice = Namespace("ann"), Namespace("bob"), random.Random(4)
    took: dict[bool, list[float]] = {True: [], False: []}
    params = {"temperature": 0, "max_tokens": 1}
    async with chat_lab(data_dir, num_pages=4096) as lab:
        for _ in range(probes):
            known = "".join(dice.choices("abcdefghij", k=500))
            other = "".join(dice.choices("abcdefghij", k=500))
            first = await lab.ask(known, ns=ann, params=params)
            for is_known in dice.sample((True, False), 2):
                answer = await lab.ask(known if is_known else other, ns=bob, params=params)
                # The template's own tokens are B's too by now, and one of the prompt's may follow them.
                assert answer.record.gpu_hit <= 12
                assert answer.record.disk_hit == 0
                assert answer.record.prompt_len == first.record.prompt_len
                assert answer.record.timings.ttft_ms is not None
                took[is_known].append(answer.record.timings.ttft_ms)
    assert 1 - most < auc(took[True], took[False]) < most


# --- limits over the wire -------------------------------------------------------------------------


async def completion(http: httpx.AsyncClient, max_tokens: int | None = 4, key: str = "") -> httpx.Response:
    said = [{"role": "user", "content": "hello"}]
    body: dict[str, Any] = {"model": "x", "messages": said, "temperature": 0}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    return await http.post("/v1/chat/completions", json=body, headers={"idempotency-key": key} if key else {})


async def test_what_is_left_stands_in_headers(site: Site) -> None:
    who = await caller(site[0], "ann", requests_per_min=2, tokens_per_min=10_000)
    async with who.http() as http:
        first = await completion(http)
        used = first.json()["usage"]["total_tokens"]
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert first.headers["x-ratelimit-reset-requests"] == "60s"
        second = await completion(http)
        assert int(second.headers["x-ratelimit-remaining-tokens"]) == 10_000 - used - (used - 4 + 4)
        third = await completion(http)
        assert third.status_code == 429
        error = third.json()["error"]
        assert (error["code"], "2 requests a minute" in error["message"]) == ("rate_limited", True)
        assert 50 <= int(third.headers["retry-after"]) <= 60
        assert third.headers["x-ratelimit-remaining-requests"] == "0"


async def test_limits_over_the_socket(site: Site) -> None:
    who = await caller(site[0], "ann", requests_per_min=1)
    async with who.socket() as client:
        started = await client.start(params=GREEDY)
        await client.ending(started.response_id)
        await client.send(wire.ResponseCreate("again", "hello", params=GREEDY))
        error = await client.until(wire.Error)
        assert (error.code, error.retryable, error.idempotency_key) == ("rate_limited", True, "again")
        assert isinstance(error.retry_after_s, int)
        assert 50 <= error.retry_after_s <= 60
        await client.send(wire.Ping())  # and the socket goes on
        await client.until(wire.Pong)


async def test_without_a_length_an_answer_has_what_the_key_allows(site: Site) -> None:
    server, lab = site
    who = await caller(server, "ann", tokens_per_min=100)
    async with who.http() as http:
        answer = await completion(http, None)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["total_tokens"] <= 100
        assert (await completion(http, 5000)).status_code == 400
    await lab.check()


async def test_a_budget_among_many_at_once(site: Site) -> None:
    """Exactly as many run as were paid for; what they did not use is there again."""
    server, lab = site
    prompt_len = 24  # of "hello" in the toy template, asserted below
    most = most_nano(lab.store.prices, "toy", prompt_len, 4)
    who = await caller(server, "ann", budget=Budget(3 * most, Period.MONTH, "CNY"), turns=3)
    async with who.http() as http:
        answers = await asyncio.gather(*(completion(http) for _ in range(12)))
        good = [answer for answer in answers if answer.status_code == 200]
        refused = [answer.json()["error"] for answer in answers if answer.status_code == 429]
        assert len(good) + len(refused) == 12
        assert len(good) >= 3
        assert {error["code"] for error in refused} <= {"rate_limited", "budget_spent"}
        assert {answer.json()["usage"]["prompt_tokens"] for answer in good} == {prompt_len}
        while (last := await completion(http)).status_code == 200:
            pass
        assert last.json()["error"]["code"] == "budget_spent"
        assert int(last.headers["retry-after"]) > 0
    ((_, use),) = await lab.store.keys.uses()
    assert use.reserved_nano == use.turns == 0
    assert 3 * most - most < use.spent_nano <= 3 * most


async def test_one_account_does_not_take_all_places(data_dir: Path) -> None:
    lab_options = {"by_hand": True, "settings": ServiceSettings(max_open=6)}
    async with live_lab(data_dir, lab=lab_options) as (server, lab):
        ann, bob = await caller(server, "ann"), await caller(server, "bob")
        async with ann.socket() as hers, bob.socket() as his:
            started = [await hers.start() for _ in range(3)]
            await hers.send(wire.ResponseCreate("fourth", "hello"))
            assert (await hers.until(wire.Error)).code == "overloaded"
            started.append(await his.start())
            for one in started:
                lab.hand.finish(Rid(one.response_id))


TURNS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    "completion": ("/v1/completions", {"prompt": "x"}),
    "response": ("/v1/responses", {"input": "x"}),
    "background": ("/v1/responses", {"input": "x", "background": True}),
    "stream": ("/v1/responses", {"input": "x", "stream": True}),
}
LIMITS: dict[str, Any] = {
    "requests": {"requests_per_min": 1},
    "turns": {"turns": 1},
    "budget": {"budget": Budget(1, Period.DAY, "CNY")},
}


@pytest.mark.parametrize("limit", LIMITS)
async def test_limits_hold_for_every_way_to_ask(data_dir: Path, limit: str) -> None:
    async with live_lab(data_dir) as (server, lab):
        who = await caller(server, "ann", **LIMITS[limit])
        async with who.http() as http, who.socket() as client:
            if limit != "budget":  # one turn is all that there is room for
                first = await client.start()
                if limit == "requests":
                    lab.hand.say(Rid(first.response_id), "x")
                    lab.hand.finish(Rid(first.response_id))
                    await client.ending(first.response_id)
            for name, (path, body) in TURNS.items():
                refused = await http.post(path, json={"model": "m", **body})
                assert refused.status_code == 429, name
                assert int(refused.headers["retry-after"]) >= 1, name
                assert refused.json()["error"]["code"] in ("rate_limited", "budget_spent"), name
            asked = [wire.ResponseCreate("new", "x")]
            if limit == "requests":
                own = (first.user_message_id or "", first.message_id)
                asked.append(wire.ResponseCreate("edit", "x", edit=own[0]))
                asked += [wire.ResponseCreate("again", regenerate=own[1])]
                asked += [wire.ResponseCreate("on", continues=own[1])]
            for create in asked:
                await client.send(create)
                error = await client.until(wire.Error)
                assert (error.code in ("rate_limited", "budget_spent"), error.idempotency_key) == (
                    True,
                    create.idempotency_key,
                )
            assert len(lab.hand.submitted) == (limit == "turns")


async def test_looks_are_limited_by_the_requests_a_key_may_make(site: Site) -> None:
    who, other = await caller(site[0], "ann", requests_per_min=1), await caller(site[0], "bob")
    said = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    async with who.http() as http, who.socket() as client, other.http() as his:
        for _ in range(LOOKS_A_REQUEST // 2):
            assert (await http.post("/api/v1/cache/estimate", json={"input": "x"})).status_code == 200
            assert (await http.post("/v1/chat/completions/input_tokens", json=said)).status_code == 200
        for path, body in (
            ("/api/v1/cache/estimate", {"input": "x"}),
            ("/v1/chat/completions/input_tokens", said),
            ("/v1/responses/input_tokens", {"model": "m", "input": "x"}),
            ("/api/v1/conversations/x/warm", None),
        ):
            refused = await http.post(path, json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited"), path
            assert 1 <= int(refused.headers["retry-after"]) <= 6
        await client.send(wire.ConversationWarm("x"))  # a hint: not answered
        await client.send(wire.CacheEstimate("k", "x"))
        error = await client.until(wire.Error)
        assert (error.code, error.idempotency_key) == ("rate_limited", "k")
        assert (await completion(http)).status_code == 200, "a turn is another matter"
        for _ in range(LOOKS_A_REQUEST + 1):
            assert (await his.post("/api/v1/cache/estimate", json={"input": "x"})).status_code == 200


async def test_an_idempotent_request_is_charged_once(site: Site) -> None:
    who = await caller(site[0], "ann", requests_per_min=1)
    async with who.http() as http:
        answers = [await completion(http, key="one") for _ in range(3)]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == 1


# --- retention ------------------------------------------------------------------------------------


async def test_old_conversations_go_with_their_kv_and_the_money_stays(data_dir: Path) -> None:
    async with chat_lab(data_dir) as lab:
        old = await lab.ask("hello", params=GREEDY)
    async with chat_lab(data_dir, prefix="later", settings=ServiceSettings(retain_s=0.0)) as lab:
        async with asyncio.timeout(10):
            while (await lab.store.list_conversations(ME)).conversations or await lab.store.purges():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await lab.store.response(ME, old.record.id)).cost == old.record.cost
