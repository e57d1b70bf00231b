"""Files of other tools, and those that are malformed."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from chatd.ids import Namespace
from chatd.imports.errors import WrongFile
from chatd.imports.files import read_file, without_ids
from chatd.store.archive import Archived

NS = Namespace("local")
NOW = 1_800_000_000_000_000


def said(role: str, *parts: object, kind: str = "text", at: float | None = None) -> dict[str, Any]:
    return {
        "author": {"role": role},
        "create_time": at,
        "content": {"content_type": kind, "parts": list(parts)},
    }


def chatgpt() -> dict[str, Any]:
    def node(key: str, parent: str | None, message: dict[str, Any] | None, *children: str) -> dict[str, Any]:
        return {"id": key, "parent": parent, "message": message, "children": list(children)}

    return {
        "title": "Sky",
        "create_time": 1_700_000_000.25,
        "update_time": 1_700_000_100.0,
        "current_node": "a2",
        "conversation_id": "c-1",
        "mapping": {
            "a2": node("a2", "q", said("assistant", "Because it scatters.", at=1_700_000_050.0)),
            "root": node("root", None, None, "sys"),
            "sys": node("sys", "root", said("system", ""), "q"),
            "q": node("q", "sys", said("user", "Why is the sky blue?", {"asset": 1}), "a1", "a2"),
            "a1": node("a1", "q", said("assistant", "Magic.")),
            "think": node("think", "a2", said("assistant", "hm", kind="thoughts")),
        },
    }


def open_webui() -> dict[str, Any]:
    messages = {
        "m1": {
            "id": "m1",
            "parentId": None,
            "childrenIds": ["m2", "m3"],
            "role": "user",
            "content": "Hi",
            "timestamp": 1_700_000_000,
        },
        "m3": {"id": "m3", "parentId": "m1", "childrenIds": [], "role": "assistant", "content": "Hey"},
        "m2": {"id": "m2", "parentId": "m1", "childrenIds": [], "role": "assistant", "content": "Hello"},
    }
    chat = {"title": "Greeting", "history": {"currentId": "m2", "messages": messages}, "messages": []}
    return {
        "id": "w-1",
        "title": "Greeting",
        "created_at": 1_700_000_000,
        "updated_at": 1_700_000_060,
        "chat": chat,
    }


def llama_cpp() -> dict[str, Any]:
    def message(key: str, parent: str | None, role: str, text: str, *children: str) -> dict[str, Any]:
        return {
            "id": key,
            "convId": "l-1",
            "type": "root" if parent is None else "text",
            "timestamp": 1_700_000_000_000,
            "role": role,
            "content": text,
            "parent": parent,
            "children": list(children),
        }

    return {
        "conv": {"id": "l-1", "name": "Llama", "lastModified": 1_700_000_060_000, "currNode": "b"},
        "messages": [
            message("r", None, "system", "", "q"),
            message("q", "r", "user", "Ping", "a", "b"),
            message("a", "q", "assistant", "Pong"),
            message("b", "q", "assistant", "Pang"),
        ],
    }


def read(tmp_path: Path, value: object) -> list[Archived]:
    path = tmp_path / "file.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return read_file(path, NS, NOW)


def told(one: Archived) -> tuple[str, list[tuple[str, str]], str]:
    tip = next(message.text for message in one.messages if message.id == one.tip_id)
    return one.title, [(message.role, message.text) for message in one.messages], tip


def test_chatgpt(tmp_path: Path) -> None:
    (one,) = read(tmp_path, [chatgpt()])
    turns = [("user", "Why is the sky blue?"), ("assistant", "Magic."), ("assistant", "Because it scatters.")]
    assert told(one) == ("Sky", turns, "Because it scatters.")
    assert (one.created_at, one.updated_at) == (1_700_000_000_250_000, 1_700_000_100_000_000)
    assert one.messages[2].created_at == 1_700_000_050_000_000
    assert one.messages[1].parent_id == one.messages[2].parent_id == one.messages[0].id
    assert all(message.token_ids is None for message in one.messages)


def test_chatgpts_archive_as_it_is_downloaded(tmp_path: Path) -> None:
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("conversations.json", json.dumps([chatgpt()]))
        archive.writestr("user.json", "{}")
    assert read_file(path, NS, NOW) == read(tmp_path, [chatgpt()])


def test_open_webui(tmp_path: Path) -> None:
    (one,) = read(tmp_path, [open_webui()])
    assert told(one) == ("Greeting", [("user", "Hi"), ("assistant", "Hello"), ("assistant", "Hey")], "Hello")
    assert one.updated_at == 1_700_000_060_000_000


def test_open_webui_without_branches(tmp_path: Path) -> None:
    value = open_webui()
    value["chat"] = {
        "title": "Old",
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [{"text": "Ho"}]}],
    }
    (one,) = read(tmp_path, [value])
    assert [message.text for message in one.messages] == ["Hi", "Ho"]
    assert one.messages[1].parent_id == one.messages[0].id


@pytest.mark.parametrize("many", [False, True])
def test_llama_cpp(tmp_path: Path, many: bool) -> None:
    (one,) = read(tmp_path, [llama_cpp()] if many else llama_cpp())
    assert told(one) == ("Llama", [("user", "Ping"), ("assistant", "Pong"), ("assistant", "Pang")], "Pang")
    assert (one.created_at, one.updated_at) == (1_700_000_000_000_000, 1_700_000_060_000_000)


def test_llama_cpps_first_page(tmp_path: Path) -> None:
    messages = [
        {"id": 1, "role": "user", "content": "Ping"},
        {"id": 2, "role": "assistant", "content": "Pong"},
    ]
    (one,) = read(tmp_path, {"id": "conv-1", "lastModified": 1_700_000_000_000, "messages": messages})
    assert told(one)[1:] == ([("user", "Ping"), ("assistant", "Pong")], "Pong")


def test_times_that_are_none_become_now(tmp_path: Path) -> None:
    value = chatgpt()
    value["create_time"], value["update_time"] = None, "yesterday"
    (one,) = read(tmp_path, [value])
    assert (one.created_at, one.updated_at) == (NOW, NOW)


def broken(tool: dict[str, Any], *path: str, value: object = None) -> list[object]:
    holder: Any = tool
    for key in path[:-1]:
        holder = holder[key]
    if value is None:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return [tool]


HEAD = '{"format":"chatd-conversations","version":1,"made_at":"x"}'
MALFORMED: dict[str, tuple[object, str]] = {
    "no JSON": ("<html>", "not JSON"),
    "half of it": ('[{"mapping": {', "not JSON"),
    "NaN": ("[NaN]", "not JSON"),
    "too deep": ("[" * 200_000, "not JSON"),
    "an odd kind": ([{"hello": 1}], "conversation 1 is of no kind that chatd knows"),
    "a number": ("3", "of no kind"),
    "the second is odd": ([chatgpt(), 3], "conversation 2 is of no kind"),
    "no role": (
        broken(chatgpt(), "mapping", "q", "message", "author", "role"),
        r"conversation 1 \(Sky\), message q has no role",
    ),
    "a role that is a list": (
        broken(chatgpt(), "mapping", "q", "message", "author", "role", value=["user"]),
        "a role of a wrong kind",
    ),
    "a node that is a text": (broken(chatgpt(), "mapping", "q", value="x"), "message q"),
    "parts that are a text": (
        broken(chatgpt(), "mapping", "q", "message", "content", "parts", value="x"),
        "parts of a wrong kind",
    ),
    "a loop": (broken(chatgpt(), "mapping", "root", "parent", value="q"), "loop"),
    "no messages": (broken(open_webui(), "chat", value={"title": "x"}), "has no messages"),
    "no content": (
        broken(open_webui(), "chat", "history", "messages", "m1", "content", value=7),
        r"message m1 has a content of a wrong kind",
    ),
    "no id": (broken(llama_cpp(), "conv", "id"), "has no id"),
    "half a character": (
        broken(chatgpt(), "mapping", "q", "message", "content", "parts", value=["\ud800"]),
        "not JSON",
    ),
    "another version": (HEAD.replace("1,", "2,"), "version 2"),
    "another format": (HEAD.replace("chatd-conv", "other-conv"), "format is other-conversations"),
    "a line that is cut": (HEAD + '\n{"id": "x", "name', "line 2 is wrong"),
    "a field too many": (HEAD + '\n{"id": "x", "colour": 1}', "line 2 is wrong"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_files_are_refused_with_the_place(tmp_path: Path, what: str) -> None:
    value, wanted = MALFORMED[what]
    with pytest.raises(WrongFile, match=wanted) as caught:
        read(tmp_path, value)
    assert "file.json cannot be imported: " in caught.value.message
    assert caught.value.message.endswith("Nothing of it was stored.")


def test_files_that_are_not_there_or_no_archive(tmp_path: Path) -> None:
    with pytest.raises(WrongFile, match="cannot be read"):
        read_file(tmp_path / "nowhere.json", NS, NOW)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("other.json", "[]")
    with pytest.raises(WrongFile, match=r"without a conversations\.json"):
        read_file(tmp_path / "x.zip", NS, NOW)


LINE: dict[str, Any] = {
    "id": "c",
    "namespace": "local",
    "title": "t",
    "created_at": "2026-11-29T00:00:00.000001Z",
    "updated_at": "2026-11-29T00:00:00Z",
    "tip_id": "m",
    "messages": [
        {
            "id": "m",
            "parent_id": None,
            "role": "user",
            "text": "hi",
            "token_ids": [1, 2],
            "status": "completed",
            "created_at": "2026-11-29T00:00:00Z",
        }
    ],
}


def lines(**message: object) -> str:
    line = json.loads(json.dumps(LINE))
    line["messages"][0].update(message)
    return HEAD + "\n" + json.dumps(line) + "\n"


def test_our_own_lines(tmp_path: Path) -> None:
    (one,) = read(tmp_path, lines())
    assert (one.created_at - one.updated_at, one.messages[0].token_ids) == (1, (1, 2))
    assert without_ids([one])[0].messages[0].token_ids is None


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ({"role": "tool"}, "role tool"),
        ({"status": "streaming"}, "still being written"),
        ({"status": "failed"}, "only an answer"),
        ({"parent_id": "nobody"}, "does not come before"),
        ({"token_ids": [-1]}, "token ids"),
        ({"token_ids": [2**32]}, "token ids"),
        ({"status": "paid"}, "line 2 is wrong"),
        ({"id": "other"}, "tip is not one"),
        ({"created_at": "yesterday"}, "line 2 is wrong"),
    ],
)
def test_our_own_lines_are_checked(tmp_path: Path, message: dict[str, object], wanted: str) -> None:
    with pytest.raises(WrongFile, match=wanted):
        read(tmp_path, lines(**message))
