"""A conversation's system prompt changed while it goes on: the next turn uses it, and says why it missed."""

from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from chatd.errors import Conflict, NotFound
from chatd.ids import ConversationId, Namespace
from chatd.server.xray import Cause, Xray, from_json
from tests.support.chat_lab import ME, NUM_PAGES, PAGE_SIZE, Answer, ChatLab, chat_lab
from tests.support.engines import ScriptRunner
from tests.support.live_server import live_lab


def telling(num_pages: int = NUM_PAGES) -> ScriptRunner:
    """A runner that answers with the system prompt that it was given; "none" without one."""

    def script(prompt: Sequence[int]) -> bytes:
        said = bytes(token for token in prompt if token < 256)
        return said.removeprefix(b"system\n").split(b"\n")[0] if said.startswith(b"system\n") else b"none"

    return ScriptRunner(num_pages, PAGE_SIZE, script)


async def turn(lab: ChatLab, home: ConversationId, text: str = "and then?") -> Answer:
    return await lab.ask(text, conversation_id=home)


async def roles(lab: ChatLab, answer: Answer) -> list[str]:
    return [message.role for message in await lab.store.path_to(ME, answer.started.message_id)]


def xray_of(answer: Answer) -> Xray:
    xray = from_json(answer.record.xray_json)
    assert xray is not None
    return xray


async def test_the_next_turn_uses_it_and_later_ones_hit_again(data_dir: Path) -> None:
    async with chat_lab(data_dir, telling()) as lab:
        first = await lab.ask("a question that is long enough for a page")
        home = first.started.conversation_id
        assert (first.text, await roles(lab, first)) == ("none", ["user", "assistant"])
        changed = await lab.store.set_system(ME, home, "Be brief.")
        assert changed.tip_id == first.started.message_id
        second = await turn(lab, home)
        assert second.text == "Be brief."
        assert await roles(lab, second) == ["system", "user", "assistant", "user", "assistant"]
        assert second.record.gpu_hit <= 1  # each history begins with the same mark
        assert (xray_of(second).cause, xray_of(second).message) == (Cause.EDITED, 0)
        third = await turn(lab, home)
        assert third.text == "Be brief."
        assert third.record.gpu_hit >= second.record.prompt_tokens


async def test_it_is_changed_in_place_for_every_branch_and_taken_away(data_dir: Path) -> None:
    async with chat_lab(data_dir, telling()) as lab:
        made = await lab.store.create_conversation(ME, "", "Old.")
        first = await turn(lab, made.id)
        edited = await lab.ask("otherwise", kind="edit", target_id=first.started.user_message_id)
        await lab.store.set_system(ME, made.id, "New.")
        assert [first.text, edited.text] == ["Old.", "Old."]
        for target in (first, edited):
            again = await lab.ask(kind="regenerate", target_id=target.started.message_id)
            assert (again.text, xray_of(again).cause) == ("New.", Cause.EDITED)
        twice = await lab.ask(kind="regenerate", target_id=again.started.message_id)
        assert xray_of(twice).cause is Cause.LAST_TOKEN
        await lab.store.set_system(ME, made.id, "")
        last = await turn(lab, made.id)
        assert (last.text, await roles(lab, last)) == ("none", ["user", "assistant"] * 2)
        view = await lab.store.conversation(ME, made.id)
        assert "system" not in {one.message.role for one in view.messages}


async def test_of_an_empty_conversation(data_dir: Path) -> None:
    async with chat_lab(data_dir, telling()) as lab:
        made = await lab.store.create_conversation(ME, "", "")
        given = await lab.store.set_system(ME, made.id, "Given.")
        assert given.tip_id is not None
        assert (await lab.store.set_system(ME, made.id, "Given.")).updated_at == given.updated_at
        assert (await lab.store.set_system(ME, made.id, "")).tip_id is None
        assert (await turn(lab, made.id)).text == "none"


async def test_what_is_refused(data_dir: Path) -> None:
    async with chat_lab(data_dir, by_hand=True) as lab:
        begun = await lab.create("hello")
        with pytest.raises(Conflict, match="still being written"):
            await lab.store.set_system(ME, begun.conversation_id, "Be brief.")
        with pytest.raises(NotFound):
            await lab.store.set_system(Namespace("other"), begun.conversation_id, "Be mine.")


async def test_over_http(data_dir: Path) -> None:
    async with (
        live_lab(data_dir, lab={"runner": telling()}) as (server, lab),
        httpx.AsyncClient(base_url=f"{server.url}/api/v1", trust_env=False) as http,
    ):
        home = (await lab.ask("hello")).started.conversation_id
        changed = await http.patch(f"/conversations/{home}", json={"system": "Be kind.", "title": "Kind"})
        assert (changed.status_code, changed.json()["title"]) == (200, "Kind")
        [system, *_] = (await http.get(f"/conversations/{home}")).json()["messages"]
        assert (system["role"], system["text"], system["parent_id"]) == ("system", "Be kind.", None)
        assert (await turn(lab, home)).text == "Be kind."
        assert (await http.get("/report/verify")).json()["ok"] is True
