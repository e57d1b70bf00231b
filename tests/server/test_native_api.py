"""/api/v1 over the real store: shapes, limits, and what is refused."""

import contextlib
import json
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from chatd.engine.messages import FinishReason
from chatd.ids import Namespace, Rid
from chatd.server import protocol as wire
from chatd.server.http import BODY_LIMITS
from tests.support.chat_lab import ChatLab
from tests.support.live_server import LiveServer, live_lab

pytestmark = pytest.mark.usefixtures("blocked_loop")

BRIEF = {"id", "title", "created_at", "updated_at", "tip_id", "pinned"}


@contextlib.asynccontextmanager
async def api(data_dir: Path) -> AsyncIterator[tuple[httpx.AsyncClient, LiveServer, ChatLab]]:
    async with (
        live_lab(data_dir) as (server, lab),
        httpx.AsyncClient(base_url=f"{server.url}/api/v1", trust_env=False) as http,
    ):
        yield http, server, lab


async def new_conversation(http: httpx.AsyncClient, **fields: object) -> dict[str, Any]:
    answer = await http.post("/conversations", json=fields)
    assert answer.status_code == 201
    made: dict[str, Any] = answer.json()
    return made


def error_of(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "retryable", "param"}
    assert error["message"]
    return answer.status_code, error["code"], error["param"]


async def test_create_read_rename_delete(data_dir: Path) -> None:
    async with api(data_dir) as (http, _, _):
        made = await new_conversation(http, title="  My title ", system="Be brief.")
        assert set(made) == BRIEF
        assert made["title"] == "My title"
        assert datetime.fromisoformat(made["created_at"]).utcoffset() is not None
        whole = (await http.get(f"/conversations/{made['id']}")).json()
        assert set(whole) == BRIEF | {"messages"}
        [system] = whole["messages"]
        assert (system["role"], system["text"], system["parent_id"]) == ("system", "Be brief.", None)
        assert (system["id"], system["responses"]) == (made["tip_id"], [])
        renamed = await http.patch(f"/conversations/{made['id']}", json={"title": "Another"})
        assert (renamed.status_code, renamed.json()["title"]) == (200, "Another")
        gone = await http.delete(f"/conversations/{made['id']}")
        assert (gone.status_code, gone.content) == (204, b"")
        assert error_of(await http.get(f"/conversations/{made['id']}")) == (404, "not_found", None)
        assert error_of(await http.delete(f"/conversations/{made['id']}"))[0] == 404


async def test_list_in_pages(data_dir: Path) -> None:
    async with api(data_dir) as (http, _, _):
        assert (await http.get("/conversations")).json() == {"conversations": [], "next": None}
        made = [(await new_conversation(http, title=f"t{n}"))["id"] for n in range(7)]
        seen, before = [], None
        while True:
            params = {"limit": 3} | ({"before": before} if before else {})
            page = (await http.get("/conversations", params=params)).json()
            seen += [one["id"] for one in page["conversations"]]
            if (before := page["next"]) is None:
                break
        assert seen == made[::-1]


async def test_an_answer_and_its_bill(data_dir: Path) -> None:
    async with api(data_dir) as (http, server, lab), server.client() as client:
        created = await client.start("hello there")
        rid = Rid(created.response_id)
        running = (await http.get(f"/responses/{rid}")).json()
        assert (running["status"], running["finish_reason"], running["ended_at"]) == ("open", None, None)
        lab.hand.say(rid, "Hi", "!")
        lab.hand.finish(rid, FinishReason.END)
        ending = await client.ending(rid)
        response = (await http.get(f"/responses/{rid}")).json()
        for name in ("usage", "timings", "cost", "xray"):
            assert response[name] == json.loads(wire.encode(ending))[name]
        assert (response["status"], response["finish_reason"], response["last_seq"]) == (
            "completed",
            "end",
            2,
        )
        assert (response["error"], response["model"]) == (None, "toy")
        whole = (await http.get(f"/conversations/{created.conversation_id}")).json()
        user, assistant = whole["messages"]
        assert (user["role"], user["text"], user["id"]) == ("user", "hello there", created.user_message_id)
        assert (assistant["text"], assistant["parent_id"], assistant["status"]) == (
            "Hi!",
            user["id"],
            "completed",
        )
        [wrote] = assistant["responses"]
        history = {"dropped_turns", "miss"}
        figures = {"response_id", "status", "finish_reason", "usage", "timings", "cost", "xray", "error"}
        assert set(wrote) == figures | history
        assert (wrote["dropped_turns"], wrote["miss"]) == (0, "")
        assert whole["tip_id"] == assistant["id"] == created.message_id
        report = (await http.get("/report")).json()
        [session] = report["sessions"]
        assert session["session_id"] == created.conversation_id
        assert session["cost_nano"] == ending.cost.total_nano
        [total] = report["totals"]
        assert total["output_tokens"] == ending.usage.output_tokens == 2
        verdict = (await http.get("/report/verify")).json()
        assert (verdict["ok"], verdict["responses"], verdict["findings"]) == (True, 1, [])


async def test_a_failed_answer_says_why(data_dir: Path) -> None:
    async with api(data_dir) as (http, server, lab), server.client() as client:
        created = await client.start()
        lab.hand.say(Rid(created.response_id), "x")
        lab.hand.finish(Rid(created.response_id), FinishReason.FAILED)
        await client.ending(created.response_id)
        response = (await http.get(f"/responses/{created.response_id}")).json()
        assert response["status"] == "failed"
        assert set(response["error"]) == {"code", "message", "retryable"}


