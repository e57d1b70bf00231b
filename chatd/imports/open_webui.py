"""Open WebUI's export: a list of chats, each a tree of messages by id.

    {"id", "title", "created_at", "updated_at", "chat": {"title", "timestamp",
     "history": {"currentId", "messages": {id: {"id", "parentId", "childrenIds", "role", "content",
                                                "timestamp"}}},
     "messages": [...]}}

Chats of old versions have only the list ``messages``, without branches.
"""

from collections.abc import Mapping
from typing import Any

from chatd.imports.reading import may, moment, want
from chatd.imports.trees import Node, Source


def is_open_webui(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("chat"), Mapping)


def read_open_webui(value: Mapping[str, Any], where: str, now: int) -> Source:
    """`WrongFile` says what is wrong and where."""
    chat = want(value, "chat", dict, where)
    history = may(chat, "history", dict, where) or {}
    tree = may(history, "messages", dict, where)
    nodes = _tree(tree, where) if tree else _line(want(chat, "messages", list, where), where)
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
    )


def _tree(tree: Mapping[str, Any], where: str) -> list[Node]:
    rank: dict[str, int] = {}
    for message in tree.values():
        children = message.get("childrenIds") if isinstance(message, Mapping) else None
        for child in children if isinstance(children, list) else ():
            rank.setdefault(str(child), len(rank))
    nodes = []
    for key, message in tree.items():
        place = f"{where}, message {key}"
        message = want({key: message}, key, dict, place)
        parent_id = may(message, "parentId", str, place)
        nodes.append(_node(key, parent_id, message, place))
    return sorted(nodes, key=lambda node: rank.get(node.id, -1))


def _line(messages: list[Any], where: str) -> list[Node]:
    nodes: list[Node] = []
    for number, message in enumerate(messages, 1):
        place = f"{where}, message {number}"
        message = want({"message": message}, "message", dict, place)
        nodes.append(_node(str(number), nodes[-1].id if nodes else None, message, place))
    return nodes


def _node(key: str, parent_id: str | None, message: Mapping[str, Any], where: str) -> Node:
    role = want(message, "role", str, where)
    return Node(key, parent_id, role, _text(message.get("content"), where), moment(message, "timestamp"))


def _text(content: object, where: str) -> str:
    """A text, or a list of parts of which some are texts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "\n\n".join(part for part in parts if isinstance(part, str) and part)
    return want({"content": content or ""}, "content", str, where)
