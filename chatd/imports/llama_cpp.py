"""The exports of llama.cpp's web page: a conversation with its messages, or a list of these.

    {"conv": {"id", "name", "lastModified", "currNode"},
     "messages": [{"id", "convId", "type": "root"|"text", "role", "content", "timestamp", "parent",
                   "children"}]}

Its first page wrote ``{"id", "lastModified", "messages": [{"id", "role", "content"}]}``, without branches.
"""

from collections.abc import Mapping
from typing import Any

from chatd.imports.parts import attached, joined, text_of, voice
from chatd.imports.reading import may, moment, want
from chatd.imports.trees import Node, Source, each, in_a_row


def is_llama_cpp(value: object) -> bool:
    if not isinstance(value, Mapping) or not isinstance(value.get("messages"), list):
        return False
    return isinstance(value.get("conv"), Mapping) or "lastModified" in value


def read_llama_cpp(value: Mapping[str, Any], where: str, now: int) -> Source:
    """`WrongFile` says what is wrong and where."""
    conv = value if value.get("conv") is None else want(value, "conv", dict, where)
    messages = want(value, "messages", list, where)
    has_tree = any(isinstance(message, Mapping) and message.get("children") for message in messages)
    wrong: list[str] = []
    items = [(_name(message, number), message) for number, message in enumerate(messages, 1)]
    places = {key: f"{where}, message {number}" for number, (key, _) in enumerate(items, 1)}
    found = each(items, lambda key, message: _node(key, message, places[key]), wrong)
    nodes = list(found) if has_tree else in_a_row(found)
    updated_at = moment(conv, "lastModified") or now
    times = [node.created_at for node in nodes if node.created_at is not None]
    own_id = want(conv, "id", str, where)
    return Source(
        tool="llama.cpp",
        id=own_id,
        title=may(conv, "name", str, where) or "",
        created_at=min(times, default=updated_at),
        updated_at=updated_at,
        current=_key(conv.get("currNode")),
        nodes=nodes,
        wrong=wrong,
    )


def _name(message: object, number: int) -> str:
    """Its id; one without an id gets one that no other has."""
    own = _key(message.get("id")) if isinstance(message, Mapping) else None
    return own or f"#{number}"


def _node(key: str, value: object, where: str) -> Node:
    message = want({"message": value}, "message", dict, where)
    if _key(message.get("id")) is None:
        want(message, "id", str, where)
    parent_id = _key(message.get("parent"))
    if message.get("type") == "root":
        return Node(key, parent_id, "", "")
    said = joined([*attached(message.get("extra")), text_of(message.get("content"), where)])
    role, text = voice(want(message, "role", str, where), said, message.get("name"))
    return Node(key, parent_id, role, text, moment(message, "timestamp"))


def _key(value: object) -> str | None:
    """Ids were numbers once."""
    is_id = isinstance(value, str | int) and not isinstance(value, bool) and value not in ("", -1)
    return str(value) if is_id else None
