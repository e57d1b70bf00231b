"""/v1/responses: the stateful API on a conversation's tree, with the official client."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from chatd.ids import ConversationId, ResponseId, Rid
from chatd.server.openai_response_types import ACCEPTED
from tests.support.chat_lab import ME, saying, until
from tests.support.openai_site import Site, site_of

pytestmark = pytest.mark.usefixtures("blocked_loop")

TEXT = "Hello there, this is an answer."


@pytest.fixture
async def site(data_dir: Path) -> AsyncIterator[Site]:
    async with site_of(data_dir, saying(TEXT)) as site:
        yield site


async def ask(site: Site, said: Any = "hi", **given: Any) -> Any:
    return await site.ai.responses.create(model="any", input=said, temperature=0, **given)


async def path_of(site: Site, response_id: str) -> list[tuple[str, str]]:
    record = await site.lab.record(ResponseId(response_id))
    path = await site.lab.store.path_to(ME, record.message_id)
    return [(message.role, message.text) for message in path]


# -- answers


async def test_a_plain_response(site: Site) -> None:
    done = await ask(site, metadata={"a": "b"}, max_output_tokens=100, top_p=0.5)
    assert (done.object, done.model, done.status, done.error) == ("response", "toy", "completed", None)
    assert done.output_text == TEXT
    (item,) = done.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    assert (done.metadata, done.max_output_tokens, done.top_p) == ({"a": "b"}, 100, 0.5)
    record = await site.lab.record(ResponseId(done.id))
    usage = done.usage
    assert (usage.input_tokens, usage.output_tokens) == (record.prompt_tokens, len(TEXT) + 1)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.input_tokens_details.cached_tokens == 0
    assert usage.output_tokens_details.reasoning_tokens == 0
    assert done.timings["prompt_n"] == record.computed
    again = await site.ai.responses.retrieve(done.id)
    assert again == done


async def test_a_cut_response(site: Site) -> None:
    done = await ask(site, max_output_tokens=5)
    assert (done.status, done.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (done.output_text, done.output[0].status) == (TEXT[:5], "incomplete")


async def test_a_failed_response(site: Site) -> None:
    site.lab.runner.bad = lambda row: len(row.ids) - row.prompt_len == 3
    done = await ask(site)
    assert (done.status, done.error.code, done.output_text) == ("failed", "bad_logits", TEXT[:3])
    events = [event async for event in await ask(site, stream=True)]
    assert (events[-1].type, events[-1].response.error.code) == ("response.failed", "bad_logits")


async def test_a_stream(site: Site) -> None:
    events = [event async for event in await ask(site, stream=True)]
    kinds = [event.type for event in events]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert kinds == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
        *["response.output_text.delta"] * len(deltas),
        *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
        "response.completed",
    ]
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert "".join(event.delta for event in deltas) == TEXT
    done = events[-1].response
    assert (events[0].response.id, events[0].response.status) == (done.id, "queued")
    assert done == await site.ai.responses.retrieve(done.id)
    assert {event.item_id for event in deltas} == {done.output[0].id} == {events[2].item.id}
    assert events[-4].text == events[-3].part.text == events[-2].item.content[0].text == TEXT


async def test_the_clients_own_accumulator(site: Site) -> None:
    async with site.ai.responses.stream(model="any", input="hi", temperature=0) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert (final.output_text, final.status) == (TEXT, "completed")


async def test_every_cut_of_a_stream_can_be_taken_up(site: Site) -> None:
    done = await ask(site)
    url = f"/v1/responses/{done.id}?stream=true"
    whole = events_of((await site.http.get(url)).text)
    last = whole[-1]["sequence_number"]
    for after in range(last + 1):
        rest = events_of((await site.http.get(f"{url}&starting_after={after}")).text)
        if after < last:
            assert rest[-1] == whole[-1]
        assert all(event["sequence_number"] > after for event in rest)
        said = "".join(event.get("delta", "") for event in rest)
        assert said == TEXT[max(0, after - 3) :]


def events_of(text: str) -> list[dict[str, Any]]:
    """Each has its type as the event's name, too."""
    events = []
    for block in text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


# -- chains


