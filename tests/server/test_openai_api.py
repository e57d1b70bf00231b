"""The OpenAI endpoint over a real server on a loopback port, with the official client and with raw HTTP."""

import asyncio
import json
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from chatd.errors import ChatdError
from chatd.ids import Rid
from chatd.server import openai_answer
from chatd.server.openai_types import ACCEPTED, MAX_MESSAGES, decode_request
from chatd.server.params import parse_params
from chatd.store.records import ResponseStatus
from tests.support.chat_lab import ME, saying, until
from tests.support.engines import Gate
from tests.support.openai_site import HI, Site, site_of
from tests.support.patience import NOISE_S

pytestmark = pytest.mark.usefixtures("blocked_loop")

TEXT = "Hello there, this is an answer."


@pytest.fixture
async def site(data_dir: Path) -> AsyncIterator[Site]:
    async with site_of(data_dir, saying(TEXT)) as site:
        yield site


# -- answers


async def test_a_plain_completion(site: Site) -> None:
    done = await site.chat(HI)
    assert (done.object, done.model) == ("chat.completion", "toy")
    choice = done.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    record = await site.lab.record(done.id)
    assert done.usage.prompt_tokens == record.prompt_tokens
    assert done.usage.completion_tokens == len(TEXT) + 1
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens
    assert done.usage.prompt_tokens_details.cached_tokens == 0


async def test_a_streamed_completion(site: Site) -> None:
    stream = await site.ai.chat.completions.create(
        model="gpt-4o",
        messages=HI,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert {(chunk.object, chunk.model) for chunk in chunks} == {("chat.completion.chunk", "toy")}
    assert len({chunk.id for chunk in chunks}) == 1
    *body, last, usage = chunks
    assert body[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content for chunk in body) == TEXT
    assert last.choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in [*body, last])
    assert usage.choices == []
    assert usage.usage.completion_tokens == len(TEXT) + 1
    assert usage.usage.prompt_tokens_details.cached_tokens == 0


