"""Every answer says where its prompt came from: over real histories, a real engine and the wire."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from chatd.engine.messages import (
    FinishReason,
    Probe,
    Probed,
    Restoring,
    TierNote,
    TierOutcome,
)
from chatd.ids import Rid
from chatd.server import protocol as wire
from chatd.server.commands import ChatTurn
from chatd.server.views import xray_of
from chatd.server.xray import Cause, from_json
from chatd.store.records import ResponseRecord
from tests.support.chat_lab import ChatLab, chat_lab, saying, until
from tests.support.engines import TOY_TEMPLATE
from tests.support.live_server import live_lab

pytestmark = pytest.mark.usefixtures("blocked_loop")

GREEDY: dict[str, Any] = {"params": {"temperature": 0, "max_tokens": 8}}


@pytest.fixture
async def lab(data_dir: Path) -> AsyncIterator[ChatLab]:
    async with chat_lab(data_dir) as lab:
        yield lab


def why(record: ResponseRecord) -> tuple[str, int | None, int]:
    """Cause, message, and the first computed position."""
    xray = xray_of(record)
    assert xray is not None
    assert xray.first_computed == record.gpu_hit + record.disk_hit
    return xray.cause, xray.message, xray.first_computed


async def test_turns_edits_and_answers_once_more(lab: ChatLab) -> None:
    first = await lab.ask("one " * 20, **GREEDY)
    assert why(first.record) == ("new_text", None, 0)
    assert first.record.kv_len == first.record.prompt_len + 7  # the last token has no KV
    second = await lab.ask("two", conversation_id=first.started.conversation_id, **GREEDY)
    assert why(second.record) == ("new_text", None, first.record.kv_len)
    assert second.record.history_len == first.record.kv_len
    again = await lab.ask(kind="regenerate", target_id=second.started.message_id, **GREEDY)
    assert why(again.record) == ("last_token", None, again.record.prompt_len - 1)
    edited = await lab.ask("tzz", kind="edit", target_id=second.started.user_message_id, **GREEDY)
    cause, message, at = why(edited.record)
    assert (cause, message) == ("edited", 2)
    assert at == edited.record.history_len > first.record.kv_len
    more = await lab.ask(kind="continue", target_id=edited.started.message_id, **GREEDY)
    assert why(more.record)[0] == "last_token"
    assert more.record.kv_len == more.record.prompt_len + 7


async def test_evicted(data_dir: Path) -> None:
    async with chat_lab(data_dir, num_pages=40, step_tokens=64) as lab:
        first = await lab.ask("a" * 200, **GREEDY)
        await lab.ask("b" * 400, **GREEDY)
        second = await lab.ask("more", conversation_id=first.started.conversation_id, **GREEDY)
        cause, message, at = why(second.record)
        assert (cause, message) == ("evicted", None)
        assert at < second.record.history_len == first.record.kv_len
        sums = await lab.store.cause_sums()
    assert {one.cause: one.responses for one in sums} == {"new_text": 2, "evicted": 1}


async def test_restarted_without_a_tier(data_dir: Path) -> None:
    async with chat_lab(data_dir) as lab:
        first = await lab.ask("one " * 20, **GREEDY)
    async with chat_lab(data_dir, prefix="later") as lab:
        second = await lab.ask("two", conversation_id=first.started.conversation_id, **GREEDY)
        assert why(second.record) == ("tier_off", None, 0)
        assert second.record.history_len == first.record.kv_len


async def test_a_stop_string_leaves_ids_without_kv(data_dir: Path) -> None:
    async with chat_lab(data_dir, saying("one two three")) as lab:
        first = await lab.ask("go", params={"stop": [" tw"]})
        assert first.text == "one"
        assert first.record.kv_len == first.record.prompt_len + 3
        second = await lab.ask("go", conversation_id=first.started.conversation_id)
        assert why(second.record)[0] == "new_text"


async def test_a_failed_answer_leaves_nothing(data_dir: Path) -> None:
    async with chat_lab(data_dir) as lab:
        lab.runner.bad = lambda row: True
        broken = await lab.ask("hi", **GREEDY)
        lab.runner.bad = lambda row: False
        assert broken.record.kv_len == 0
        again = await lab.ask(kind="regenerate", target_id=broken.started.message_id, **GREEDY)
        assert why(again.record) == ("new_text", None, 0)


async def test_histories_that_come_as_text(data_dir: Path) -> None:
    """A stateless client: goes on, asks again, and changes what was said."""

    async def ask(lab: ChatLab, *texts: str) -> ResponseRecord:
        roles = ["system", *(["user", "assistant"] * len(texts))]
        turns = tuple(ChatTurn(role, text) for role, text in zip(roles, texts, strict=False))
        return (await lab.ask(messages=turns, hidden=True, **GREEDY)).record

    async with chat_lab(data_dir, saying("Hello.")) as lab:
        first = await ask(lab, "be brief", "hi")
        assert why(first) == ("new_text", None, 0)
        second = await ask(lab, "be brief", "hi", "Hello.", "and now")
        assert why(second) == ("new_text", None, first.kv_len)
        repeated = await ask(lab, "be brief", "hi", "Hello.", "and now")
        assert why(repeated)[0] == "last_token"
        theirs = await ask(lab, "be brief", "hi", "Yo.", "and now")
        assert why(theirs)[:2] == ("edited", 2)
        assert theirs.history_len == first.prompt_len
        changed = await ask(lab, "be brief", "hi", "Hello.", "or now", "Hello.", "what else")
        assert why(changed)[:2] == ("edited", 3)
        assert why(await ask(lab, "examples", "a", "b", "c", "d", "e"))[:2] == ("new_text", None)


async def test_a_template_that_rewrites(data_dir: Path) -> None:
    template = TOY_TEMPLATE.replace("{{ m.content }}", "{{ m.content if loop.last else m.content[:4] }}")
    async with chat_lab(data_dir, template=template) as lab:
        first = await lab.ask("first question", **GREEDY)
        second = await lab.ask("second question", conversation_id=first.started.conversation_id, **GREEDY)
        cause, message, at = why(second.record)
        assert (cause, message) == ("template_rewrote", 0)
        assert 0 < at == second.record.history_len < first.record.prompt_len


async def test_a_prompt_without_its_oldest_turns(data_dir: Path) -> None:
    async with chat_lab(data_dir, context_length=180) as lab:
        params: dict[str, Any] = {"params": {"temperature": 0, "max_tokens": 4, "truncation": "auto"}}
        first = await lab.ask("a" * 60, **params)
        second = await lab.ask("b" * 80, conversation_id=first.started.conversation_id, **params)
        assert second.started.dropped_turns == 1
        assert why(second.record)[0] == "truncated"


async def test_restoring_and_a_prediction_on_the_wire(data_dir: Path) -> None:
    async with live_lab(data_dir) as (server, lab), server.client() as client:
        created = await client.start("hello " * 60)
        rid = Rid(created.response_id)
        probe = lab.hand.last_sent(Probe)
        assert (probe.rid, probe.prompt_ids) == (rid, lab.hand.submitted[rid].prompt_ids)
        total = len(probe.prompt_ids)
        note = TierNote(TierOutcome.LOADED, 128, 2.0, 9.0, 3.0, elsewhere=64)
        lab.hand.answer(Probed(rid, total, 64, 128, total - 192, 0.0, 0.002, 0.004, note))
        lab.hand.answer(Restoring(rid, 64, 128))
        assert await client.until(wire.ResponseRestoring) == wire.ResponseRestoring(rid, 64, 128)
        lab.hand.hits, lab.hand.tier = (64, 128), note
        lab.hand.say(rid, "x")
        prefill = await client.until(wire.ResponsePrefill)
        assert (prefill.gpu_hit, prefill.disk_hit) == (64, 128)
        lab.hand.finish(rid, FinishReason.END)
        ending = await client.ending(rid)
        assert isinstance(ending.xray, wire.Xray)
        assert (ending.xray.cause, ending.xray.first_computed) == ("new_text", 192)
        assert ending.xray.predicted is not None
        assert ending.xray.predicted.exact
        assert ending.xray.predicted.ttft_ms == pytest.approx(6.0)
        stored = from_json((await lab.record(created.response_id)).xray_json)  # type: ignore[arg-type]
    assert stored is not None
    assert (stored.cause, stored.elsewhere) == (Cause.OTHER_NAMESPACE, 64)


async def test_t1_what_others_have_is_not_on_the_wire(data_dir: Path) -> None:
    """Two servers that differ only in what another account has say the same."""
    said = []
    for number, elsewhere in enumerate((0, 900)):
        folder = data_dir / str(number)
        folder.mkdir(mode=0o700)
        async with live_lab(folder) as (server, lab), server.client() as client:
            created = await client.start("hello " * 60)
            lab.hand.tier = TierNote(TierOutcome.NOTHING, elsewhere=elsewhere)
            lab.hand.say(Rid(created.response_id), "x")
            lab.hand.finish(Rid(created.response_id))
            ending = await client.ending(created.response_id)
            said.append(wire.encode(ending.xray))  # type: ignore[arg-type]
            assert b"elsewhere" not in wire.encode(ending)
    assert said[0] == said[1]


async def test_an_answer_that_never_ran_has_no_xray(data_dir: Path) -> None:
    async with live_lab(data_dir) as (server, lab), server.client() as client:
        created = await client.start()
        await client.send(wire.ResponseCancel(created.response_id))
        ending = await client.ending(created.response_id)
        assert not isinstance(ending.xray, wire.Xray)
        assert (await lab.record(created.response_id)).cause == ""  # type: ignore[arg-type]


async def test_kv_of_an_answer_that_was_stopped_in_its_prefill(data_dir: Path) -> None:
    async with live_lab(data_dir) as (server, lab), server.client() as client:
        created = await client.start("y" * 100)
        rid = Rid(created.response_id)
        lab.hand.hits = (64, 0)
        lab.hand.say(rid)
        await client.until(wire.ResponsePrefill)
        await client.send(wire.ResponseCancel(created.response_id))
        await until(lambda: lab.service.open_count == 0)
        assert (await lab.record(created.response_id)).kv_len == 64  # type: ignore[arg-type]