async def test_a_chain_is_a_path_and_hits_to_the_token(data_dir: Path) -> None:
    async with site_of(data_dir) as site:
        last: Any = None
        for said in ("one", "two", "three"):
            done = await ask(
                site,
                said,
                instructions="Be brief.",
                max_output_tokens=20,
                previous_response_id=last.id if last else None,
            )
            if last is not None:
                assert done.previous_response_id == last.id
                kept = last.usage.input_tokens + last.usage.output_tokens - 1
                assert done.usage.input_tokens_details.cached_tokens == kept
            last = done
        assert [role for role, _ in await path_of(site, last.id)] == [
            "system",
            *["user", "assistant"] * 3,
        ]
        assert len((await site.lab.store.sessions_report(ME)).sessions) == 1


async def test_two_responses_to_one_are_branches(site: Site) -> None:
    first = await ask(site, "one")
    for text in ("a", "b"):
        done = await ask(site, text, previous_response_id=first.id)
        assert await path_of(site, done.id) == [
            ("user", "one"),
            ("assistant", TEXT),
            ("user", text),
            ("assistant", TEXT),
        ]


async def test_instructions_hold_for_one_response(site: Site) -> None:
    first = await ask(site, "one", instructions="Be brief.")
    assert first.instructions == "Be brief."
    for instructions in ("Be long.", None, ""):
        done = await ask(site, "two", instructions=instructions, previous_response_id=first.id)
        path = await path_of(site, done.id)
        head = [("system", instructions)] if instructions else []
        assert path == [*head, ("user", "one"), ("assistant", TEXT), ("user", "two"), ("assistant", TEXT)]
        assert done.instructions == (instructions or None)
        assert (await site.ai.responses.retrieve(done.id)).instructions == (instructions or None)


async def test_several_items(site: Site) -> None:
    first = await ask(site, "one")
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "two"}]},
        first.output[0].model_dump(),
        {"role": "user", "content": "three"},
    ]
    done = await ask(site, items, previous_response_id=first.id)
    listed = await site.ai.responses.input_items.list(done.id, order="asc")
    assert [(one.role, one.content[0].text) for one in listed.data] == [
        ("user", "one"),
        ("assistant", TEXT),
        ("system", "Be brief."),
        ("user", "two"),
        ("assistant", TEXT),
        ("user", "three"),
    ]
    newest = [one.id async for one in site.ai.responses.input_items.list(done.id, limit=2)]
    assert newest == [one.id for one in reversed(listed.data)]


async def test_a_conversation(site: Site) -> None:
    """One that the page shows too: what is asked here stands there."""
    made = (await site.http.post("/api/v1/conversations", json={"title": "t"})).json()
    first = await ask(site, "one", conversation=made["id"], instructions="Be brief.")
    assert first.conversation.id == made["id"]
    second = await ask(site, "two", conversation={"id": made["id"]}, instructions="Be brief.")
    assert len(await path_of(site, second.id)) == 5
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(site, "x", conversation=made["id"], instructions="Be long.")
    assert caught.value.param == "instructions"
    view = await site.lab.store.conversation(ME, ConversationId(made["id"]))
    assert len(view.messages) == 5


async def test_a_response_of_the_page_goes_on_here(site: Site) -> None:
    asked = await site.lab.ask("one")
    done = await ask(site, "two", previous_response_id=asked.started.response_id)
    record = await site.lab.record(ResponseId(done.id))
    assert record.conversation_id == asked.started.conversation_id
    assert (await site.ai.responses.retrieve(asked.started.response_id)).output_text == TEXT


# -- running, stopping, deleting


async def test_a_conversation_is_deleted_while_it_is_answered(data_dir: Path) -> None:
    async with site_of(data_dir, by_hand=True) as site:
        made = (await site.http.post("/api/v1/conversations", json={"title": "t"})).json()
        begun = await ask(site, conversation=made["id"], background=True)
        site.lab.hand.say(Rid(begun.id), "so ", "far")
        await until(lambda: site.lab.service.counters.generated == 2)
        path = f"/api/v1/conversations/{made['id']}"
        assert (await site.http.delete(path)).status_code == 204
        assert (await site.http.get(path)).status_code == 404