async def test_the_bytes_of_a_stream(site: Site) -> None:
    response = await site.post(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    for event in events[:-2]:
        chunk = json.loads(event.removeprefix("data: "))
        assert "usage" not in chunk  # it was not asked for
        assert set(chunk["choices"][0]) == {"index", "delta", "logprobs", "finish_reason"}


async def test_text_comes_as_it_is_made(data_dir: Path) -> None:
    async with site_of(data_dir, by_hand=True) as site:
        async with site.http.stream(
            "POST", "/v1/chat/completions", json={"messages": HI, "stream": True}
        ) as got:
            lines = got.aiter_lines()
            assert '"role":"assistant"' in await anext(lines)
            (rid,) = site.lab.hand.submitted
            for text in ("one", "two"):
                site.lab.hand.say(rid, text)
                while f'"content":"{text}"' not in await anext(lines):
                    pass
            site.lab.hand.finish(rid)
            rest = [line async for line in lines]
        assert rest[-2:] == ["data: [DONE]", ""]


async def test_a_long_silence_is_kept_alive(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_answer, "KEEP_ALIVE_S", 0.02)
    body = {"messages": HI, "stream": True}
    async with (
        site_of(data_dir, by_hand=True) as site,
        site.http.stream("POST", "/v1/chat/completions", json=body) as got,
    ):
        lines = got.aiter_lines()
        while await anext(lines) != ": keep-alive":
            pass
        (rid,) = site.lab.hand.submitted
        site.lab.hand.say(rid, "at last")
        site.lab.hand.finish(rid)
        assert '"content":"at last"' in "".join([line async for line in lines])


async def test_progress_and_timings(data_dir: Path) -> None:
    """By llama.cpp's names: what was reused, what was computed, and how long that took."""
    async with site_of(data_dir, saying(TEXT)) as site:
        long = [{"role": "user", "content": "x" * 700}]
        first = await site.chat(long)
        more = [*long, {"role": "assistant", "content": TEXT}, {"role": "user", "content": "y" * 300}]
        answer = await site.post(messages=more, stream=True, return_progress=True)
        events = [json.loads(one.removeprefix("data: ")) for one in answer.text.split("\n\n")[:-2]]
        record = await site.lab.record(events[0]["id"])
        shown = [event["prompt_progress"] for event in events if "prompt_progress" in event]
        assert {(one["total"], one["cache"]) for one in shown} == {(record.prompt_tokens, record.gpu_hit)}
        assert [one["processed"] for one in shown] == sorted({one["processed"] for one in shown})
        assert shown[-1]["processed"] == record.prompt_tokens
        (timings,) = [event["timings"] for event in events if "timings" in event]
        assert events[-1]["timings"] == timings
        assert (timings["cache_n"], timings["prompt_n"]) == (record.gpu_hit, record.computed)
        assert timings["cache_n"] == first.usage.total_tokens - 1
        assert timings["predicted_n"] == len(TEXT) + 1
        assert timings["prompt_per_second"] == pytest.approx(1000 * record.computed / timings["prompt_ms"])
        assert "prompt_progress" not in (await site.post(messages=long, stream=True)).text


async def test_usage_is_never_lost(data_dir: Path) -> None:
    """Of a stream that was cut, too: its id came first."""
    async with site_of(data_dir, by_hand=True) as site:
        body = {"messages": HI, "stream": True}
        async with site.http.stream("POST", "/v1/chat/completions", json=body) as got:
            begun = json.loads((await anext(got.aiter_lines())).removeprefix("data: "))
            site.lab.hand.say(Rid(begun["id"]), "one", "two")
            await until(lambda: site.lab.service.counters.generated == 2)
        await until(lambda: site.lab.service.open_count == 0)
        found = (await site.http.get(f"/api/v1/responses/{begun['id']}")).json()
        assert (found["status"], found["usage"]["output_tokens"]) == ("cancelled", 2)


async def test_stop_limit_and_the_alias(site: Site) -> None:
    stopped = await site.chat(HI, stop=["there", "x"])
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("Hello ", "stop")
    cut = await site.chat(HI, max_completion_tokens=5)
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("Hello", "length")
    assert cut.usage.completion_tokens == 5


async def test_extensions(site: Site) -> None:
    response = await site.post(
        ignore_eos=True, max_tokens=40, top_k=3, min_p=0.1, repetition_penalty=1.1, user="me", store=True
    )
    assert response.json()["usage"]["completion_tokens"] == 40


async def test_roles_and_parts(site: Site) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "three", "name": "someone"},
    ]
    done = await site.post(messages=messages, max_tokens=2)
    assert done.status_code == 200
    record = await site.lab.record(done.json()["id"])
    path = await site.lab.store.path_to(ME, record.message_id)
    assert [(m.role, m.text) for m in path] == [
        ("system", "Be brief."),
        ("user", "one two"),
        ("assistant", ""),
        ("user", "three"),
        ("assistant", "He"),
    ]


async def test_models(site: Site) -> None:
    assert [model.id async for model in await site.ai.models.list()] == ["toy"]
    assert (await site.ai.models.retrieve("toy")).id == "toy"
    with pytest.raises(openai.NotFoundError):
        await site.ai.models.retrieve("gpt-4o")


async def test_a_history_resent_as_text_hits_like_a_session(data_dir: Path) -> None:
    async with site_of(data_dir) as site:
        said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}]
        last = None
        for text in ("two", "three", "four"):
            done = await site.chat(said, max_tokens=20)
            if last is not None:
                cached = done.usage.prompt_tokens_details.cached_tokens
                assert cached == last.usage.prompt_tokens + last.usage.completion_tokens - 1
            last = done
            said.append({"role": "assistant", "content": done.choices[0].message.content})
            said.append({"role": "user", "content": text})


async def test_l2_truncation_says_so(data_dir: Path) -> None:
    async with site_of(data_dir, saying("ok"), context_length=200) as site:
        messages = [
            message
            for turn in range(5)
            for message in (
                {"role": "user", "content": f"{turn}" * 50},
                {"role": "assistant", "content": "ok"},
            )
        ][:-1]
        refused = await site.post(messages=messages)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        for stream in (False, True):
            answer = await site.post(messages=messages, truncation="auto", max_tokens=5, stream=stream)
            assert '"dropped_turns":3' in answer.text.replace(" ", "")


# -- refusals


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


ASKS_FOR_MORE: dict[str, Any] = {
    "n": 2,
    "logprobs": True,
    "top_logprobs": 3,
    "response_format": {"type": "json_object"},
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "audio": {"voice": "alloy", "format": "wav"},
    "modalities": ["text", "audio"],
    "echo": True,
    "suffix": "x",
    "use_beam_search": True,
    "grammar": "root ::= x",
}


