"""Search in titles and texts, in every script and at every length; and that its index misses nothing."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import text

from chatd.errors import InvalidParameter
from chatd.ids import ConversationId, Namespace
from chatd.store import search as module
from chatd.store.search import SearchPage
from chatd.store.search_query import MAX_CHARS, fold, has_all, snippet, terms_of
from chatd.store.store import Store
from tests.store.scribe import NS, OTHER, Scribe, asked, keep_ids, opened, said

HAN = "春季花园规划今天天气很好缓存如何节省时间的一是不了人我在有他这中大来上国"


async def ask(
    scribe: Scribe, number: int, question: str, answer: str, *, ns: Namespace = NS
) -> ConversationId:
    begun = await scribe.answer(asked(f"{ns}-{number}", *said(("user", question), ns=ns), ns=ns), answer)
    return begun.conversation_id


async def found(store: Store, query: str, ns: Namespace = NS) -> list[str]:
    """The texts of all hits: of titles in brackets."""
    shown, before = [], None
    while True:
        page = await store.search(ns, query, 2, before)
        for hit in page.hits:
            line = "".join(part.text for part in hit.snippet)
            shown.append(f"[{line}]" if hit.message_id is None else line)
        if (before := page.next) is None:
            return shown


async def check_index(store: Store) -> None:
    """Exactly what should be in it is, and its terms are those of the texts."""

    def rows(conn: object) -> tuple[set[int], set[int]]:
        wanted = text(
            "SELECT m.seq FROM messages m JOIN conversations c ON c.id = m.conversation_id"
            " WHERE m.role <> 'system' AND m.text <> '' AND c.hidden = 0 UNION ALL"
            f" SELECT seq + {module.TITLES} FROM conversations WHERE title <> '' AND hidden = 0"
        )
        kept = text("SELECT id FROM search_docsize")
        return set(conn.execute(wanted).scalars()), set(conn.execute(kept).scalars())  # type: ignore[attr-defined]

    wanted, kept = await store._read(rows)
    assert kept == wanted
    await store._write(
        lambda conn: conn.execute(text("INSERT INTO search (search) VALUES ('integrity-check')"))
    )


async def test_titles_come_first_then_the_newest_text(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        await ask(scribe, 1, "Why is the SKY blue?", "Because the sky scatters.")
        home = await ask(scribe, 2, "Tell me of the sea", "It mirrors the Sky above.")
        assert await found(store, "sky") == [
            "[Why is the SKY blue?]",
            "It mirrors the Sky above.",
            "Because the sky scatters.",
            "Why is the SKY blue?",
        ]
        page = await store.search(NS, "mirrors")
        [hit] = page.hits
        assert (hit.conversation_id, hit.title, hit.role) == (home, "Tell me of the sea", "assistant")
        assert [part.text for part in hit.snippet if part.hit] == ["mirrors"]
        assert page.next is None
        assert await found(store, "sky sea") == []  # in no one text
        assert await found(store, "scatters SKY") == ["Because the sky scatters."]
        assert await found(store, '"sky scatters"') == ["Because the sky scatters."]
        assert await found(store, '"scatters sky"') == []


async def test_any_length_in_any_script(data_dir: Path) -> None:
    texts = ["春季花园规划", "今天天气很好，是花吗", "C++ und Café", "🌷", "nothing of it", "规", "园"]
    queries = ["花", "花园", "花园规", "划", "规划", "是 花", "园规划 春", "C+", "+", "é", "É", "🌷"]
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        for number, one in enumerate(texts):
            await ask(scribe, number, f"({number})", one)
        for query in queries:
            wanted = [one for one in texts if has_all(one, terms_of(query))]
            assert wanted, query
            assert await found(store, query) == wanted[::-1], query


async def test_what_changes_changes_the_index_with_it(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        home = await ask(scribe, 1, "first words", "an answer with marmalade")
        await store.rename(NS, home, "Breakfast")
        assert await found(store, "first") == ["first words"]
        assert await found(store, "breakf") == ["[Breakfast]"]
        begun = await scribe.ask(asked("open", *said(("user", "and a streaming one"))))
        scribe.admit(begun.response.id)
        scribe.say(begun.response.id, "mango")
        await scribe.flush()
        assert await found(store, "mango") == []
        scribe.end(begun.response.id, "length")
        await scribe.flush()
        assert await found(store, "mango") == ["mango"]
        again = asked("more", conversation_id=begun.conversation_id, continues=begun.message_id)
        await scribe.answer(again, "steen")
        assert await found(store, "mangosteen") == ["mangosteen"]
        await check_index(store)
        await store.delete(NS, home)
        assert await found(store, "marmalade") == await found(store, "breakfast") == []
        await check_index(store)


async def test_s4_neither_others_nor_hidden_histories_nor_system_prompts_are_found(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        await ask(scribe, 1, "the secret of bob", "a merger", ns=OTHER)
        await scribe.answer(asked("h", *said(("user", "a hidden merger")), hidden=True), "yes")
        await store.create_conversation(NS, system="Say nothing of the merger.")
        await ask(scribe, 2, "public", "nothing")
        for query in ("merger", "me", "m", "secret"):
            assert await store.search(NS, query) == SearchPage((), None)
        assert await found(store, "merger", OTHER) == ["a merger"]
        await check_index(store)
        await store.prune()
        await check_index(store)


async def test_what_a_dead_server_left_is_found_once_it_is_settled(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        begun = await scribe.ask(asked("r", *said(("user", "question"))))
        scribe.admit(begun.response.id)
        scribe.say(begun.response.id, "broken off")
        await scribe.flush()
    async with opened(data_dir, prefix="new") as store:
        assert await store.settle(keep_ids) == 1
        assert await found(store, "broken") == ["broken off"]
        await check_index(store)


async def test_short_queries_that_are_everywhere_are_read_and_not_listed(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_PLACES", 2)
    monkeypatch.setattr(module, "STEP", 2)
    monkeypatch.setattr(module, "MOST_LOOKED_AT", 3)
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        texts = ["ab", "b", "xa", "y", "z", "a", "zz", "zzz"]
        for number, one in enumerate(texts):
            await ask(scribe, number, "?", one)
        assert await found(store, "a") == ["a", "xa", "ab"]
        page = await store.search(NS, "a", 5)
        assert (page.hits, page.next is None) == ((), False)  # looked at enough for one page


async def test_random_texts_are_found_as_a_scan_finds_them(data_dir: Path) -> None:
    rng = random.Random(5)
    letters = HAN + "abAB .\n"
    texts = ["".join(rng.choices(letters, k=rng.randint(1, 40))) for _ in range(60)]
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        for number, one in enumerate(texts):
            await ask(scribe, number, "?", one)
        for _ in range(60):
            source = rng.choice(texts)
            at = rng.randrange(len(source))
            query = source[at : at + rng.randint(1, 5)].replace("\n", " ").strip()
            if not query:
                continue
            page = await store.search(NS, query, 100)
            said_it = [one for one in texts if has_all(one, terms_of(query))]
            assert len(page.hits) == len(said_it), query
            assert page.next is None
        await check_index(store)


@pytest.mark.parametrize("query", ["", "  ", '""', "x" * (MAX_CHARS + 1), " ".join("abcdefghi")])
async def test_what_cannot_be_searched_for(data_dir: Path, query: str) -> None:
    async with opened(data_dir) as store:
        with pytest.raises(InvalidParameter):
            await store.search(NS, query)


@pytest.mark.parametrize("before", ["x", "-1", "1" * 20, ""])
async def test_a_cursor_that_cannot_be(data_dir: Path, before: str) -> None:
    async with opened(data_dir) as store:
        with pytest.raises(InvalidParameter):
            await store.search(NS, "word", 5, before)


def marked(parts: Sequence[object]) -> str:
    return "".join(f"<{part.text}>" if part.hit else part.text for part in parts)  # type: ignore[attr-defined]


def test_snippets() -> None:
    assert marked(snippet("one two\nthree", ("two", "th"))) == "one <two> <th>ree"
    long = "start " + "filler " * 40 + "the needle here " + "rest " * 60
    shown = marked(snippet(long, ("needle",)))
    assert shown.startswith("…")
    assert shown.endswith("…")
    assert "<needle> here" in shown
    assert len(shown) < 160
    assert marked(snippet("今天天气很好", ("天",))) == "今<天><天>气很好"
    assert marked(snippet("İstanbul STRASSE", ("strasse",))) == "İstanbul <STRASSE>"


def test_folding_keeps_every_place() -> None:
    for one in ("İX", "ÀÉ", "ǅ", "ﬀ", "Ωß"):
        assert len(fold(one)) == len(one)


async def test_pins(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        made = [await store.create_conversation(NS, f"t{number}") for number in range(4)]
        kept = await store.pin_conversation(NS, made[1].id, pinned=True)
        assert (kept.pinned, kept.updated_at) == (True, made[1].updated_at)
        assert [one.id for one in (await store.list_conversations(NS, pinned=True)).conversations] == [
            made[1].id
        ]
        assert len((await store.list_conversations(NS)).conversations) == 4
        assert not (await store.pin_conversation(NS, made[1].id, pinned=False)).pinned
        assert (await store.list_conversations(NS, pinned=True)).conversations == ()
