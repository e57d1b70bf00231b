"""ChatGPT's export: ``conversations.json``, a list of conversations, each a ``mapping`` of nodes by id.

{"title", "create_time", "update_time", "current_node", "id"|"conversation_id",
 "mapping": {id: {"id", "parent", "children", "message": {"author": {"role"}, "create_time",
                  "content": {"content_type", "parts": [text or an object, ...]}} | null}}}

What people see becomes text; a picture, a tool's call and what a tool said become notes.
"""

from collections.abc import Mapping
from typing import Any

from chatd.imports.parts import joined, note, part_text, voice
from chatd.imports.reading import may, moment, want
from chatd.imports.trees import Node, Source, each

UNSEEN = ("thoughts", "reasoning_recap", "user_editable_context", "model_editable_context")
"""Kinds of content that a person does not see, or not as said by somebody."""


def is_chatgpt(value: object) -> bool:
    return isinstance(value, Mapping) and "mapping" in value


def read_chatgpt(value: Mapping[str, Any], where: str, now: int) -> Source:
    """`WrongFile` says what is wrong and where."""
    mapping = want(value, "mapping", dict, where)
    own_id = may(value, "conversation_id", str, where) or may(value, "id", str, where)
    created_at = moment(value, "create_time") or now
    wrong: list[str] = []
    items = [(str(key), node) for key, node in mapping.items()]
    nodes = list(each(items, lambda key, node: _node(key, node, f"{where}, message {key}"), wrong))
    return Source(
        tool="chatgpt",
        id=own_id or min((node.id for node in nodes), default=""),
        title=may(value, "title", str, where) or "",
        created_at=created_at,
        updated_at=moment(value, "update_time") or created_at,
        current=may(value, "current_node", str, where),
        nodes=_siblings_in_order(nodes, mapping),
        wrong=wrong,
    )


def _node(key: str, node: object, where: str) -> Node:
    if not isinstance(node, Mapping):
        return want({"node": node}, "node", Node, where)  # says what is wrong
    parent_id = may(node, "parent", str, where)
    message = may(node, "message", dict, where)
    if message is None:
        return Node(key, parent_id, "", "")
    author = want(message, "author", dict, where)
    role, text = voice(want(author, "role", str, where), _text(message, where), author.get("name"))
    return Node(key, parent_id, role, text if _is_seen(message) else "", moment(message, "create_time"))


def _is_seen(message: Mapping[str, Any]) -> bool:
    metadata, content = message.get("metadata"), message.get("content")
    if isinstance(metadata, Mapping) and metadata.get("is_visually_hidden_from_conversation") is True:
        return False
    return isinstance(content, Mapping) and content.get("content_type") not in UNSEEN


def _text(message: Mapping[str, Any], where: str) -> str:
    content = may(message, "content", dict, where) or {}
    called = message.get("recipient")
    if isinstance(called, str) and called not in ("", "all"):
        return note("tool call", called)
    if content.get("parts") is None and "text" in content:
        return may(content, "text", str, where) or ""
    kind = content.get("content_type")
    if content.get("parts") is None and kind not in ("text", "multimodal_text"):
        return note(kind if isinstance(kind, str) else "attachment")
    return joined(part_text(part) for part in may(content, "parts", list, where) or [])


def _siblings_in_order(nodes: list[Node], mapping: Mapping[str, Any]) -> list[Node]:
    """As their parent lists them; the file itself may have them in any order."""
    rank: dict[str, int] = {}
    for node in mapping.values():
        children = node.get("children") if isinstance(node, Mapping) else None
        for child in children if isinstance(children, list) else ():
            rank.setdefault(str(child), len(rank))
    return sorted(nodes, key=lambda node: rank.get(node.id, -1))