async def test_what_is_not_done_yet_is_refused_by_name(site: Site) -> None:
    for name, harmless in ACCEPTED.items():
        response = await site.post(**{name: ASKS_FOR_MORE.get(name, [7])})
        error = error_of(response)
        assert (response.status_code, error["code"], error["param"]) == (400, "unsupported", name)
        assert error["message"] == f"The field {name} is not supported."
        assert error["type"] == "invalid_request_error"
        for value in (None, *harmless):
            assert (await site.post(**{name: value}, max_tokens=1)).status_code == 200, (name, value)


BAD_MESSAGES: list[tuple[object, str]] = [
    ([], "messages"),
    ([{"role": "tool", "content": "x", "tool_call_id": "1"}], "messages[0].role"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content"),
    ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content"),
    ([*HI, {"role": "user", "content": None}], "messages[1].content"),
    ([*HI, {"role": "assistant", "content": "and"}], "messages"),
    ([{"role": "assistant", "content": None, "tool_calls": [{}]}, *HI], "messages[0].tool_calls"),
    ("hi", "messages"),
]
BAD_PARAMETERS: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_completion_tokens": 1.5}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"presence_penalty": 1e9}, "presence_penalty"),
    ({"logit_bias": {"99999": 1}}, "logit_bias"),
    ({"stream": "yes"}, "stream"),
    ({"truncation": "left"}, "truncation"),
]
BAD_BODIES = [b"", b"{", b"[]", b"null", b'{"messages": NaN}', b'{"model": "x"}', b"\xff", b"[" * 100_000]


async def test_bad_messages_and_parameters(site: Site) -> None:
    given = [*(({"messages": messages}, param) for messages, param in BAD_MESSAGES), *BAD_PARAMETERS]
    for body, param in given:
        response = await site.post(**body)
        assert (response.status_code, error_of(response)["param"]) == (400, param), body
    for raw in BAD_BODIES:
        response = await site.http.post("/v1/chat/completions", content=raw)
        assert response.status_code == 400, raw[:20]
        error_of(response)
    assert (await site.post(max_tokens=1)).status_code == 200


UNBOUNDED: dict[str, dict[str, Any]] = {
    "n": {"n": 10**6},
    "biases": {"logit_bias": {str(i): 1 for i in range(3_000)}},
    "stops": {"stop": ["x"] * 10_000},
    "10k messages": {"messages": HI * 10_000},
    "messages": {"messages": HI * (MAX_MESSAGES + 1)},
}


@pytest.fixture(scope="module")
def unbounded() -> dict[str, bytes]:
    """The bodies; the last is refused by its size, unread."""
    bodies = {name: json.dumps({"messages": HI, **given}).encode() for name, given in UNBOUNDED.items()}
    biases = ",".join(f'"{i}":1' for i in range(300_000))
    return {**bodies, "300k biases": f'{{"logit_bias":{{{biases}}}}}'.encode()}


async def test_m3_unbounded_lists(site: Site, unbounded: dict[str, bytes]) -> None:
    for name, body in unbounded.items():
        response = await site.http.post("/v1/chat/completions", content=body)
        assert response.status_code in (400, 413), name
        error_of(response)
    assert site.lab.service.counters.submitted == 0


@pytest.mark.parametrize("name", UNBOUNDED)
def test_m3_refusals_are_cheap(unbounded: dict[str, bytes], name: str) -> None:
    body = unbounded[name]

    def refuse() -> float:
        began = time.thread_time()
        with pytest.raises(ChatdError):  # noqa: PT012 - which of the steps refuses is not the point
            asked = decode_request(body)
            asked.turns()
            parse_params(asked.params(), vocab_size=1000, new_seed=lambda: 1)
        return time.thread_time() - began

    tracemalloc.start()
    refuse()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 10_000_000
    # The best of three: a collection of what other tests left may fall into any of them.
    assert min(refuse() for _ in range(3)) <= 0.05


async def test_the_client_sees_its_own_error_types(site: Site) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await site.chat(HI, n=3)
    assert (caught.value.code, caught.value.param) == ("unsupported", "n")


