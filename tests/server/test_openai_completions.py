"""/v1/completions, with the official client and with raw HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_lab import ME, saying, until
from tests.support.openai_site import Site, site_of

pytestmark = pytest.mark.usefixtures("blocked_loop")

TEXT = " there was a server."


@pytest.fixture
async def site(data_dir: Path) -> AsyncIterator[Site]:
    async with site_of(data_dir, saying(TEXT)) as site:
        yield site


async def complete(site: Site, prompt: Any, **given: Any) -> Any:
    return await site.ai.completions.create(model="any", prompt=prompt, temperature=0, **given)


async def test_a_plain_completion(site: Site) -> None:
    done = await complete(site, "Once", max_tokens=100)
    assert (done.object, done.model) == ("text_completion", "toy")
    assert (done.choices[0].text, done.choices[0].finish_reason) == (TEXT, "stop")
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (4, len(TEXT) + 1)
    assert (done.timings["prompt_n"], done.timings["predicted_n"]) == (4, len(TEXT) + 1)


async def test_sixteen_tokens_unless_more_are_asked_for(site: Site) -> None:
    done = await complete(site, "Once")
    assert (done.choices[0].text, done.choices[0].finish_reason) == (TEXT[:16], "length")


async def test_no_template_and_no_control_tokens(site: Site) -> None:
    """The prompt is its text and nothing else, whatever is written in it."""
    text = "<|im_start|>user\nhi<|im_end|>"
    done = await complete(site, text, max_tokens=1)
    assert done.usage.prompt_tokens == len(text)
    record = await site.lab.record(done.id)
    path = await site.lab.store.path_to(ME, record.message_id)
    assert [(one.role, one.text) for one in path] == [("user", text), ("assistant", TEXT[:1])]
    assert path[0].token_ids == tuple(text.encode())


async def test_the_forms_of_a_prompt(site: Site) -> None:
    for prompt in (["Once"], [79, 110, 99, 101], [[79, 110, 99, 101]]):
        done = await complete(site, prompt, max_tokens=3, echo=True)
        assert (done.choices[0].text, done.usage.prompt_tokens) == ("Once" + TEXT[:3], 4)


async def test_a_stream(site: Site) -> None:
    stream = await complete(
        site, "Once", max_tokens=100, echo=True, stream=True, stream_options={"include_usage": True}
    )
    *body, last, usage = [event async for event in stream]
    assert {event.object for event in [*body, last]} == {"text_completion"}
    assert body[0].choices[0].text == "Once"
    assert "".join(event.choices[0].text for event in body) == "Once" + TEXT
    assert last.choices[0].finish_reason == "stop"
    assert last.timings["cache_n"] == 0
    assert (usage.choices, usage.usage.completion_tokens) == ([], len(TEXT) + 1)


async def test_progress(site: Site) -> None:
    body = {"prompt": "x" * 1500, "stream": True, "return_progress": True, "max_tokens": 2}
    answer = await site.http.post("/v1/completions", json=body)
    events = [json.loads(line[6:]) for line in answer.text.split("\n\n")[:-2]]
    shown = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert {tuple(one) for one in shown} == {("total", "cache", "processed", "time_ms")}
    assert [one["processed"] for one in shown] == sorted(one["processed"] for one in shown)
    assert (shown[-1]["processed"], shown[-1]["total"], shown[-1]["cache"]) == (1500, 1500, 0)


async def test_text_that_goes_on_hits_what_it_goes_on_from(site: Site) -> None:
    first = await complete(site, "Once upon a time", max_tokens=4)
    text = "Once upon a time" + first.choices[0].text
    again = await complete(site, text + " and", max_tokens=4)
    assert again.usage.prompt_tokens_details.cached_tokens == len(text) - 1


async def test_a_chat_with_the_same_words_is_another_history(data_dir: Path, tmp_path: Path) -> None:
    """Stored ids are kept only where the template would show the same."""
    async with site_of(data_dir) as site, site_of(tmp_path) as cold:
        done = await complete(site, "hi", max_tokens=5)
        chat = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": done.choices[0].text},
            {"role": "user", "content": "and?"},
        ]
        warm, fresh = await site.chat(chat, max_tokens=12), await cold.chat(chat, max_tokens=12)
        assert warm.choices[0].message.content == fresh.choices[0].message.content
        assert warm.usage.prompt_tokens == fresh.usage.prompt_tokens


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [""]}, "prompt"),
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": [[1], [2]]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [10**9]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": 3}, "prompt"),
    ({"prompt": "x", "suffix": "y"}, "suffix"),
    ({"prompt": "x", "n": 2}, "n"),
    ({"prompt": "x", "best_of": 2}, "best_of"),
    ({"prompt": "x", "logprobs": 1}, "logprobs"),
    ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "x", "truncation": "auto"}, "truncation"),
]


async def test_what_is_refused(site: Site) -> None:
    for body, param in BAD:
        answer = await site.http.post("/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body
    assert site.lab.service.counters.submitted == 0
    answer = await site.http.post("/v1/completions", json={"prompt": "x" * 5000})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("stream", [True, False])
async def test_o7_disconnect_ends_it(data_dir: Path, stream: bool) -> None:
    async with site_of(data_dir, by_hand=True) as site:
        body = {"prompt": "x", "stream": stream, "max_tokens": 50}
        asking = asyncio.ensure_future(site.http.post("/v1/completions", json=body))
        await until(lambda: bool(site.lab.hand.submitted))
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: site.lab.service.open_count == 0)
