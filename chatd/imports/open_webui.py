"""Open WebUI's export: a list of chats, each a tree of messages by id.

    {"id", "title", "created_at", "updated_at", "chat": {"title", "timestamp",
     "history": {"currentId", "messages": {id: {"id", "parentId", "childrenIds", "role", "content",
                                                "timestamp"}}},
     "messages": [...]}}

Chats of old versions have only the list ``messages``, without branches.
"""

from collections.abc import Mapping
from typing import Any

from chatd.imports.parts import attached, joined, text_of, voice
from chatd.imports.reading import may, moment, want
from chatd.imports.trees import Node, Source, each, in_a_row


def is_open_webui(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("chat"), Mapping)


def read_open_webui(value: Mapping[str, Any], where: str, now: int) -> Source:
    """`WrongFile` says what is wrong and where."""
    chat = want(value, "chat", dict, where)
    history = may(chat, "history", dict, where) or {}
    tree = may(history, "messages", dict, where)
    wrong: list[str] = []
    nodes = _tree(tree, where, wrong) if tree else _line(want(chat, "messages", list, where), where, wrong)
    created_at = moment(value, "created_at") or moment(chat, "timestamp") or now
    own_id = may(value, "id", str, where) or may(chat, "id", str, where)
    return Source(
        tool="open-webui",
        id=own_id or (nodes[0].id if nodes else ""),
        title=may(value, "title", str, where) or may(chat, "title", str, where) or "",
        created_at=created_at,
        updated_at=moment(value, "updated_at") or created_at,
        current=may(history, "currentId", str, where),
        nodes=nodes,
        wrong=wrong,
    )


def _tree(tree: Mapping[str, Any], where: str, wrong: list[str]) -> list[Node]:
    rank: dict[str, int] = {}
    for message in tree.values():
        children = message.get("childrenIds") if isinstance(message, Mapping) else None
        for child in children if isinstance(children, list) else ():
            rank.setdefault(str(child), len(rank))

    def read(key: str, value: object) -> Node:
        place = f"{where}, message {key}"
        message = want({key: value}, key, dict, place)
        return _node(key, may(message, "parentId", str, place), message, place)

    return sorted(each(tree.items(), read, wrong), key=lambda node: rank.get(node.id, -1))


def _line(messages: list[Any], where: str, wrong: list[str]) -> list[Node]:
    def read(key: str, value: object) -> Node:
        place = f"{where}, message {key}"
        return _node(key, None, want({"message": value}, "message", dict, place), place)

    items = [(str(number), message) for number, message in enumerate(messages, 1)]
    return in_a_row(each(items, read, wrong))


def _node(key: str, parent_id: str | None, message: Mapping[str, Any], where: str) -> Node:
    said = joined([*attached(message.get("files")), text_of(message.get("content"), where)])
    role, text = voice(want(message, "role", str, where), said, message.get("name"))
    return Node(key, parent_id, role, text, moment(message, "timestamp"))