async def test_status(data_dir: Path) -> None:
    async with api(data_dir) as (http, server, _), server.client() as client:
        await client.send(wire.Ping())
        await client.until(wire.Pong)
        status = (await http.get("/status")).json()
        assert (status["status"], status["version"], status["connections"]) == ("ready", "1.2.3", 1)
        assert status["model"]["name"] == "toy"
        assert {"weights", "kernels", "kv_dtype", "kv_bytes", "page_size", "cache_on"} <= set(status["model"])
        assert {"running", "waiting", "free_pages", "total_pages", "counters"} <= set(status["engine"])


async def test_renaming_is_told_to_every_socket(data_dir: Path) -> None:
    async with api(data_dir) as (http, server, _), server.client() as client:
        await client.send(wire.Ping())
        await client.until(wire.Pong)
        made = await new_conversation(http)
        assert (await client.until(wire.ConversationUpdated)).conversation_id == made["id"]
        await http.patch(f"/conversations/{made['id']}", json={"title": "New"})
        renamed = await client.until(wire.ConversationUpdated)
        assert (renamed.title, renamed.system_changed) == ("New", False)
        await http.patch(f"/conversations/{made['id']}", json={"system": "Be brief."})
        assert (await client.until(wire.ConversationUpdated)).system_changed


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"", 400, "bad_frame", None),
        (b"{", 400, "bad_frame", None),
        (b"[]", 400, "bad_frame", None),
        (b"null", 400, "bad_frame", None),
        (b'{"title":"a","title":"b"}', 400, "bad_frame", None),
        (b'{"titel":"a"}', 400, "bad_frame", None),
        (b'{"title":"a\\u0000"}', 400, "bad_frame", None),
        (b'{"title":"\\ud800"}', 400, "bad_frame", None),
        (b'{"title":NaN}', 400, "bad_frame", None),
        (b'{"title":"\xff"}', 400, "bad_frame", None),
        (b"[" * 100_000, 400, "bad_frame", None),
        (b'{"title":1}', 400, "invalid_parameter", "title"),
        (b'{"title":null}', 400, "invalid_parameter", "title"),
        (b'{"title":"' + b"t" * 201 + b'"}', 400, "invalid_parameter", "title"),
        (b'{"system":["a"]}', 400, "invalid_parameter", "system"),
        (b'{"title":"' + b"x" * BODY_LIMITS.max_bytes + b'"}', 413, "too_large", None),
    ],
)
async def test_m1_bad_bodies(data_dir: Path, body: bytes, status: int, code: str, param: str | None) -> None:
    async with api(data_dir) as (http, _, _):
        assert error_of(await http.post("/conversations", content=body)) == (status, code, param)
        assert (await http.get("/conversations")).json()["conversations"] == []
        assert (await new_conversation(http, title="good"))["title"] == "good"


async def test_a_body_without_a_length_is_cut_off(data_dir: Path) -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 65536

    async with api(data_dir) as (http, _, _):
        with contextlib.suppress(httpx.WriteError, httpx.ReadError):
            answer = await http.post("/conversations", content=endless())
            assert error_of(answer)[:2] == (413, "too_large")
        assert taken < 200


@pytest.mark.parametrize("limit", ["0", "-1", "201", "x", "1.5", "", "9" * 30, "１"])
async def test_bad_limits(data_dir: Path, limit: str) -> None:
    async with api(data_dir) as (http, _, _):
        answer = await http.get("/conversations", params={"limit": limit})
        assert error_of(answer) == (400, "invalid_parameter", "limit")


async def test_bad_cursor_and_empty_title(data_dir: Path) -> None:
    async with api(data_dir) as (http, _, _):
        answer = await http.get("/conversations", params={"before": "'; drop table"})
        assert error_of(answer) == (400, "invalid_parameter", "before")
        made = await new_conversation(http)
        answer = await http.patch(f"/conversations/{made['id']}", json={"title": " "})
        assert error_of(answer) == (400, "invalid_parameter", "title")


@pytest.mark.parametrize(
    "name",
    [
        "nope",
        "%2e%2e",
        "..%2f..%2fetc%2fpasswd",
        "a%00b",
        "x" * 300,
        "%ef%bc%8e%ef%bc%8e",
        "a%5cb",
        "%ff",
    ],
)
@pytest.mark.parametrize("kind", ["conversations", "responses"])
async def test_v1_names(data_dir: Path, name: str, kind: str) -> None:
    async with api(data_dir) as (http, server, _):
        answer = await http.get(httpx.URL(f"{server.url}/api/v1/{kind}/{name}"))
        assert error_of(answer)[:2] == (404, "not_found")


async def test_s4_other_peoples_ids_look_unknown(data_dir: Path) -> None:
    async with api(data_dir) as (http, _, lab):
        theirs = await lab.store.create_conversation(Namespace("somebody else"), "secret")
        answers = [await http.get(f"/conversations/{id}") for id in (theirs.id, "unknown")]
        assert answers[0].content == answers[1].content
        assert {answer.status_code for answer in answers} == {404}
        for answer in (
            await http.patch(f"/conversations/{theirs.id}", json={"title": "mine"}),
            await http.delete(f"/conversations/{theirs.id}"),
        ):
            assert error_of(answer)[:2] == (404, "not_found")
        assert (await http.get("/conversations")).json()["conversations"] == []