async def test_the_background(data_dir: Path) -> None:
    async with site_of(data_dir, by_hand=True) as site:
        begun = await ask(site, background=True)
        assert (begun.status, begun.output, begun.background) == ("queued", [], True)
        site.lab.hand.say(Rid(begun.id), "so ", "far")
        await until(lambda: site.lab.service.counters.generated == 2)
        while (now := await site.ai.responses.retrieve(begun.id)).output_text != "so far":
            pass
        assert (now.status, now.usage, now.output[0].status) == ("in_progress", None, "in_progress")
        with pytest.raises(openai.ConflictError):
            await ask(site, previous_response_id=begun.id)
        ended = await site.ai.responses.cancel(begun.id)
        assert (ended.status, ended.output_text, ended.output[0].status) == (
            "cancelled",
            "so far",
            "incomplete",
        )
        assert ended.usage.output_tokens == 2
        assert await site.ai.responses.cancel(begun.id) == ended


async def test_a_stream_of_the_background_is_cut_and_taken_up(data_dir: Path) -> None:
    async with site_of(data_dir, by_hand=True) as site:
        async with await ask(site, background=True, stream=True) as stream:
            begun = (await anext(stream)).response
            rid = Rid(begun.id)
            site.lab.hand.say(rid, "one ")
            while (event := await anext(stream)).type != "response.output_text.delta":
                pass
        site.lab.hand.say(rid, "two")
        async with await site.ai.responses.retrieve(
            begun.id, stream=True, starting_after=event.sequence_number
        ) as stream:
            assert (await anext(stream)).delta == "two"
            site.lab.hand.finish(rid)
            *_, last = [event async for event in stream]
        assert (last.type, last.response.output_text) == ("response.incomplete", "one two")


@pytest.mark.parametrize("stream", [True, False])
async def test_o7_disconnect_ends_it(data_dir: Path, stream: bool) -> None:
    async with site_of(data_dir, by_hand=True) as site:
        asking = asyncio.ensure_future(site.http.post("/v1/responses", json={"input": "x", "stream": stream}))
        await until(lambda: bool(site.lab.hand.submitted))
        (rid,) = site.lab.hand.submitted
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: site.lab.service.open_count == 0)
        assert (await site.ai.responses.retrieve(rid)).status == "cancelled"


async def test_deleting(site: Site) -> None:
    first = await ask(site, "one")
    second = await ask(site, "two", previous_response_id=first.id)
    await site.ai.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await site.ai.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError) as caught:
        await ask(site, "x", previous_response_id=first.id)
    assert caught.value.param == "previous_response_id"
    third = await ask(site, "three", previous_response_id=second.id)
    assert len(await path_of(site, third.id)) == 6
    conversation_id = (await site.lab.record(ResponseId(third.id))).conversation_id
    for one in (second, third):
        await site.ai.responses.delete(one.id)
    with pytest.raises(Exception, match="no such conversation"):
        await site.lab.store.head(ME, conversation_id)
    usage = (await site.http.get(f"/api/v1/responses/{third.id}")).json()["usage"]
    assert usage["output_tokens"] == third.usage.output_tokens


async def test_deleting_one_that_runs_and_one_of_a_conversation(data_dir: Path) -> None:
    async with site_of(data_dir, by_hand=True) as site:
        begun = await ask(site, background=True)
        await site.ai.responses.delete(begun.id)
        await until(lambda: site.lab.service.open_count == 0)
        shown = await site.lab.create("hi")
        site.lab.hand.finish(Rid(shown.response_id))
        await site.lab.read(shown)
        await site.ai.responses.delete(shown.response_id)
        assert (await site.lab.store.head(ME, shown.conversation_id)).id == shown.conversation_id


async def test_what_is_not_to_be_stored_cannot_be_asked_for(site: Site) -> None:
    done = await ask(site, store=False)
    assert (done.store, done.output_text) == (False, TEXT)
    with pytest.raises(openai.NotFoundError):
        await site.ai.responses.retrieve(done.id)
    with pytest.raises(openai.NotFoundError):
        await ask(site, previous_response_id=done.id)
    record = (await site.http.get(f"/api/v1/responses/{done.id}")).json()
    assert record["usage"]["output_tokens"] == len(TEXT) + 1
    where = f"/api/v1/conversations/{record['conversation_id']}"
    assert (await site.http.get(where)).status_code == 404
    assert (await site.http.get(f"{where}/export")).status_code == 404


