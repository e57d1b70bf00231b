"""ChatGPT's export: ``conversations.json``, a list of conversations, each a ``mapping`` of nodes by id.

{"title", "create_time", "update_time", "current_node", "id"|"conversation_id",
 "mapping": {id: {"id", "parent", "children", "message": {"author": {"role"}, "create_time",
                  "content": {"content_type", "parts": [text or an object, ...]}} | null}}}
"""

from collections.abc import Mapping
from typing import Any

from chatd.imports.reading import may, moment, want
from chatd.imports.trees import Node, Source

SPOKEN = frozenset({"text", "multimodal_text"})
"""Kinds of content that a person sees. Pictures in them are left out."""


def is_chatgpt(value: object) -> bool:
    return isinstance(value, Mapping) and "mapping" in value


def read_chatgpt(value: Mapping[str, Any], where: str, now: int) -> Source:
    """`WrongFile` says what is wrong and where."""
    mapping = want(value, "mapping", dict, where)
    own_id = may(value, "conversation_id", str, where) or may(value, "id", str, where)
    created_at = moment(value, "create_time") or now
    nodes = {str(key): _node(str(key), node, f"{where}, message {key}") for key, node in mapping.items()}
    return Source(
        tool="chatgpt",
        id=own_id or min(nodes, default=""),
        title=may(value, "title", str, where) or "",
        created_at=created_at,
        updated_at=moment(value, "update_time") or created_at,
        current=may(value, "current_node", str, where),
        nodes=_siblings_in_order(nodes, mapping),
    )


def _node(key: str, node: object, where: str) -> Node:
    if not isinstance(node, Mapping):
        return want({"node": node}, "node", Node, where)  # says what is wrong
    parent_id = may(node, "parent", str, where)
    message = may(node, "message", dict, where)
    if message is None:
        return Node(key, parent_id, "", "")
    role = want(want(message, "author", dict, where), "role", str, where)
    return Node(key, parent_id, role, _text(message, where), moment(message, "create_time"))


def _text(message: Mapping[str, Any], where: str) -> str:
    content = may(message, "content", dict, where)
    metadata = may(message, "metadata", dict, where) or {}
    if content is None or metadata.get("is_visually_hidden_from_conversation") is True:
        return ""
    if content.get("content_type") not in SPOKEN:
        return ""
    parts = may(content, "parts", list, where) or []
    return "\n\n".join(part for part in parts if isinstance(part, str) and part)


def _siblings_in_order(nodes: Mapping[str, Node], mapping: Mapping[str, Any]) -> list[Node]:
    """As their parent lists them; the file itself may have them in any order."""
    rank: dict[str, int] = {}
    for node in mapping.values():
        children = node.get("children")
        for child in children if isinstance(children, list) else ():
            rank.setdefault(str(child), len(rank))
    return sorted(nodes.values(), key=lambda node: rank.get(node.id, -1))
