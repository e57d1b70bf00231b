"""Notes on responses: they live as long as their conversation, and no longer."""

from pathlib import Path

import pytest
from sqlalchemy import text

from chatd.errors import NotFound
from chatd.ids import Namespace
from chatd.store.connect import make_engine
from chatd.store.store import DATABASE_NAME
from tests.support.chat_lab import ME, chat_lab, saying


async def test_a_note_goes_with_its_conversation(data_dir: Path) -> None:
    async with chat_lab(data_dir, saying("ok")) as lab:
        answer = await lab.ask("hi", note="remember me")
        response_id = answer.started.response_id
        assert (await lab.store.note(ME, response_id)).text == "remember me"
        assert (await lab.store.note(ME, (await lab.ask("hi")).started.response_id)).text == ""
        with pytest.raises(NotFound):
            await lab.store.note(Namespace("other"), response_id)
        with pytest.raises(NotFound):
            await lab.store.withdraw(Namespace("other"), response_id)
        await lab.service.delete(ME, answer.started.conversation_id)
        with pytest.raises(NotFound):
            await lab.store.note(ME, response_id)
        await lab.record(response_id)
    engine = make_engine(data_dir / DATABASE_NAME, begin="BEGIN", connections=1)
    with engine.connect() as conn:
        assert conn.execute(text("SELECT count(*) FROM response_notes")).scalar_one() == 0
    engine.dispose()


async def test_withdrawing(data_dir: Path) -> None:
    """A hidden history is named once nothing of it is left to be asked for; a conversation never."""
    async with chat_lab(data_dir, saying("ok")) as lab:
        first = await lab.ask("hi", hidden=True, note="n")
        second = await lab.ask("more", parent_id=first.record.message_id)
        conversation_id = first.started.conversation_id
        assert second.started.conversation_id == conversation_id
        assert await lab.store.withdraw(ME, first.record.id) is None
        assert await lab.store.withdraw(ME, first.record.id) is None
        assert (await lab.store.note(ME, first.record.id)).withdrawn
        assert not (await lab.store.note(ME, second.record.id)).withdrawn
        assert await lab.store.withdraw(ME, second.record.id) == conversation_id
        shown = await lab.ask("hi")
        assert await lab.store.withdraw(ME, shown.record.id) is None
