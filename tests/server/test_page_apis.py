"""What the page asks for beside the chat: search, files, pins, reports, and the cache."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest

from chatd.ids import ConversationId, Namespace
from chatd.imports.adopt import adopted
from chatd.imports.files import read_bytes
from chatd.imports.markdown import branch_of, markdown_of
from chatd.store.key_records import KeyScope, Limits
from tests.support.chat_lab import ME, ChatLab, saying
from tests.support.live_server import LiveServer, live_lab

OTHER = Namespace("other")

Site = tuple[httpx.AsyncClient, LiveServer, ChatLab]


@contextlib.asynccontextmanager
async def api(data_dir: Path, text: str = "Nothing to add.") -> AsyncIterator[Site]:
    async with (
        live_lab(data_dir, lab={"runner": saying(text)}) as (server, lab),
        httpx.AsyncClient(base_url=f"{server.url}/api/v1", trust_env=False) as http,
    ):
        yield http, server, lab


async def with_keys(server: LiveServer, *names: str, scopes: frozenset[KeyScope]) -> list[dict[str, str]]:
    """A key for each account, as headers."""
    keys = server.state.keys
    made = [await keys.create(name, Namespace(name), scopes, Limits()) for name in names]
    return [{"authorization": f"Bearer {secret}"} for _, secret in made]


def said(answer: httpx.Response) -> str:
    code: str = answer.json()["error"]["code"]
    return code


async def test_search_marks_what_was_found(data_dir: Path) -> None:
    async with api(data_dir, "春季花园规划") as (http, _, lab):
        answer = await lab.ask("A plan for the garden?")
        page = (await http.get("/search", params={"q": "花园"})).json()
        [hit] = page["hits"]
        assert (hit["conversation_id"], hit["message_id"]) == (
            answer.started.conversation_id,
            answer.started.message_id,
        )
        assert (hit["role"], hit["title"]) == ("assistant", "A plan for the garden?")
        marked = [(part["text"], part["hit"]) for part in hit["snippet"]]
        assert marked == [("春季", False), ("花园", True), ("规划", False)]
        both = (await http.get("/search", params={"q": "PLAN", "limit": "1"})).json()
        assert (both["hits"][0]["message_id"], both["hits"][0]["role"]) == (None, None)
        rest = (await http.get("/search", params={"q": "PLAN", "before": both["next"]})).json()
        assert [hit["role"] for hit in rest["hits"]] == ["user"]
        for wrong in (
            {},
            {"q": " "},
            {"q": "x", "limit": "0"},
            {"q": "x", "limit": "1e2"},
            {"q": "x", "before": "?"},
        ):
            refused = await http.get("/search", params=wrong)
            assert (refused.status_code, said(refused)) == (400, "invalid_parameter")


async def test_pin(data_dir: Path) -> None:
    async with api(data_dir) as (http, _, _):
        made = [(await http.post("/conversations", json={"title": str(n)})).json()["id"] for n in range(3)]
        pinned = (await http.patch(f"/conversations/{made[0]}", json={"pinned": True})).json()
        assert (pinned["pinned"], pinned["title"]) == (True, "0")
        listed = (await http.get("/conversations", params={"pinned": "true"})).json()["conversations"]
        assert [one["id"] for one in listed] == [made[0]]
        both = {"title": "zero", "pinned": False}
        changed = (await http.patch(f"/conversations/{made[0]}", json=both)).json()
        assert (changed["pinned"], changed["title"]) == (False, "zero")
        assert (await http.get("/conversations", params={"pinned": "true"})).json()["conversations"] == []
        assert said(await http.patch(f"/conversations/{made[0]}", json={})) == "invalid_parameter"
        assert said(await http.get("/conversations", params={"pinned": "1"})) == "invalid_parameter"


async def test_files_out_and_in_again(data_dir: Path) -> None:
    async with api(data_dir, "An answer.") as (http, _, lab):
        first = await lab.ask("First: a/b?")
        home = first.started.conversation_id
        await lab.ask("Second", conversation_id=home)
        markdown = await http.get(f"/conversations/{home}/export", params={"format": "markdown"})
        assert markdown.text.startswith(
            "# First: a/b?\n\n## You\n\nFirst: a/b?\n\n## Answer\n\nAn answer.\n\n## You"
        )
        assert "filename*=UTF-8''First%20a%20b%20.md" in markdown.headers["content-disposition"]
        params = {"format": "markdown", "last": first.started.message_id}
        early = await http.get(f"/conversations/{home}/export", params=params)
        assert "Second" not in early.text
        lines = (await http.get("/export")).content
        whole = (await http.get(f"/conversations/{home}/export")).content
        assert read_bytes(lines, ME, 0) == read_bytes(whole, ME, 0)
        again = (await http.post("/import", content=lines)).json()
        assert again == {"added": 0, "known": 1, "messages": 0, "left_out": []}
        await http.delete(f"/conversations/{home}")
        back = (await http.post("/import", content=whole)).json()
        assert back == {"added": 1, "known": 0, "messages": 4, "left_out": []}
        assert (await http.post("/import", content=lines)).json()["added"] == 0, (
            "known by what it was made of"
        )
        [hit] = (await http.get("/search", params={"q": "Second"})).json()["hits"]
        goes_on = await lab.ask("Third", conversation_id=ConversationId(hit["conversation_id"]))
        assert goes_on.text == "An answer."
        half = lines.replace(home.encode(), b"another") + b'{"id": "cut off'
        some = (await http.post("/import", content=half)).json()
        assert (some["added"], some["messages"], len(some["left_out"])) == (1, 4, 1)
        assert some["left_out"][0].startswith("line 3 is wrong: ")
        for wrong in (
            b"",
            b"{",
            b"[{}]",
            b'{"format": "other", "version": 1, "made_at": ""}',
            b"PK\x03\x04rubbish",
        ):
            refused = await http.post("/import", content=wrong)
            assert (refused.status_code, said(refused)) == (400, "invalid_parameter"), wrong
        for path in (f"/conversations/{home}/export", "/conversations/nobody/export"):
            assert said(await http.get(path)) == "not_found"


async def test_s4_other_accounts_neither_see_nor_touch_nor_learn_of_it(data_dir: Path) -> None:
    async with api(data_dir) as (http, server, lab):
        chat = frozenset({KeyScope.CHAT})
        ann, bob = await with_keys(server, "ann", "bob", scopes=chat)
        hers = await lab.ask("Ann's merger", ns=Namespace("ann"))
        home = hers.started.conversation_id
        assert len((await http.get("/search", params={"q": "merger"}, headers=ann)).json()["hits"]) == 2
        assert (await http.get("/search", params={"q": "merger"}, headers=bob)).json() == {
            "hits": [],
            "next": None,
        }
        unknown = await http.get("/conversations/x/export", headers=bob)
        foreign = await http.get(f"/conversations/{home}/export", headers=bob)
        assert (foreign.status_code, foreign.content) == (unknown.status_code, unknown.content)
        pin = await http.patch(f"/conversations/{home}", json={"pinned": True}, headers=bob)
        assert said(pin) == "not_found"
        stolen = (await http.get(f"/conversations/{home}/export", headers=ann)).content
        taken = (await http.post("/import", content=stolen, headers=bob)).json()
        assert taken == {"added": 1, "known": 0, "messages": 2, "left_out": []}, "as if nobody had it"
        [his] = (await http.get("/conversations", headers=bob)).json()["conversations"]
        assert his["id"] != home
        assert said(await http.get("/operator/cache", headers=bob)) == "not_allowed"


async def test_the_cache_of_all_is_for_the_operator_and_of_ones_own_for_this_machine(data_dir: Path) -> None:
    async with api(data_dir, "word " * 40) as (http, server, lab):
        mine, others = await lab.ask("a question of mine " * 5), await lab.ask("theirs " * 20, ns=OTHER)
        own = (await http.get("/operator/cache/tree")).json()
        assert [one["id"] for one in own["conversations"]] == [mine.started.conversation_id]
        assert {path["namespace"] for path in own["stretches"]} <= {ME, ""}
        [one] = own["conversations"]
        assert one["in_memory"] == one["tokens"]
        assert sum(own["stretches"][index]["tokens"] for index in one["stretches"]) >= one["tokens"]
        foreign = {"conversation_id": others.started.conversation_id}
        for path in ("pins", "warm"):
            assert said(await http.post(f"/operator/cache/{path}", json=foreign)) == "not_found"
        pinned = await http.post("/operator/cache/pins", json={"conversation_id": one["id"]})
        assert pinned.status_code == 201
        assert [pin["name"] for pin in (await http.get("/operator/cache")).json()["pins"]] == [one["id"]]
        assert (await http.delete(f"/operator/cache/pins/{one['id']}")).status_code == 204
        assert said(await http.delete("/operator/cache/pins/nothing")) == "not_found"
        before = (await http.get("/operator/cache")).json()["state"]
        cleared = (await http.post("/operator/cache/clear", json={})).json()
        assert cleared["tokens"] >= one["tokens"]
        after = (await http.get("/operator/cache")).json()["state"]
        assert 0 < after["evictable_pages"] < before["evictable_pages"], "the others' is still there"
        proxied = await http.get("/operator/cache", headers={"x-forwarded-for": "203.0.113.7"})
        assert said(proxied) == "not_allowed"
        [root] = await with_keys(server, "root", scopes=frozenset(KeyScope))
        everything = (await http.get("/operator/cache/tree", headers=root)).json()
        assert {path["id"] for path in everything["conversations"]} == {
            mine.started.conversation_id,
            others.started.conversation_id,
        }


def test_adopted_ids_say_nothing_and_are_the_same_each_time() -> None:
    rest = {"status": "completed", "created_at": "2026-11-29T00:00:00Z"}
    line = {
        "id": "c",
        "namespace": "ann",
        "title": "t",
        "created_at": "2026-11-29T00:00:00Z",
        "updated_at": "2026-11-29T00:00:00Z",
        "tip_id": "b",
        "messages": [
            {"id": "a", "parent_id": None, "role": "user", "text": "hi", "token_ids": [1], **rest},
            {"id": "b", "parent_id": "a", "role": "assistant", "text": "ho", "token_ids": [2], **rest},
        ],
    }
    head = {"format": "chatd-conversations", "version": 1, "made_at": "2026-11-29T00:00:00Z"}
    raw = b"\n".join(map(msgspec.json.encode, (head, line)))
    [one] = read_bytes(raw, ME, 0).conversations
    his, hers = adopted(one, OTHER), adopted(one, ME)
    assert his == adopted(one, OTHER)
    assert {his.id, *(m.id for m in his.messages)}.isdisjoint(
        {one.id, hers.id, *(m.id for m in hers.messages)}
    )
    assert (his.messages[1].parent_id, his.tip_id) == (his.messages[0].id, his.messages[1].id)
    assert [message.token_ids for message in his.messages] == [None, None]
    his.check()
    assert [message.text for message in branch_of(one)] == ["hi", "ho"]
    assert markdown_of(one, one.messages[0].id) == "# t\n\n## You\n\nhi\n"
    with pytest.raises(KeyError):
        branch_of(one, one.id)  # type: ignore[arg-type]


async def test_reports_by_turn_as_csv_and_prices(data_dir: Path) -> None:
    async with api(data_dir) as (http, _, lab):
        first = await lab.ask("one " * 30)
        await lab.ask("two", conversation_id=first.started.conversation_id)
        await lab.ask("another")
        rows = (await http.get("/reports/turns")).json()["rows"]
        assert [(row["number"], row["turns"]) for row in rows] == [(1, 2), (2, 1)]
        assert rows[1]["hit_rate"] > 0.5 > rows[0]["hit_rate"]
        of_one = {"session": first.started.conversation_id}
        assert [row["turns"] for row in (await http.get("/reports/turns", params=of_one)).json()["rows"]] == [
            1,
            1,
        ]
        book = (await http.get("/reports/prices")).json()
        assert (book["currency"], book["output"]) == ("CNY", 2_000_000_000)
        table = await http.get("/reports/sessions", params={"format": "csv"})
        lines = table.text.splitlines()
        assert lines[0].startswith("\ufeffsession_id,title,namespace,currency,turns")
        assert len(lines) == 3
        assert said(await http.get("/reports/sessions", params={"format": "xml"})) == "invalid_parameter"
