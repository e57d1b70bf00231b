"""Message trees: what may go where, and what everybody sees of them."""

import asyncio
import random
from pathlib import Path

import pytest

from chatd.errors import Conflict, InvalidParameter, NotFound
from chatd.ids import ConversationId, MessageId, ResponseId
from chatd.store.records import MessageStatus, StoredMessage
from chatd.store.store import Store, StoreFailure, TipMoved
from tests.store.scribe import NS, OTHER, Scribe, asked, ids_of, opened, said


def key_of(message: StoredMessage) -> bytes:
    assert message.chain_key is not None
    return message.chain_key


async def texts(store: Store, message_id: MessageId) -> list[str]:
    return [message.text for message in await store.path_to(NS, message_id)]


async def test_a_turn_under_the_tip(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        conversation = await store.create_conversation(NS, system="Be brief.")
        root = await store.message(NS, conversation.tip_id or MessageId(""))
        assert (root.role, root.text, root.token_ids) == ("system", "Be brief.", ())
        first = asked(
            "r1",
            *said(("user", "Hi\nthere"), under=key_of(root)),
            conversation_id=conversation.id,
            parent_id=root.id,
            under_tip=True,
        )
        begun = await scribe.answer(first, "Hel", "lo")
        assert await texts(store, begun.message_id) == ["Be brief.", "Hi\nthere", "Hello"]
        now = await store.head(NS, conversation.id)
        assert (now.title, now.tip_id) == ("Hi", begun.message_id)
        assert now.updated_at > conversation.updated_at
        path = await store.path_to(NS, begun.message_id)
        assert [message.token_ids for message in path[1:]] == [ids_of("Hi\nthere"), ids_of("Hello")]
        assert path[1].id == begun.user_message_id
        assert (await store.verify()).ok


async def test_edit_and_regenerate_make_siblings(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        first = await scribe.answer(asked("r1", *said(("user", "one"))), "1")
        home = first.conversation_id
        edited = await scribe.answer(asked("r2", *said(("user", "uno")), conversation_id=home), "2")
        again = asked("r3", conversation_id=home, parent_id=first.user_message_id)
        regenerated = await scribe.answer(again, "3")
        assert regenerated.user_message_id is None
        assert await texts(store, edited.message_id) == ["uno", "2"]
        assert await texts(store, regenerated.message_id) == ["one", "3"]
        assert (await store.head(NS, home)).tip_id == regenerated.message_id
        view = await store.conversation(NS, home)
        assert len(view.messages) == 5
        seen: set[MessageId | None] = {None}
        for entry in view.messages:
            assert entry.message.parent_id in seen
            seen.add(entry.message.id)
        assert (await store.verify()).ok


async def test_continue_appends_to_the_same_message(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        first = await scribe.answer(asked("r1", *said(("user", "count"))), "1 2", reason="length")
        home = first.conversation_id
        on = asked("r2", conversation_id=home, continues=first.message_id)
        begun = await scribe.ask(on)
        assert begun.message_id == first.message_id
        streaming = await store.message(NS, first.message_id)
        assert (streaming.status, streaming.text, streaming.chain_key) == ("streaming", "1 2", None)
        scribe.admit(ResponseId("r2"))
        scribe.say(ResponseId("r2"), " 3", " 4")
        scribe.end(ResponseId("r2"))
        await scribe.flush()
        whole = await store.message(NS, first.message_id)
        assert (whole.status, whole.text, whole.token_ids) == ("completed", "1 2 3 4", ids_of("1 2 3 4"))
        entry = (await store.conversation(NS, home)).messages[-1]
        assert [response.id for response in entry.responses] == ["r1", "r2"]
        assert (await store.verify()).ok


async def test_a_continued_answer_may_get_other_ids_for_what_it_had(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        first = await scribe.answer(asked("r1", *said(("user", "q"))), "ab")
        on = asked(
            "r2", conversation_id=first.conversation_id, continues=first.message_id, continued_ids=(7,)
        )
        await scribe.answer(on, "c")
        assert (await store.message(NS, first.message_id)).token_ids == (7, ord("c"))


async def test_what_cannot_be_continued(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        first = await scribe.answer(asked("r1", *said(("user", "q"))), "a")
        home = first.conversation_id
        with pytest.raises(Conflict, match="only an answer"):
            await store.begin_response(asked("x", conversation_id=home, continues=first.user_message_id))
        path = await store.path_to(NS, first.message_id)
        second = asked(
            "r2",
            *said(("user", "q2"), under=key_of(path[-1])),
            conversation_id=home,
            parent_id=first.message_id,
        )
        under = await scribe.ask(second)
        with pytest.raises(Conflict, match="went on"):
            await store.begin_response(asked("x", conversation_id=home, continues=first.message_id))
        with pytest.raises(Conflict, match="being written"):
            await store.begin_response(asked("x", conversation_id=home, continues=under.message_id))
        with pytest.raises(Conflict, match="being written"):
            await store.begin_response(
                asked("x", *said(("user", "q3")), conversation_id=home, parent_id=under.message_id)
            )


async def test_bad_openings_store_nothing(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        first = await scribe.answer(asked("r1", *said(("user", "q"))), "a")
        other = await scribe.answer(asked("r2", *said(("user", "q"))), "a")
        home = first.conversation_id
        with pytest.raises(TipMoved, match="changed meanwhile"):
            await store.begin_response(
                asked("x", *said(("user", "q")), conversation_id=home, parent_id=first.message_id)
            )
        with pytest.raises(ValueError, match="above"):
            await store.begin_response(asked("x", conversation_id=home))
        with pytest.raises(ValueError, match="conversation"):
            await store.begin_response(asked("x", parent_id=first.message_id))
        with pytest.raises(ValueError, match="no new messages"):
            await store.begin_response(
                asked("x", *said(("user", "q")), conversation_id=home, continues=first.message_id)
            )
        with pytest.raises(NotFound):
            await store.begin_response(asked("x", conversation_id=home, parent_id=other.message_id))
        with pytest.raises(StoreFailure):
            await store.begin_response(asked("r1", *said(("user", "the id is taken"))))
        assert len((await store.list_conversations(NS)).conversations) == 2
        assert len((await store.conversation(NS, home)).messages) == 2
        assert (await store.verify()).ok


async def test_s4_other_peoples_ids_look_unknown(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        mine = await scribe.answer(asked("r1", *said(("user", "secret"))), "a")
        unknown, home = ConversationId("nope"), mine.conversation_id
        for conversation_id in (home, unknown):
            for call in (
                store.conversation(OTHER, conversation_id),
                store.head(OTHER, conversation_id),
                store.rename(OTHER, conversation_id, "x"),
                store.delete(OTHER, conversation_id),
                store.begin_response(asked("x", ns=OTHER, conversation_id=conversation_id)),
            ):
                with pytest.raises(NotFound, match="no such conversation"):
                    await call
        for message_id in (mine.message_id, MessageId("nope")):
            with pytest.raises(NotFound, match="no such message"):
                await store.path_to(OTHER, message_id)
            with pytest.raises(NotFound, match="no such message"):
                await store.message(OTHER, message_id)
        for response_id in (mine.response.id, ResponseId("nope")):
            with pytest.raises(NotFound, match="no such response"):
                await store.response(OTHER, response_id)
        assert (await store.list_conversations(OTHER)).conversations == ()
        assert (await store.head(NS, home)).title == "secret"


async def test_pages_by_keyset_hold_everything_once(data_dir: Path) -> None:
    async with opened(data_dir, clock=lambda: 1.0) as store:
        made = [await store.create_conversation(NS, f"c{n}") for n in range(11)]
        await store.create_conversation(OTHER, "not mine")
        seen, before, pages = [], None, 0
        while True:
            page = await store.list_conversations(NS, limit=4, before=before)
            seen += [conversation.id for conversation in page.conversations]
            pages += 1
            if page.next is None:
                break
            before = page.next
        assert seen == [conversation.id for conversation in reversed(made)]
        assert pages == 3


async def test_a_full_last_page_has_no_next(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        for n in range(4):
            await store.create_conversation(NS, f"c{n}")
        assert (await store.list_conversations(NS, limit=4)).next is None


@pytest.mark.parametrize("before", ["", "x", "1", "1.", ".1", "1.2.3", "-1.2", "1.-2", "9" * 50 + ".1"])
async def test_a_made_up_cursor_is_refused(data_dir: Path, before: str) -> None:
    async with opened(data_dir) as store:
        with pytest.raises(InvalidParameter):
            await store.list_conversations(NS, before=before)


async def test_limits_and_titles_have_bounds(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        for limit in (0, -1, 201):
            with pytest.raises(InvalidParameter):
                await store.list_conversations(NS, limit=limit)
        conversation = await store.create_conversation(NS)
        with pytest.raises(InvalidParameter):
            await store.rename(NS, conversation.id, "x" * 201)
        assert (await store.rename(NS, conversation.id, "Mine")).title == "Mine"


async def test_a_given_title_is_kept(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        conversation = await store.create_conversation(NS, "Named")
        await scribe.answer(asked("r1", *said(("user", "q")), conversation_id=conversation.id), "a")
        assert (await store.head(NS, conversation.id)).title == "Named"


async def test_deleting_takes_the_text_and_leaves_the_bill(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        first = await scribe.answer(asked("r1", *said(("user", "q"))), "answer")
        kept = await scribe.answer(asked("r2", *said(("user", "other"))), "stays")
        before = await store.sessions_report()
        open_one = await scribe.ask(
            asked("r3", conversation_id=first.conversation_id, parent_id=first.user_message_id)
        )
        with pytest.raises(Conflict, match="stop it first"):
            await store.delete(NS, first.conversation_id)
        scribe.end(open_one.response.id, "cancelled")
        await scribe.flush()
        await store.delete(NS, first.conversation_id)
        with pytest.raises(NotFound):
            await store.conversation(NS, first.conversation_id)
        with pytest.raises(NotFound):
            await store.path_to(NS, first.message_id)
        assert await store.pieces_after(first.response.id, 0) == []
        assert await store.pieces_after(kept.response.id, 0) != []
        assert (await store.response(NS, first.response.id)).output_tokens == 6
        after = await store.sessions_report()
        assert after.totals[0].cost_nano == before.totals[0].cost_nano
        assert {session.title for session in after.sessions} == {"", "other"}
        assert (await store.verify()).ok


async def test_hidden_histories_are_found_by_their_text(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        shown = await scribe.answer(asked("r0", *said(("user", "q"))), "a")
        chain = said(("user", "q"), ("assistant", "a"), ("user", "q2"), ("assistant", "a2"), ("user", "q3"))
        keys = [message.chain_key for message in chain]
        assert await store.find_chain(NS, keys) is None, "listed conversations are not looked through"
        old = await scribe.answer(asked("r1", *said(("user", "q")), hidden=True), "a")
        new = await scribe.answer(asked("r2", *said(("user", "q")), hidden=True), "a")
        found = await store.find_chain(NS, keys)
        assert found is not None
        assert (found[0], found[1].id) == (1, new.message_id)
        assert new.message_id not in (old.message_id, shown.message_id)
        deeper = asked("r3", chain[2], conversation_id=old.conversation_id, parent_id=old.message_id)
        third = await scribe.answer(deeper, "a2")
        found = await store.find_chain(NS, keys)
        assert found is not None
        assert (found[0], found[1].id, found[1].token_ids) == (3, third.message_id, ids_of("a2"))
        assert await store.find_chain(OTHER, keys) is None
        assert await store.find_chain(NS, []) is None
        assert (await store.list_conversations(NS)).conversations[0].id == shown.conversation_id
        assert len((await store.list_conversations(NS)).conversations) == 1


async def test_an_answer_being_written_is_never_found(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        chain = said(("user", "q"), ("assistant", ""))
        await scribe.ask(asked("r1", chain[0], hidden=True))
        found = await store.find_chain(NS, [message.chain_key for message in chain])
        assert found is not None
        assert found[0] == 0


async def test_a_long_history_is_looked_up_from_its_end(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        turns = [("user" if n % 2 == 0 else "assistant", f"t{n}") for n in range(1001)]
        chain = said(*turns)
        await scribe.answer(asked("r1", *chain, hidden=True), "end")
        found = await store.find_chain(NS, [message.chain_key for message in chain])
        assert found is not None
        assert (found[0], found[1].text) == (1000, "t1000")
        rest = said(("assistant", "other"), *turns[:200], under=chain[400].chain_key)
        keys = [message.chain_key for message in (*chain[:401], *rest)]
        found = await store.find_chain(NS, keys)
        assert found is not None
        assert (found[0], found[1].text) == (400, "t400")


async def test_hidden_histories_expire_and_are_bounded(data_dir: Path) -> None:
    time = [1000.0]
    async with opened(data_dir, clock=lambda: time[0], hidden_ttl_s=60, hidden_keep=3) as store:
        scribe = await Scribe.begin(store)
        begun = []
        for n in range(5):
            time[0] += 1
            begun.append(await scribe.answer(asked(f"r{n}", *said(("user", f"q{n}")), hidden=True), "a"))
        gone, kept = begun[:2], begun[2:]
        for response in gone:
            with pytest.raises(NotFound):
                await store.message(NS, response.message_id)
        for response in kept:
            await store.message(NS, response.message_id)
        listed = await store.create_conversation(NS, "listed")
        open_one = await scribe.ask(asked("r-open", *said(("user", "slow")), hidden=True))
        time[0] += 61
        assert await store.prune() == 2, "one went for the newest, the open one stays"
        assert await store.prune() == 0
        await store.message(NS, open_one.message_id)
        await store.head(NS, listed.id)
        scribe.end(open_one.response.id, "cancelled")
        await scribe.flush()
        assert await store.prune() == 0, "its end was a use"
        time[0] += 61
        assert await store.prune() == 1
        assert len((await store.sessions_report()).sessions) == 6
        assert (await store.verify()).ok


async def test_a_new_hidden_history_drops_expired_ones(data_dir: Path) -> None:
    time = [1000.0]
    async with opened(data_dir, clock=lambda: time[0], hidden_ttl_s=60) as store:
        scribe = await Scribe.begin(store)
        old = await scribe.answer(asked("r1", *said(("user", "q")), hidden=True), "a")
        time[0] += 59
        await scribe.answer(asked("r2", *said(("user", "q2")), hidden=True), "a")
        await store.message(NS, old.message_id)
        time[0] += 1
        await scribe.answer(asked("r3", *said(("user", "q3")), hidden=True), "a")
        with pytest.raises(NotFound):
            await store.message(NS, old.message_id)
        assert (await store.verify()).ok


async def _append(scribe: Scribe, home: ConversationId, name: str) -> None:
    """What a tab does: read the tip, ask under it, and start over if another tab was faster."""
    store = scribe.store
    while True:
        tip_id = (await store.head(NS, home)).tip_id
        if tip_id is None:
            under, parent = b"", None
        else:
            tip = await store.message(NS, tip_id)
            if tip.status is MessageStatus.STREAMING:
                await asyncio.sleep(0)
                continue
            under, parent = key_of(tip), tip.id
        new = asked(
            name, *said(("user", name), under=under), conversation_id=home, parent_id=parent, under_tip=True
        )
        try:
            begun = await scribe.ask(new)
        except TipMoved:
            continue
        scribe.admit(begun.response.id)
        scribe.say(begun.response.id, f"re: {name}")
        scribe.end(begun.response.id)
        await scribe.flush()
        return


async def test_p3_two_tabs_append(data_dir: Path) -> None:
    rounds = 200
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        home = (await store.create_conversation(NS)).id
        shuffle = random.Random(3)
        for n in range(rounds):
            tabs = [f"a{n}", f"b{n}"]
            shuffle.shuffle(tabs)
            await asyncio.gather(*(_append(scribe, home, name) for name in tabs))
        tip_id = (await store.head(NS, home)).tip_id
        assert tip_id is not None
        path = await texts(store, tip_id)
        asked_texts, answers = path[0::2], path[1::2]
        assert sorted(asked_texts) == sorted(f"{tab}{n}" for n in range(rounds) for tab in "ab")
        assert answers == [f"re: {text}" for text in asked_texts]
        assert [int(text[1:]) for text in asked_texts] == sorted(list(range(rounds)) * 2)
        assert len((await store.conversation(NS, home)).messages) == 4 * rounds
        assert (await store.verify()).ok