async def test_what_is_not_to_be_stored_is_gone_soon_and_the_money_stays(data_dir: Path) -> None:
    async with site_of(data_dir, saying(TEXT)) as site:
        store = site.lab.store
        unstored, kept = await ask(site, "secret", store=False), await ask(site, "not secret")
        again = [{"role": "user", "content": "secret"}, {"role": "assistant", "content": TEXT}]
        on = await ask(site, [*again, {"role": "user", "content": "more"}], store=False)
        assert on.usage.input_tokens_details.cached_tokens > len(TEXT), "until then it can be gone on with"
        assert await store.prune() == 0
        assert await store.prune(0.0) == 1
        for one in (unstored, on):
            assert (await site.lab.record(ResponseId(one.id))).cost.total_nano > 0
            assert await store.pieces_after(ResponseId(one.id), 0) == []
        assert (await site.ai.responses.retrieve(kept.id)).output_text == TEXT
        assert await store.prune(0.0) == 0


async def test_a_key_gives_the_same_response(site: Site) -> None:
    given = {"extra_headers": {"Idempotency-Key": "k"}, "metadata": {"a": "b"}}
    first, again = await ask(site, **given), await ask(site, **given)
    assert first == again
    with pytest.raises(openai.ConflictError):
        await ask(site, extra_headers={"Idempotency-Key": "k"}, metadata={"a": "c"})


# -- counting, and what is refused


async def test_counting_tokens(site: Site) -> None:
    first = await ask(site, "one", instructions="Be brief.")
    asked = {"input": "two", "instructions": "Be brief.", "previous_response_id": first.id}
    counted = await site.ai.responses.input_tokens.count(**asked)
    done = await ask(site, "two", instructions="Be brief.", previous_response_id=first.id)
    assert (counted.input_tokens, counted.object) == (done.usage.input_tokens, "response.input_tokens")
    messages = [{"role": "user", "content": "hello"}]
    chat = await site.http.post("/v1/chat/completions/input_tokens", json={"messages": messages})
    assert chat.json()["input_tokens"] == (await site.chat(messages)).usage.prompt_tokens
    far = await site.ai.responses.input_tokens.count(input="x" * 9000)
    assert far.input_tokens > 9000


BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": " \n"}, "input"),
    ({"input": [{"role": "user", "content": None}]}, "input[0].content"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
    ({"input": [{"role": "assistant", "content": "x"}]}, "input"),
    ({"input": "x", "max_output_tokens": 0}, "max_tokens"),
    ({"input": "x", "temperature": 3}, "temperature"),
    ({"input": "x", "metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ({"input": "x", "metadata": {"a": "x" * 513}}, "metadata"),
    ({"input": "x", "background": True, "store": False}, "background"),
    ({"input": "x", "conversation": "c", "store": False}, "store"),
    ({"input": "x", "previous_response_id": "a", "conversation": "b"}, "previous_response_id"),
    *(({"input": "x", name: [7]}, name) for name in ACCEPTED),
]


async def test_what_is_refused(site: Site) -> None:
    for body, param in BAD:
        answer = await site.http.post("/v1/responses", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body
    assert site.lab.service.counters.submitted == 0
    for name, harmless in ACCEPTED.items():
        for value in (None, *harmless):
            answer = await site.http.post("/v1/responses", json={"input": "x", name: value})
            assert answer.status_code == 200, (name, value)


async def test_ids_that_are_nobodys(site: Site) -> None:
    for line in ("GET {}", "DELETE {}", "POST {}/cancel", "GET {}/input_items"):
        method, path = line.split(" ")
        for unknown in ("nope", "x" * 500):
            answer = await site.http.request(method, "/v1/responses/" + path.format(unknown))
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    done = await ask(site)
    for query in ("starting_after=-1&stream=true", "starting_after=x&stream=true"):
        assert (await site.http.get(f"/v1/responses/{done.id}?{query}")).status_code == 400
    for query in ("order=up", "limit=0", "limit=101", "after=nope"):
        answer = await site.http.get(f"/v1/responses/{done.id}/input_items?{query}")
        assert answer.status_code == 400
