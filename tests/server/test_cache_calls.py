"""Dry runs, warming, deletion that takes KV along, and the operator's routes."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from chatd.engine.messages import (
    CacheDone,
    CachedPath,
    CacheListing,
    ClearCache,
    Forget,
    ListCache,
    PinPrefix,
    Probe,
    Probed,
    TierNote,
    TierOutcome,
    UnpinPrefix,
    Warm,
)
from chatd.errors import NotReady
from chatd.ids import Namespace, Rid
from chatd.server import protocol as wire
from chatd.server.allowance import Allowance
from chatd.server.engine_calls import EngineCalls
from chatd.server.prompt import PromptMaker
from chatd.server.service import INLINE_CHARS, ChatTurn, CreateCommand
from chatd.server.turns import Place
from tests.support.chat_lab import ME, ChatLab, CommandT, chat_lab, saying, until
from tests.support.live_server import LiveServer, bare_server, live_lab

pytestmark = pytest.mark.usefixtures("blocked_loop")

TOKEN = {"x-chatd-admin": "sesame"}
SENTENCE = "The quick brown fox jumps over the lazy dog. " * 3


@contextlib.asynccontextmanager
async def api(data_dir: Path) -> AsyncIterator[tuple[httpx.AsyncClient, LiveServer, ChatLab]]:
    """A server over an engine moved by hand, whose operator knows the token."""
    async with (
        live_lab(data_dir) as (server, lab),
        httpx.AsyncClient(base_url=f"{server.url}/api/v1", trust_env=False, timeout=15) as http,
    ):
        server.state.admin_token = "sesame"
        yield http, server, lab


async def sent(lab: ChatLab, kind: type[CommandT]) -> CommandT:
    """The next command of that kind, once it was sent."""
    await until(lambda: any(isinstance(command, kind) for command in lab.hand.sent))
    command = lab.hand.last_sent(kind)
    lab.hand.sent.remove(command)
    return command


async def talk(lab: ChatLab, text: str = SENTENCE, **command: Any) -> tuple[str, str]:
    """A finished answer; the ids of its conversation and its message."""
    started = await lab.create(text, **command)
    lab.hand.say(Rid(started.response_id), "x", "y")
    lab.hand.finish(Rid(started.response_id))
    await lab.read(started)
    lab.hand.sent.clear()
    return started.conversation_id, started.message_id


# -- dry runs


async def test_estimate_over_http(data_dir: Path) -> None:
    async with api(data_dir) as (http, _, lab):
        conversation_id, _ = await talk(lab)
        before = await lab.store.verify()
        body = {"conversation_id": conversation_id, "input": "more"}
        asking = asyncio.create_task(http.post("/cache/estimate", json=body))
        probe = await sent(lab, Probe)
        total = len(probe.prompt_ids)
        note = TierNote(TierOutcome.CHEAPER, 64, 8.0, 2.0, elsewhere=64)
        lab.hand.answer(Probed(probe.rid, total, 100, 0, total - 100, 0.25, 0.0, 0.5, note))
        answer = (await asking).json()
        assert set(answer) == {
            *("prompt_tokens", "gpu_hit", "disk_hit", "computed", "queue_ms", "restore_ms", "compute_ms"),
            *("ttft_ms", "cost", "context_left", "max_tokens", "dropped_turns", "xray"),
        }
        assert (answer["prompt_tokens"], answer["gpu_hit"], answer["ttft_ms"]) == (total, 100, 750.0)
        assert answer["context_left"] == 4096 - total
        computed, reused = total - 100, 100
        assert answer["cost"]["prompt_nano"] == 1000 * computed + 100 * reused
        assert answer["cost"]["without_cache_nano"] == 1000 * total
        assert answer["xray"]["cause"] == "recompute_cheaper"
        assert answer["xray"]["disk"]["choice"] == "compute"
        after = await lab.store.verify()
        assert (after.messages, after.responses) == (before.messages, before.responses)
        assert lab.hand.submitted == {}


async def test_an_estimate_is_what_then_happens(data_dir: Path) -> None:
    """With a real engine, for each way to ask."""
    greedy: dict[str, Any] = {"params": {"temperature": 0, "max_tokens": 4}}
    async with chat_lab(data_dir) as lab:
        first = await lab.ask(SENTENCE, **greedy)
        asked: list[dict[str, Any]] = [
            {"text": "more", "conversation_id": first.started.conversation_id},
            {"kind": "regenerate", "target_id": first.started.message_id},
            {"text": SENTENCE + "!", "kind": "edit", "target_id": first.started.user_message_id},
            {"kind": "continue"},  # of the last answer
            {"messages": (ChatTurn("user", SENTENCE),), "hidden": True},
        ]
        last = first
        for fields in asked:
            if fields.get("kind") == "continue":
                fields["target_id"] = last.started.message_id
            command = {"text": "", **fields, **greedy}
            expected = await lab.service.estimate(ME, lab.command(**command))
            last = await lab.ask(**command)
            probed, record = expected.probed, last.record
            assert (probed.gpu_hit, probed.disk_hit, probed.computed) == (
                record.gpu_hit,
                record.disk_hit,
                record.computed,
            )
            assert expected.cost.prompt_nano == record.cost.prompt_nano
            assert expected.xray.cause == record.cause


async def test_estimate_over_the_socket(data_dir: Path) -> None:
    async with live_lab(data_dir) as (server, lab), server.client() as client:
        await client.send(wire.CacheEstimate("mine", "hello"))
        probe = await sent(lab, Probe)
        total = len(probe.prompt_ids)
        lab.hand.answer(Probed(probe.rid, total, 0, 0, total, 0.0, 0.0, 0.5, TierNote()))
        answer = await client.until(wire.CacheEstimated)
        assert (answer.idempotency_key, answer.ttft_ms, answer.xray.cause) == ("mine", 500.0, "new_text")
        await client.send(wire.CacheEstimate("theirs", "hello", conversation_id="nowhere"))
        error = await client.until(wire.Error)
        assert (error.code, error.idempotency_key) == ("not_found", "theirs")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_parameter"),
        ({"input": " "}, "invalid_parameter"),
        ({"input": "x", "edit": "a", "regenerate": "b"}, "invalid_parameter"),
        ({"input": "x", "params": {"temperature": 9}}, "invalid_parameter"),
        ({"input": "x", "surprise": 1}, "bad_frame"),
        ({"regenerate": "nothing"}, "not_found"),
        ({"input": "x" * 9000}, "context_length_exceeded"),
    ],
)
async def test_what_an_estimate_refuses(data_dir: Path, body: dict[str, Any], code: str) -> None:
    async with api(data_dir) as (http, _, lab):
        answer = await http.post("/cache/estimate", json=body)
        assert answer.json()["error"]["code"] == code
        assert lab.hand.sent == []


async def test_an_engine_that_does_not_answer_is_said_so() -> None:
    sent_rids: list[Rid] = []
    calls = EngineCalls(lambda command: sent_rids.append(command.rid), lambda: "1", answer_s=0.01)  # type: ignore[union-attr]
    with pytest.raises(NotReady, match="did not answer"):
        await calls.listing(ListCache(calls.new_rid()))
    calls.take(CacheListing(sent_rids[0], ()))  # too late: nobody waits
    asking = asyncio.create_task(calls.done(ClearCache(Rid("x"))))
    await until(lambda: len(sent_rids) == 2)
    calls.take(CacheDone(Rid("x"), error="in use"))
    with pytest.raises(NotReady, match="in use"):
        await asking
    asking = asyncio.create_task(calls.done(ClearCache(Rid("y"))))
    await until(lambda: len(sent_rids) == 3)
    calls.fail(NotReady("it stopped"))
    for _ in range(2):
        with pytest.raises(NotReady, match="it stopped"):
            await asking
        asking = asyncio.create_task(calls.done(ClearCache(Rid("z"))))
    with pytest.raises(NotReady, match="it stopped"):
        await asking
    depths = set()
    for _ in range(3):
        with pytest.raises(NotReady) as refused:
            await calls.listing(ListCache(Rid("z")))
        depths.add(len(refused.traceback))
    assert len(depths) == 1, "each refusal stands by itself"
    assert len(sent_rids) == 3


async def test_turns_do_not_wait_for_what_is_no_turn(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, count = threading.Event(), PromptMaker.count

    def held_up(maker: PromptMaker, place: Place, command: CreateCommand) -> int:
        assert gate.wait(20)
        return count(maker, place, command)

    monkeypatch.setattr(PromptMaker, "count", held_up)
    async with chat_lab(data_dir) as lab:
        looks = [asyncio.create_task(lab.service.count_tokens(ME, lab.command("x"))) for _ in range(8)]
        try:
            await lab.ask("y" * (INLINE_CHARS + 1), params={"max_tokens": 1})
            assert not any(look.done() for look in looks)
        finally:
            gate.set()
        assert len(set(await asyncio.gather(*looks))) == 1


# -- warming


async def test_warm_brings_the_tip(data_dir: Path) -> None:
    async with live_lab(data_dir) as (server, lab), server.client() as client:
        conversation_id, message_id = await talk(lab)
        tip = await lab.message(message_id)  # type: ignore[arg-type]
        await client.send(wire.ConversationWarm(conversation_id))
        warm = await sent(lab, Warm)
        assert warm.namespace == ME
        assert warm.prompt_ids[-2:] == tip.token_ids
        await client.send(wire.ConversationWarm("nowhere"))
        error = await client.until(wire.Error)
        assert (error.code, error.conversation_id) == ("not_found", "nowhere")
        empty = await lab.store.create_conversation(ME)
        await client.send(wire.ConversationWarm(empty.id))
        await client.send(wire.Ping())
        await client.until(wire.Pong)
        assert lab.hand.sent == []


async def test_too_many_hints_are_dropped(data_dir: Path) -> None:
    async with api(data_dir) as (http, server, lab):
        conversation_id, _ = await talk(lab)
        taken = [(await http.post(f"/conversations/{conversation_id}/warm")).json() for _ in range(30)]
        assert {"accepted": True} in taken
        assert {"accepted": False} in taken
        assert (await http.post("/conversations/nowhere/warm")).status_code in (202, 404)
        async with server.client() as client:
            lab.hand.sent.clear()
            for _ in range(30):
                await client.send(wire.ConversationWarm(conversation_id))
            await client.send(wire.Ping())
            await client.until(wire.Pong)
            assert len(lab.hand.sent) <= 12


def test_an_allowance_fills_up_again() -> None:
    allowance = Allowance(2, 0.5)
    assert [allowance.take(at) for at in (0.0, 0.0, 0.0, 1.9, 2.0, 2.0)] == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]
    assert [allowance.take(100.0) for _ in range(3)] == [True, True, False]


# -- deletion


async def test_deleting_forgets_every_path(data_dir: Path) -> None:
    async with api(data_dir) as (http, _, lab):
        conversation_id, message_id = await talk(lab)
        await talk(lab, "second", conversation_id=conversation_id)
        question = (await lab.message(message_id)).parent_id  # type: ignore[arg-type]
        await talk(lab, "another", kind="edit", target_id=question)
        assert (await http.delete(f"/conversations/{conversation_id}")).status_code == 204
        forget = await sent(lab, Forget)
        assert forget.namespace == ME
        assert len(forget.paths) == 2
        [purge, other] = await lab.store.purges()
        assert {purge.token_ids, other.token_ids} == set(forget.paths)
        lab.hand.answer(CacheDone(forget.rid, 100, 1))
        while await lab.store.purges():  # noqa: ASYNC110 - a row in a file has no event
            await asyncio.sleep(0)


async def what_is_left(lab: ChatLab) -> tuple[CachedPath, ...]:
    """In memory, once all that was deleted is forgotten."""
    while await lab.store.purges():  # noqa: ASYNC110 - a row in a file has no event
        await asyncio.sleep(0)
    return await lab.service.cache.listing(100)


@pytest.mark.parametrize("stop", [None, " tw", "three f", "a b"])
async def test_no_kv_is_left_of_a_deleted_answer(data_dir: Path, stop: str | None) -> None:
    """Not of what followed a stop string either, which no history has."""
    text = "one two three four five six seven eight nine ten"
    async with chat_lab(data_dir, saying(text)) as lab:
        params = {} if stop is None else {"stop": [stop]}
        answer = await lab.ask(SENTENCE, params=params)
        assert answer.text == text.partition(stop or "!")[0]
        assert await lab.service.cache.listing(100)
        await lab.service.delete(ME, answer.started.conversation_id)
        assert await what_is_left(lab) == ()


async def test_what_others_need_is_left(data_dir: Path) -> None:
    async with chat_lab(data_dir, saying("one two three four five six seven eight nine ten")) as lab:
        first = await lab.ask(SENTENCE)
        second = await lab.ask("more", conversation_id=first.started.conversation_id)
        await lab.ask("other", kind="edit", target_id=second.started.user_message_id)
        await lab.ask("", kind="regenerate", target_id=second.started.message_id)
        kept = await lab.ask(SENTENCE + "and more")
        await lab.service.delete(ME, first.started.conversation_id)
        assert sum(path.tokens for path in await what_is_left(lab)) == kept.record.kv_len


async def test_what_could_not_be_forgotten_is_after_a_restart(data_dir: Path) -> None:
    async with chat_lab(data_dir, by_hand=True) as lab:
        conversation_id, _ = await talk(lab)
        await lab.service.delete(ME, conversation_id)  # type: ignore[arg-type]
        first = await sent(lab, Forget)
    async with chat_lab(data_dir, by_hand=True, prefix="later") as lab:
        again = await sent(lab, Forget)
        assert again.paths == first.paths
        lab.hand.answer(CacheDone(again.rid))


async def test_deleting_cancels_what_is_written_there(data_dir: Path) -> None:
    async with api(data_dir) as (http, server, lab), server.client() as client:
        created = await client.start(SENTENCE)
        lab.hand.say(Rid(created.response_id), "x")
        other = await client.start("elsewhere")
        gone = await http.delete(f"/conversations/{created.conversation_id}")
        assert gone.status_code == 204
        assert isinstance(await client.ending(created.response_id), wire.ResponseCancelled)
        forget = await sent(lab, Forget)
        assert len(forget.paths) == 1
        lab.hand.answer(CacheDone(forget.rid))
        assert set(lab.hand.submitted) == {Rid(other.response_id)}
        assert (await http.delete(f"/conversations/{created.conversation_id}")).status_code == 404


async def test_somebody_elses_conversation_is_not_deleted(data_dir: Path) -> None:
    async with api(data_dir) as (http, _, lab):
        theirs = await lab.create(ns=Namespace("them"))
        lab.hand.say(Rid(theirs.response_id), "x")
        assert (await http.delete(f"/conversations/{theirs.conversation_id}")).status_code == 404
        assert set(lab.hand.submitted) == {Rid(theirs.response_id)}


# -- the operator


ADMIN = [
    ("GET", "/stats"),
    ("GET", "/paths"),
    ("POST", "/clear"),
    ("GET", "/pins"),
    ("POST", "/pins"),
    ("DELETE", "/pins/x"),
    ("POST", "/verify"),
]


@pytest.mark.parametrize(("method", "path"), ADMIN)
async def test_no_route_opens_without_the_token(data_dir: Path, method: str, path: str) -> None:
    async with api(data_dir) as (http, server, lab):
        for headers in ({}, {"x-chatd-admin": ""}, {"x-chatd-admin": "sesamE"}, {"x-chatd-admin": "sés"}):
            encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
            answer = await http.request(method, "/admin/cache" + path, headers=encoded, content=b"{}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_allowed")
        server.state.admin_token = ""
        answer = await http.request(method, "/admin/cache" + path, headers={"x-chatd-admin": ""})
        assert answer.status_code == 403
        assert lab.hand.sent == []


async def test_stats(data_dir: Path) -> None:
    async with api(data_dir) as (http, _, lab):
        await talk(lab)
        body = (await http.get("/admin/cache/stats", headers=TOKEN)).json()
        assert body["counters"]["prompt_tokens"] > 0
        assert body["causes"] == [
            {"cause": "new_text", "responses": 1, "computed": body["counters"]["prompt_tokens"]}
        ]
        assert (body["disk"], body["pins"], body["predictions"]["made"]) == (None, 0, 0)


async def test_paths_show_their_text_to_the_operator(data_dir: Path) -> None:
    async with api(data_dir) as (http, _, lab):
        asking = asyncio.create_task(http.get("/admin/cache/paths?limit=5", headers=TOKEN))
        command = await sent(lab, ListCache)
        assert command.limit == 5
        path = CachedPath(ME, -1, 0, 70, 5, 1, 64, tuple(b"Hello"))
        lab.hand.answer(CacheListing(command.rid, (path,)))
        [shown] = (await asking).json()["paths"]
        assert (shown["head"], shown["tokens"], shown["stored"]) == ("Hello", 70, 64)
        for limit in ("0", "x", "99999999"):
            refused = await http.get("/admin/cache/paths", params={"limit": limit}, headers=TOKEN)
            assert refused.json()["error"]["code"] == "invalid_parameter"


async def test_clear(data_dir: Path) -> None:
    async with api(data_dir) as (http, _, lab):
        body = {"namespace": "me", "disk": False}
        asking = asyncio.create_task(http.post("/admin/cache/clear", json=body, headers=TOKEN))
        command = await sent(lab, ClearCache)
        assert (command.namespace, command.disk) == ("me", False)
        lab.hand.answer(CacheDone(command.rid, 640, 10))
        assert (await asking).json() == {"tokens": 640, "blocks": 10}


async def test_pins_outlive_the_server(data_dir: Path) -> None:
    async with api(data_dir) as (http, _, lab):
        asking = asyncio.create_task(
            http.post("/admin/cache/pins", json={"name": "house", "text": SENTENCE}, headers=TOKEN)
        )
        command = await sent(lab, PinPrefix)
        assert bytes(i for i in command.prompt_ids if i < 256).startswith(b"system\nThe quick")
        lab.hand.answer(CacheDone(command.rid, 128, 0))
        assert (await asking).status_code == 201
        [pin] = (await http.get("/admin/cache/pins", headers=TOKEN)).json()["pins"]
        assert (pin["name"], pin["tokens"]) == ("house", len(command.prompt_ids))
    async with live_lab(data_dir, lab={"by_hand": True, "prefix": "later"}) as (server, lab):
        server.state.admin_token = "sesame"
        again = await sent(lab, PinPrefix)
        assert (again.name, again.prompt_ids) == ("house", command.prompt_ids)
        lab.hand.answer(CacheDone(again.rid))
        async with httpx.AsyncClient(base_url=f"{server.url}/api/v1", trust_env=False) as http:
            asking = asyncio.create_task(http.delete("/admin/cache/pins/house", headers=TOKEN))
            command_ = await sent(lab, UnpinPrefix)
            lab.hand.answer(CacheDone(command_.rid))
            assert (await asking).status_code == 204
            assert (await http.delete("/admin/cache/pins/house", headers=TOKEN)).status_code == 404
            assert (await http.get("/admin/cache/pins", headers=TOKEN)).json() == {"pins": []}


async def test_pinning_a_conversation(data_dir: Path) -> None:
    async with api(data_dir) as (http, _, lab):
        made = await lab.store.create_conversation(ME, "t", SENTENCE)
        conversation_id, _ = await talk(lab, conversation_id=made.id)
        for fields in ({"conversation_id": conversation_id}, {"system_of": conversation_id}):
            name = next(iter(fields))
            asking = asyncio.create_task(
                http.post("/admin/cache/pins", json={"name": name, **fields}, headers=TOKEN)
            )
            command = await sent(lab, PinPrefix)
            assert (command.namespace, command.name) == (ME, name)
            lab.hand.answer(CacheDone(command.rid))
            assert (await asking).status_code == 201
        whole, system = await lab.store.pins()
        assert whole.token_ids[: len(system.token_ids)] == system.token_ids
        assert len(whole.token_ids) > len(system.token_ids)


async def test_pins_that_cannot_be(data_dir: Path) -> None:
    async with api(data_dir) as (http, _, lab):
        conversation_id, _ = await talk(lab)
        bad: list[tuple[dict[str, Any], str]] = [
            ({"name": "a"}, "invalid_parameter"),
            ({"name": "", "text": SENTENCE}, "invalid_parameter"),
            ({"name": "a", "text": SENTENCE, "system_of": "c"}, "invalid_parameter"),
            ({"name": "a", "text": "short"}, "invalid_parameter"),
            ({"name": "a", "system_of": conversation_id}, "invalid_parameter"),
            ({"name": "a", "conversation_id": "nowhere"}, "not_found"),
        ]
        for body, code in bad:
            answer = await http.post("/admin/cache/pins", json=body, headers=TOKEN)
            assert answer.json()["error"]["code"] == code, body
        body = {"name": "a", "text": SENTENCE}
        asking = asyncio.create_task(http.post("/admin/cache/pins", json=body, headers=TOKEN))
        command = await sent(lab, PinPrefix)
        lab.hand.answer(CacheDone(command.rid, error="Too many pins."))
        assert "Too many pins." in (await asking).json()["error"]["message"]
        assert await lab.store.pins() == []


async def test_nothing_of_it_works_without_a_model(data_dir: Path) -> None:
    async with bare_server(data_dir) as server:
        server.state.admin_token = "sesame"
        async with httpx.AsyncClient(base_url=f"{server.url}/api/v1", trust_env=False) as http:
            answers = [
                await http.get("/admin/cache/stats", headers=TOKEN),
                await http.post("/admin/cache/verify", headers=TOKEN),
                await http.post("/cache/estimate", json={"input": "x"}),
                await http.post("/conversations/c/warm"),
            ]
            assert {answer.json()["error"]["code"] for answer in answers} == {"not_ready"}
