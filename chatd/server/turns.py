"""Where an answer goes and what its prompt is: from a command to a place in a tree, to ids."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from chatd.errors import Conflict, InvalidParameter, NotFound
from chatd.ids import ConversationId, MessageId, Namespace
from chatd.server.commands import ChatTurn, CreateCommand
from chatd.store.records import ROOT_KEY, KeptKV, MessageStatus, StoredMessage, chain_key
from chatd.store.store import Store


@dataclass(frozen=True, slots=True)
class Place:
    """The answer goes under ``path`` (stored, root first) and ``new`` (to be stored).

    ``continues``: it goes on writing the last message of ``path`` instead. ``under_tip``: the path was
    the conversation's tip when it was read. ``conversation_id`` None: a new conversation is made.

    ``known`` is the stored path that the prompt shares most with, ``kept`` what its responses left of KV;
    the message at index ``edited`` of the path is another than in ``known``.
    """

    path: tuple[StoredMessage, ...] = ()
    new: tuple[ChatTurn, ...] = ()
    conversation_id: ConversationId | None = None
    under_tip: bool = False
    continues: bool = False
    known: tuple[StoredMessage, ...] = ()
    kept: tuple[KeptKV, ...] = ()
    edited: int | None = None

    @property
    def parent_id(self) -> MessageId | None:
        return self.path[-1].id if self.path else None

    @property
    def system_changed(self) -> bool:
        """The system prompt got its text after the last answer that is known here."""
        first = self.path[0] if self.path else None
        return (
            first is not None
            and first.role == "system"
            and bool(self.known)
            and self.known[-1].created_at < first.created_at
        )

    @property
    def text_len(self) -> int:
        """Characters of the whole history."""
        return sum(len(m.text) for m in self.path) + sum(len(turn.text) for turn in self.new)


async def find_place(store: Store, namespace: Namespace, command: CreateCommand) -> Place:
    """Read what ``command`` refers to. Only reads: cancelled, it leaves nothing behind.

    Raises NotFound for ids that are unknown or somebody else's, InvalidParameter for a target of the
    wrong role, Conflict if the answer would hang under one that is still being written.
    """
    match command.kind:
        case "input" if command.raw is not None:
            place = Place(new=(ChatTurn("user", command.input),))
        case "input" if command.messages is not None and not _names_a_place(command):
            place = await _after_history(store, namespace, command.messages)
        case "input":
            place = await _under_parent(store, namespace, command)
        case _:
            place = await _at_target(store, namespace, command)
    if command.conversation_id is not None and place.conversation_id != command.conversation_id:
        raise NotFound("There is no such message in this conversation.")
    if any(message.status is MessageStatus.STREAMING for message in place.path):
        raise Conflict("The answer above is still being written. Wait for its end, or stop it first.")
    return replace(place, kept=tuple(await store.kept_on(place.known)))


def _names_a_place(command: CreateCommand) -> bool:
    return command.parent_id is not None or command.conversation_id is not None


async def _under_parent(store: Store, namespace: Namespace, command: CreateCommand) -> Place:
    new = (ChatTurn("user", command.input),) if command.messages is None else command.messages
    if command.parent_id is not None:
        path = tuple(await store.path_to(namespace, command.parent_id))
        return Place(path, new, path[-1].conversation_id, known=path)
    if command.conversation_id is None:
        return Place(new=new)
    head = await store.head(namespace, command.conversation_id)
    path = tuple(await store.path_to(namespace, head.tip_id)) if head.tip_id is not None else ()
    return Place(path, new, head.id, under_tip=True, known=path)


_TARGET_ROLE = {"edit": "user", "regenerate": "assistant", "continue": "assistant"}


async def _at_target(store: Store, namespace: Namespace, command: CreateCommand) -> Place:
    if command.target_id is None:
        raise InvalidParameter(f"{command.kind} needs a message id.", param=command.kind)
    path = tuple(await store.path_to(namespace, command.target_id))
    target = path[-1]
    role = _TARGET_ROLE[command.kind]
    if target.role != role:
        raise InvalidParameter(
            f"{command.kind} takes the id of a message of role {role}.", param=command.kind
        )
    if command.kind == "continue":
        return Place(path, (), target.conversation_id, continues=True, known=path)
    if command.kind == "regenerate":
        return Place(path[:-1], (), target.conversation_id, known=path)
    new = (ChatTurn("user", command.input),)
    return Place(path[:-1], new, target.conversation_id, known=path, edited=len(path) - 1)


async def _after_history(store: Store, namespace: Namespace, turns: Sequence[ChatTurn]) -> Place:
    """The longest part of the history that ends in an answer of ours is there already.

    A question of ours may follow that: asked again, or with an answer that the client changed.
    """
    found = await store.find_chain(namespace, chain_keys(namespace, ROOT_KEY, turns))
    if found is None:
        return Place(new=tuple(turns))
    at, message = found
    known = tuple(await store.path_to(namespace, message.id))
    answers = [index for index, one in enumerate(known) if one.role == "assistant"]
    changed = at + 1
    is_edited = any(turn.role == "assistant" for turn in turns[changed:])
    is_ours = bool(answers) or known[-1].role == "user"
    edited = changed if is_edited and is_ours else None
    if not answers:
        return Place(new=tuple(turns), known=known, edited=edited)
    end = answers[-1] + 1
    return Place(known[:end], tuple(turns[end:]), message.conversation_id, known=known, edited=edited)


def chain_keys(namespace: Namespace, parent_key: bytes, turns: Sequence[ChatTurn]) -> list[bytes]:
    """The look-up key of each turn, the first of them under the message with ``parent_key``."""
    keys: list[bytes] = []
    for turn in turns:
        parent_key = chain_key(namespace, parent_key, turn.role, turn.text)
        keys.append(parent_key)
    return keys
