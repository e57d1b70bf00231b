"""Which conversation to go on with, as the server's JSON shows it."""

from typing import Any
from urllib.parse import quote

from chatd.cli.connect import get_json
from chatd.data_dir import ServerAddress
from chatd.errors import NotFound


def find_view(server: ServerAddress, conversation: str | None, last: bool) -> dict[str, Any]:
    """The conversation to go on with as the server's JSON; empty for a new one."""
    if last:
        newest = get_json(server, "/api/v1/conversations?limit=1")["conversations"]
        conversation = newest[0]["id"] if newest else None
    if conversation is None:
        return {}
    try:
        return _conversation(server, conversation)
    except NotFound:
        return _conversation(server, _whole_id(server, conversation))


def _conversation(server: ServerAddress, conversation_id: str) -> dict[str, Any]:
    view: dict[str, Any] = get_json(server, "/api/v1/conversations/" + quote(conversation_id, safe=""))
    return view


def resolve_id(server: ServerAddress, given: str) -> str:
    """The id of a conversation of which ``given`` may be the beginning. `NotFound` unless there is one."""
    try:
        return str(_conversation(server, given)["id"])
    except NotFound:
        return _whole_id(server, given)


def _whole_id(server: ServerAddress, beginning: str) -> str:
    """The id of which ``chatd report`` shows the beginning. `NotFound` unless there is exactly one."""
    sessions = get_json(server, "/api/v1/report")["sessions"]
    found = sorted({row["session_id"] for row in sessions if row["session_id"].startswith(beginning)})
    if not found:
        raise NotFound(f"There is no conversation {beginning}; `chatd report` lists them.")
    if len(found) > 1:
        raise NotFound(f"{len(found)} conversations begin with {beginning}; give more of the id.")
    return str(found[0])


def path_of(view: dict[str, Any]) -> list[dict[str, Any]]:
    """Messages from the first one to the tip."""
    by_id = {message["id"]: message for message in view.get("messages", ())}
    path: list[dict[str, Any]] = []
    message = by_id.get(view.get("tip_id"))
    while message is not None:
        path.append(message)
        message = by_id.get(message["parent_id"])
    return path[::-1]
