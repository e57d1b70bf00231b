"""What a client may ask of `ChatService`, and what it is told at once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from chatd.ids import ConversationId, MessageId, ResponseId
from chatd.server.protocol import Asking

IdT = TypeVar("IdT")

Kind = Literal["input", "edit", "regenerate", "continue"]


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One message of a history that came as text."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class CreateCommand:
    """One wish for an answer. ``params`` are as they came on the wire, unchecked.

    ``input`` goes under ``parent_id``, else under the tip of ``conversation_id``, else into a new
    conversation. ``target_id`` is what an edit, a regenerate or a continue is about. ``messages`` go there
    instead of ``input``; where nothing names a place they are a whole history as text. ``raw`` is a prompt
    that no template shows, as text or as ids: then ``input`` is its text, and nothing names a place.

    ``note`` is kept with the response, for as long as its conversation is there. Without ``store`` it is
    withdrawn from the start, and a hidden history of nothing else goes soon after its last use. ``grace_s``
    is how long generation goes on with nobody reading (None: the server's setting; 0: it ends with its last
    reader).
    """

    kind: Kind = "input"
    input: str = ""
    idempotency_key: str | None = None
    conversation_id: ConversationId | None = None
    parent_id: MessageId | None = None
    target_id: MessageId | None = None
    params: Mapping[str, object] = field(default_factory=dict)
    messages: tuple[ChatTurn, ...] | None = None
    raw: str | tuple[int, ...] | None = None
    note: str = ""
    store: bool = True
    hidden: bool = False
    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """``replay``: the key was used before and these are the ids of that time; nothing new runs.

    ``dropped_turns`` of the oldest turns were left out of the prompt (``truncation: "auto"``).
    ``miss`` says why earlier ids could not be kept, if so (see `PromptPlan.miss`). A replay repeats both.
    """

    response_id: ResponseId
    conversation_id: ConversationId
    user_message_id: MessageId | None
    message_id: MessageId
    replay: bool
    dropped_turns: int = 0
    miss: str = ""


def command_of(request: Asking) -> CreateCommand:
    """A client's request, which has passed `Asking.check`."""

    def id_or_none(value: str | None, kind: Callable[[str], IdT]) -> IdT | None:
        return None if value is None else kind(value)

    return CreateCommand(
        kind=request.kind,
        input=request.input or "",
        idempotency_key=request.idempotency_key,
        conversation_id=id_or_none(request.conversation_id, ConversationId),
        parent_id=id_or_none(request.parent_id, MessageId),
        target_id=id_or_none(request.target_id, MessageId),
        params=request.params,
    )
