"""Other tools' conversations made into ours: trees of messages of three roles, with text and nothing else.

What says nothing (an empty message) is left out and its children go under its parent; so is, by name, a
message that cannot be read. What one role says in several messages in a row, with no other branch between
them, becomes one message: models are taught that roles take turns.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from chatd.ids import ConversationId, MessageId, Namespace
from chatd.imports.errors import WrongFile
from chatd.imports.parts import is_note
from chatd.store.archive import ROLES, Archived, ArchivedMessage
from chatd.store.conversations import MAX_TITLE_LEN
from chatd.store.records import MessageStatus


@dataclass(frozen=True, slots=True)
class Node:
    """A message as another tool keeps it; ``created_at`` Unix microseconds, None if it is not known."""

    id: str
    parent_id: str | None
    role: str
    text: str
    created_at: int | None = None

    @property
    def says(self) -> bool:
        return self.role in ROLES and bool(self.text.strip())


PARENTS = ("parent", "parentId")


def each(
    items: Iterable[tuple[str, object]], read: Callable[[str, object], Node], wrong: list[str]
) -> Iterator[Node]:
    """The messages of a conversation by their ids. In the place of one that cannot be read stands one that
    says nothing, so that what hangs below keeps its place; ``wrong`` gets what is wrong with it.
    """
    for key, item in items:
        try:
            yield read(key, item)
        except WrongFile as error:
            wrong.append(error.message)
            above = [item.get(name) for name in PARENTS] if isinstance(item, Mapping) else []
            yield Node(key, next((one for one in above if isinstance(one, str)), None), "", "")


def in_a_row(nodes: Iterable[Node]) -> list[Node]:
    """Each under the one before it: of a tool without branches."""
    row: list[Node] = []
    for node in nodes:
        row.append(replace(node, parent_id=row[-1].id if row else None))
    return row


@dataclass(frozen=True, slots=True)
class Source:
    """A conversation as another tool keeps it. Siblings are in the order of ``nodes``.

    ``current`` is the message that the tool shows last, None for the last of all. ``wrong`` says of the
    messages that could not be read where they are and what is wrong with them.
    """

    tool: str
    id: str
    title: str
    created_at: int
    updated_at: int
    current: str | None
    nodes: Sequence[Node]
    wrong: Sequence[str] = ()

    def archived(self, namespace: Namespace) -> Archived:
        """Ids are made of the tool's: what is imported twice is known.

        `WrongFile` for a loop, and if there were messages and none could be read.
        """
        if self.wrong and not any(node.says for node in self.nodes):
            raise WrongFile(self.wrong[0])
        tree = _Tree(self, _in_order(self.nodes))
        return Archived(
            id=ConversationId(self.new_id("conversation", self.id)),
            namespace=namespace,
            title=" ".join(self.title.split())[:MAX_TITLE_LEN],
            created_at=self.created_at,
            updated_at=self.updated_at,
            tip_id=tree.tip(self.current),
            messages=tree.messages(),
        )

    def new_id(self, kind: str, theirs: str) -> str:
        named = "\x1f".join((self.tool, kind, self.id, theirs))
        return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _in_order(nodes: Sequence[Node]) -> list[Node]:
    """Parents before children. A parent that is not in the file is none."""
    known = {node.id for node in nodes}
    if len(known) < len(nodes):
        raise WrongFile("two messages have the same id")
    below: dict[str | None, list[Node]] = {}
    for node in nodes:
        below.setdefault(node.parent_id if node.parent_id in known else None, []).append(node)
    ordered: list[Node] = []
    waiting = below.pop(None, [])[::-1]
    while waiting:
        node = waiting.pop()
        ordered.append(node)
        waiting.extend(below.get(node.id, [])[::-1])
    if len(ordered) < len(nodes):
        raise WrongFile("some messages hang in a loop, under no first one")
    return ordered


class _Tree:
    """``ordered`` nodes become messages; several nodes may become one, and some none."""

    def __init__(self, source: Source, ordered: Sequence[Node]) -> None:
        self._source = source
        self._message_of: dict[str, str | None] = {}
        """The node that stands for a node: itself, the one it is joined to, or the nearest above."""
        self._texts: dict[str, list[str]] = {}
        self._first: dict[str, Node] = {}
        self._above: dict[str, str | None] = {}
        parents = self._speaking_parents(ordered)
        branching = Counter(parents.values())
        for node in ordered:
            self._place(node, parents, branching)

    @staticmethod
    def _speaking_parents(ordered: Sequence[Node]) -> dict[str, str | None]:
        """Of each node that says something, the nearest above that does."""
        nearest: dict[str | None, str | None] = {None: None}
        found = {}
        for node in ordered:
            above = nearest.get(node.parent_id)
            if node.says:
                found[node.id] = above
            nearest[node.id] = node.id if node.says else above
        return found

    def _place(
        self, node: Node, parents: Mapping[str, str | None], branching: Mapping[str | None, int]
    ) -> None:
        if not node.says:
            self._message_of[node.id] = self._message_of.get(node.parent_id) if node.parent_id else None
            return
        parent = parents[node.id]
        above = None if parent is None else self._message_of[parent]
        if above is not None and self._first[above].role == node.role and branching[parent] == 1:
            self._message_of[node.id] = above
            if not (is_note(node.text) and node.text == self._texts[above][-1]):
                self._texts[above].append(node.text)
            return
        self._message_of[node.id] = node.id
        self._first[node.id], self._above[node.id], self._texts[node.id] = node, above, [node.text]

    def messages(self) -> tuple[ArchivedMessage, ...]:
        return tuple(self._message(key) for key in self._first)

    def _message(self, key: str) -> ArchivedMessage:
        node, above = self._first[key], self._above[key]
        return ArchivedMessage(
            id=self._id(key),
            parent_id=None if above is None else self._id(above),
            role=node.role,
            text="\n\n".join(self._texts[key]),
            token_ids=None,
            status=MessageStatus.COMPLETED,
            created_at=self._source.created_at if node.created_at is None else node.created_at,
        )

    def tip(self, current: str | None) -> MessageId | None:
        key = None if current is None else self._message_of.get(current)
        if key is None:
            key = next(reversed(self._first), None)
        return None if key is None else self._id(key)

    def _id(self, key: str) -> MessageId:
        return MessageId(self._source.new_id("message", key))
