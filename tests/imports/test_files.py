"""Files of other tools, and those that are malformed."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from chatd.ids import Namespace
from chatd.imports.errors import WrongFile
from chatd.imports.files import Found, read_file, without_ids
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


def found_in(tmp_path: Path, value: object) -> Found:
    path = tmp_path / "file.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return read_file(path, NS, NOW)


def read(tmp_path: Path, value: object) -> list[Archived]:
    """All of it."""
    found = found_in(tmp_path, value)
    assert found.left_out == []
    return found.conversations


def told(one: Archived) -> tuple[str, list[tuple[str, str]], str]:
    tip = next(message.text for message in one.messages if message.id == one.tip_id)
    return one.title, [(message.role, message.text) for message in one.messages], tip


def test_chatgpt(tmp_path: Path) -> None:
    (one,) = read(tmp_path, [chatgpt()])
    asked = "Why is the sky blue?\n\n[attachment, not imported]"
    turns = [("user", asked), ("assistant", "Magic."), ("assistant", "Because it scatters.")]
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
    assert read_file(path, NS, NOW).conversations == read(tmp_path, [chatgpt()])


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


IMAGE = {"content_type": "image_asset_pointer", "asset_pointer": "sediment://1", "width": 9}


def test_what_is_no_text_becomes_a_note_chatgpt(tmp_path: Path) -> None:
    value = chatgpt()
    call = said("assistant", kind="code") | {"recipient": "python"}
    call["content"] = {"content_type": "code", "text": "print(1)"}
    result = said("tool", "1", kind="execution_output")
    result["author"]["name"] = "python"
    heard = {"content_type": "audio_transcription", "text": "And by voice."}
    messages = {
        "q": said("user", IMAGE, "What is it?", heard, kind="multimodal_text"),
        "call": call,
        "one": result,
        "again": result,
        "seen": said("assistant", "It is 1."),
        "hm": said("assistant", "let me think", kind="thoughts"),
        "hidden": said("user", "x") | {"metadata": {"is_visually_hidden_from_conversation": True}},
        "odd": said("assistant", kind="weather_widget") | {"content": {"content_type": "weather_widget"}},
    }
    above = [None, *messages]
    value["mapping"] = {
        key: {"parent": parent, "message": message}
        for (key, message), parent in zip(messages.items(), above, strict=False)
    }
    (one,) = read(tmp_path, [value])
    assert told(one)[1] == [
        ("user", "[image, not imported]\n\nWhat is it?\n\nAnd by voice."),
        (
            "assistant",
            "[tool call: python, not imported]\n\n[tool result: python, not imported]\n\nIt is 1.\n\n"
            "[weather_widget, not imported]",
        ),
    ]


def test_what_is_no_text_becomes_a_note_open_webui(tmp_path: Path) -> None:
    value = open_webui()
    messages = value["chat"]["history"]["messages"]
    messages["m1"]["files"] = [{"type": "image", "url": "data:..."}, {"type": "file", "name": "a\nb.pdf"}, 7]
    messages["m1"]["content"] = [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {}}]
    messages["m2"] |= {"role": "tool", "name": "search", "content": "secret"}
    (one,) = read(tmp_path, [value])
    notes = "[image, not imported]\n\n[file: a b.pdf, not imported]\n\n[attachment, not imported]"
    assert told(one)[1][:2] == [
        ("user", f"{notes}\n\nHi\n\n[image, not imported]"),
        ("assistant", "[tool result: search, not imported]"),
    ]


def test_what_is_no_text_becomes_a_note_llama_cpp(tmp_path: Path) -> None:
    value = llama_cpp()
    value["messages"][1]["extra"] = [
        {"type": "imageFile", "name": "cat.png", "base64Url": "data:..."},
        {"type": "textFile", "name": "a\nb.txt", "content": "all of it"},
        {"type": "textFile", "name": ["c"], "content": "and this"},
    ]
    value["messages"][2]["content"] = [{"type": "text", "text": "Po"}, "ng"]
    (one,) = read(tmp_path, value)
    assert told(one)[1][:2] == [
        (
            "user",
            "[image: cat.png, not imported]\n\n[file: a b.txt]\nall of it\n\n"
            "[file: without a name]\nand this\n\nPing",
        ),
        ("assistant", "Po\n\nng"),
    ]


SHAPES: dict[str, tuple[list[object], str, list[str]]] = {
    "no role": (
        broken(chatgpt(), "mapping", "q", "message", "author", "role"),
        "conversation 1 (Sky), message q has no role",
        ["Magic.", "Because it scatters."],
    ),
    "a role that is a list": (
        broken(chatgpt(), "mapping", "a1", "message", "author", "role", value=["user"]),
        "conversation 1 (Sky), message a1 has a role of a wrong kind",
        ["Why is the sky blue?\n\n[attachment, not imported]", "Because it scatters."],
    ),
    "parts that are a text": (
        broken(chatgpt(), "mapping", "a2", "message", "content", "parts", value="x"),
        "conversation 1 (Sky), message a2 has a parts of a wrong kind",
        ["Why is the sky blue?\n\n[attachment, not imported]", "Magic."],
    ),
    "a content that is a number": (
        broken(open_webui(), "chat", "history", "messages", "m1", "content", value=7),
        "conversation 1 (Greeting), message m1 has a content of a wrong kind",
        ["Hello", "Hey"],
    ),
    "a message that is a text": (
        broken(llama_cpp(), "messages", value=[*llama_cpp()["messages"], "x"]),
        "conversation 1, message 5 has a message of a wrong kind",
        ["Ping", "Pong", "Pang"],
    ),
}


@pytest.mark.parametrize("what", SHAPES)
def test_a_malformed_message_is_left_out_by_name_and_the_rest_is_read(tmp_path: Path, what: str) -> None:
    value, wanted, texts = SHAPES[what]
    found = found_in(tmp_path, value)
    assert found.left_out == [f"{tmp_path / 'file.json'}: {wanted}"]
    (one,) = found.conversations
    assert [message.text for message in one.messages] == texts


def test_a_malformed_conversation_is_left_out_by_name_and_the_rest_is_read(tmp_path: Path) -> None:
    loop = chatgpt() | {"title": "Loop", "conversation_id": "c-2"}
    (looped,) = broken(loop, "mapping", "root", "parent", value="q")
    half = chatgpt() | {"title": "Half", "conversation_id": "c-3"}
    (halved,) = broken(half, "mapping", "q", "message", "content", "parts", value=["\ud800"])
    found = found_in(tmp_path, [looped, chatgpt(), 3, halved, open_webui()])
    assert [one.title for one in found.conversations] == ["Sky", "Greeting"]
    place = f"{tmp_path / 'file.json'}: "
    assert [said.removeprefix(place).partition(" message ")[0] for said in found.left_out] == [
        "conversation 1 (Loop): some messages hang in a loop, under no first one",
        "conversation 3 is of no kind that chatd knows (its own, ChatGPT's, Open WebUI's, llama.cpp's)",
        "conversation Half is wrong:",
    ]


@pytest.mark.parametrize("share", [0.4, 0.7, 0.99])
def test_of_a_file_that_breaks_off_what_comes_before_is_read(tmp_path: Path, share: float) -> None:
    several = [chatgpt() | {"title": f"{n}", "conversation_id": f"c-{n}"} for n in range(10)]
    text = json.dumps(several)
    found = found_in(tmp_path, text[: int(len(text) * share)])
    count = int(10 * share)
    assert [one.title for one in found.conversations] == [str(n) for n in range(count)]
    assert len(found.left_out) == 1
    assert f"after {count} conversations" in found.left_out[0]


def test_bytes_that_are_no_text_are_found_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(json.dumps([chatgpt(), open_webui()]).encode().replace(b"Hello", b"He\xff\xfello"))
    found = read_file(path, NS, NOW)
    texts = [message.text for one in found.conversations for message in one.messages]
    assert "He\ufffd\ufffdllo" in texts


HEAD = '{"format":"chatd-conversations","version":1,"made_at":"x"}'
MALFORMED: dict[str, tuple[object, str]] = {
    "no JSON": ("<html>", "not JSON"),
    "half of it": ('[{"mapping": {', "not JSON"),
    "NaN": ("[NaN]", "not JSON"),
    "too deep": ("[" * 200_000, "not JSON"),
    "an odd kind": ([{"hello": 1}], "conversation 1 is of no kind that chatd knows"),
    "a number": ("3", "of no kind"),
    "nothing but odd ones": ([3, chatgpt()["mapping"]], "conversation 1 is of no kind"),
    "a mapping that is a text": (broken(chatgpt(), "mapping", value="x"), "a mapping of a wrong kind"),
    "only a node that is a text": (broken(chatgpt(), "mapping", value={"q": "x"}), "message q"),
    "a loop": (broken(chatgpt(), "mapping", "root", "parent", value="q"), "loop"),
    "no messages": (broken(open_webui(), "chat", value={"title": "x"}), "has no messages"),
    "no id": (broken(llama_cpp(), "conv", "id"), "has no id"),
    "half a character": (
        broken(chatgpt(), "mapping", "q", "message", "content", "parts", value=["\ud800"]),
        "message [0-9a-f]+ has text with half a character",
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


def test_a_line_that_is_wrong_is_left_out_by_name_and_the_rest_is_read(tmp_path: Path) -> None:
    good = lines().splitlines()[1]
    other = good.replace('"c"', '"d"').replace('"m"', '"n"')
    found = found_in(tmp_path, "\n".join([HEAD, good, good[:50], "", other.replace("hi", "ho"), other[:-9]]))
    assert [(one.id, one.messages[0].text) for one in found.conversations] == [("c", "hi"), ("d", "ho")]
    assert [said.split(": ")[1] for said in found.left_out] == ["line 3 is wrong", "line 6 is wrong"]


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


def test_what_is_said_of_a_file_is_short_whatever_is_in_it(tmp_path: Path) -> None:
    head, line = lines(role="tool").splitlines()
    long = json.dumps({**json.loads(line), "title": "t" * 100_000})
    with pytest.raises(WrongFile, match="role tool") as refused:
        read(tmp_path, f"{head}\n{long}")
    assert len(str(refused.value)) < 500
