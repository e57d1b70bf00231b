"""A conversation as Markdown, for people: one branch of it, from its beginning to one message. Pure."""

from chatd.ids import MessageId
from chatd.store.archive import Archived, ArchivedMessage

SPEAKERS = {"system": "System prompt", "user": "You", "assistant": "Answer"}


def markdown_of(one: Archived, last: MessageId | None = None) -> str:
    """The branch that ends in ``last``; without one, the newest. KeyError for a message it has not."""
    title = " ".join(one.title.split()) or "Untitled"
    parts = [
        f"# {title}",
        *(f"## {SPEAKERS[message.role]}\n\n{message.text}" for message in branch_of(one, last)),
    ]
    return "\n\n".join(parts).rstrip() + "\n"


def branch_of(one: Archived, last: MessageId | None = None) -> list[ArchivedMessage]:
    """The first message first."""
    by_id = {message.id: message for message in one.messages}
    found: list[ArchivedMessage] = []
    at = last or one.tip_id
    while at is not None:
        found.append(by_id[at])
        at = found[-1].parent_id
    return found[::-1]