async def test_a_response_that_fails(site: Site) -> None:
    site.lab.runner.bad = lambda row: len(row.ids) - row.prompt_len == 3
    with pytest.raises(openai.InternalServerError) as caught:
        await site.chat(HI)
    assert caught.value.code == "bad_logits"
    response = await site.post(stream=True)
    *_, error, done, _ = response.text.split("\n\n")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "bad_logits"
    assert done == "data: [DONE]"


# -- readers that go away


class Nothing(BaseHTTPMiddleware):
    """The middleware that is known for hiding a disconnect from what is behind it."""

    async def dispatch(
        self, request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        return await call_next(request)


WRAPS: dict[str, Callable[[ASGIApp], ASGIApp]] = {
    "bare": lambda app: app,
    "middleware": lambda app: Nothing(Nothing(app)),
}


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("stream", [True, False])
async def test_o7_disconnect_ends_the_work(data_dir: Path, wrap: str, stream: bool) -> None:
    async with site_of(data_dir, wrap=WRAPS[wrap]) as site:
        site.lab.runner.before_step = lambda plan: time.sleep(0.001)
        body = {"messages": HI, "stream": stream, "ignore_eos": True}
        asking = asyncio.ensure_future(site.http.post("/v1/chat/completions", json=body))
        await until(lambda: site.lab.service.counters.generated > 20)
        asking.cancel()
        began = time.monotonic()
        await asyncio.wait([asking])
        await until(lambda: site.lab.service.open_count == 0)
        assert time.monotonic() - began <= 1 + NOISE_S
        report = await site.lab.store.sessions_report(ME)
        assert report.sessions[0].output_tokens == site.lab.service.counters.generated


async def test_o7_disconnect_before_the_first_token(data_dir: Path) -> None:
    async with site_of(data_dir, max_running=1) as site:
        site.lab.runner.before_step = lambda plan: time.sleep(0.001)
        running = await site.lab.create("one", params={"ignore_eos": True})
        asking = asyncio.ensure_future(site.post(stream=True))
        await until(lambda: site.lab.service.engine_state.waiting == 1)
        asking.cancel()
        await asyncio.wait([asking])
        began = time.monotonic()
        await until(lambda: site.lab.service.engine_state.waiting == 0)
        assert time.monotonic() - began <= 1 + NOISE_S
        await site.lab.service.cancel(ME, running.response_id)


# -- idempotency


async def test_q2_one_key_one_charge_one_reply(data_dir: Path) -> None:
    async with site_of(data_dir) as site:

        async def ask() -> tuple[str, str]:
            done = await site.chat(HI, max_tokens=20, extra_headers={"Idempotency-Key": "k"})
            return done.id, done.choices[0].message.content

        answers = [*(await asyncio.gather(*(ask() for _ in range(10)))), await ask()]
        assert len(set(answers)) == 1
        assert site.lab.service.counters.generated == 20
        other = await site.http.post(
            "/v1/chat/completions", json={"messages": HI}, headers={"Idempotency-Key": "k"}
        )
        assert other.status_code == 409


async def test_q2_again_after_a_time_out(data_dir: Path) -> None:
    """With a key a lost connection does not end the work: the same request gets the whole reply."""
    async with site_of(data_dir, saying(TEXT)) as site:
        gate = Gate()
        site.lab.runner.before_step = gate
        keyed = {"extra_headers": {"Idempotency-Key": "k"}}
        with pytest.raises(openai.APITimeoutError):
            await site.chat(HI, timeout=0.2, **keyed)
        gate.open()
        done = await site.chat(HI, **keyed)
        assert done.choices[0].message.content == TEXT
        record = await site.lab.record(done.id)
        assert record.status is ResponseStatus.COMPLETED
        assert site.lab.service.counters.generated == record.output_tokens


async def test_keys_out_of_range(site: Site) -> None:
    for key in ("", "x" * 201):
        response = await site.http.post(
            "/v1/chat/completions", json={"messages": HI}, headers={"Idempotency-Key": key}
        )
        assert error_of(response)["param"] == "Idempotency-Key"


async def test_while_the_model_loads(data_dir: Path) -> None:
    async with site_of(data_dir, wrap=without_service) as site:
        response = await site.post()
        assert (response.status_code, error_of(response)["type"]) == (503, "server_error")
        assert error_of(response)["code"] == "not_ready"
        with pytest.raises(openai.InternalServerError):
            await site.ai.models.list()


def without_service(app: Any) -> ASGIApp:
    app.state.chatd.service = None
    result: ASGIApp = app
    return result
