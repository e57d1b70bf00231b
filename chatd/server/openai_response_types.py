"""The shapes of OpenAI's Responses, as far as chatd speaks them.

Requests are lenient where that is harmless, as in `openai_types`. In events, ``sequence_number`` grows, but
not always by one: a delta that ends with piece n has ``FIRST_DELTA + n - 1``. So it means the same in every
stream of a response, however its pieces were joined, and ``starting_after`` is exact.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from chatd.errors import InvalidParameter, Unsupported
from chatd.server import openai_types as chat
from chatd.server import params as rules
from chatd.server.commands import ChatTurn

MAX_METADATA = 16
FIRST_DELTA = 4
"""After `response.created`, `response.in_progress` and the two that announce the message and its text."""

PARTS = ("input_text", "output_text", "text")

ACCEPTED: dict[str, tuple[object, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "include": ([], ["reasoning.encrypted_content"]),
    "prompt": (),
    "text": ({}, {"format": {"type": "text"}}),
    "reasoning": ({}, {"effort": "none"}),
    "top_logprobs": (0,),
    "context_management": ([],),
}
"""Fields that ask for more than text, with the values (besides null) that do not."""

Status = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]


class InputItem(Struct, frozen=True):
    """One message of the input; other items are refused."""

    type: str = "message"
    role: str | None = None
    content: str | list[chat.ContentPart] | None = None

    def turn(self, at: int) -> ChatTurn:
        where = f"input[{at}]"
        if self.type != "message":
            raise Unsupported("Only items of type message are supported.", param=f"{where}.type")
        role = chat.ROLES.get(self.role or "")
        if role is None:
            raise Unsupported(f"Messages of this role are not supported: {where}.", param=f"{where}.role")
        if self.content is None:
            raise InvalidParameter(f"{where} has no content.", param=f"{where}.content")
        if isinstance(self.content, str):
            return ChatTurn(role, self.content)
        return ChatTurn(role, "".join(_text(part, where) for part in self.content))


def _text(part: chat.ContentPart, where: str) -> str:
    if part.type not in PARTS or part.text is None:
        raise Unsupported("Only content parts that are text are supported.", param=f"{where}.content")
    return part.text


class ConversationRef(Struct, frozen=True):
    id: str


class ResponseRequest(chat.Sampling, frozen=True, kw_only=True):
    """A request body. Values of parameters are looked at by `chatd.server.params`."""

    input: str | list[InputItem]
    model: Any = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationRef | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None
    max_output_tokens: Any = None

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationRef) else self.conversation

    def turns(self) -> tuple[ChatTurn, ...]:
        """What is new. Raises for what asks for no answer, and for fields that do not fit together."""
        if isinstance(self.input, str):
            turns: tuple[ChatTurn, ...] = (ChatTurn("user", self.input),)
        elif len(self.input) > chat.MAX_MESSAGES:
            raise InvalidParameter(f"At most {chat.MAX_MESSAGES} items are allowed.", param="input")
        else:
            turns = tuple(item.turn(at) for at, item in enumerate(self.input))
        if not any(turn.text.strip() for turn in turns):
            raise InvalidParameter("input is empty.", param="input")
        if turns[-1].role == "assistant":
            raise Unsupported("The last item is an assistant's: end with a user's.", param="input")
        self._check_together()
        return turns

    def _check_together(self) -> None:
        if self.previous_response_id is not None and self.conversation is not None:
            raise InvalidParameter(
                "Give only one of previous_response_id and conversation.", param="previous_response_id"
            )
        if self.background and self.store is False:
            raise InvalidParameter("background needs store.", param="background")
        if self.conversation is not None and self.store is False:
            raise InvalidParameter("A conversation keeps all that is said in it.", param="store")
        if len(self.metadata or {}) > MAX_METADATA:
            raise InvalidParameter(f"metadata has at most {MAX_METADATA} entries.", param="metadata")
        for name, value in (self.metadata or {}).items():
            if len(name) > 64 or len(value) > 512:
                raise InvalidParameter(
                    "Names in metadata have at most 64 characters, values 512.", param="metadata"
                )
            rules.check_text(name + value, "metadata")

    def params(self) -> dict[str, object]:
        """By the names of `chatd.server.params`."""
        given = {name: getattr(self, name) for name in rules.NAMES if name != "max_tokens"}
        return given | {"max_tokens": self.max_output_tokens}


class Note(Struct, frozen=True, omit_defaults=True):
    """What is kept of a request besides its messages. ``instructions``: the path's first message is them, and
    they hold for this response alone."""

    instructions: bool = False
    previous_response_id: str | None = None
    conversation: bool = False
    metadata: dict[str, str] = {}
    max_output_tokens: int | None = None
    background: bool = False
    store: bool = True


class InputTokensDetails(Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct, frozen=True):
    reasoning_tokens: int = 0


class ResponseUsage(Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    total_tokens: int
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()


class TextPart(Struct, frozen=True):
    text: str
    type: str = "output_text"
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class OutputMessage(Struct, frozen=True):
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    content: tuple[TextPart, ...]
    role: str = "assistant"
    type: str = "message"


class ItemPart(Struct, frozen=True):
    text: str
    type: Literal["input_text", "output_text"]
    annotations: tuple[()] | UnsetType = UNSET


class Item(Struct, frozen=True):
    """One message of what a response answers."""

    id: str
    role: str
    content: tuple[ItemPart, ...]
    status: str = "completed"
    type: str = "message"


class ItemList(Struct, frozen=True):
    data: tuple[Item, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class Fault(Struct, frozen=True):
    code: str
    message: str


class Incomplete(Struct, frozen=True):
    reason: str


class TextFormat(Struct, frozen=True):
    type: str = "text"


class TextConfig(Struct, frozen=True):
    format: TextFormat = TextFormat()


class ResponseObject(Struct, frozen=True):
    """A response as it is now. ``timings`` (llama.cpp's) and ``dropped_turns`` come with its end."""

    id: str
    created_at: float
    model: str
    status: Status
    output: tuple[OutputMessage, ...]
    error: Fault | None
    incomplete_details: Incomplete | None
    instructions: str | None
    previous_response_id: str | None
    conversation: ConversationRef | None
    metadata: dict[str, str]
    max_output_tokens: int | None
    temperature: float
    top_p: float
    truncation: str
    background: bool
    store: bool
    usage: ResponseUsage | None
    completed_at: float | None
    object: str = "response"
    tools: tuple[()] = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    text: TextConfig = TextConfig()
    timings: chat.Timings | UnsetType = UNSET
    dropped_turns: int | UnsetType = UNSET


class Deleted(Struct, frozen=True):
    id: str
    object: str = "response"
    deleted: bool = True


class Event(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of what a stream says."""

    sequence_number: int

    def encode(self) -> bytes:
        name = str(self.__struct_config__.tag).encode()
        return b"event: %b\ndata: %b\n\n" % (name, msgspec.json.encode(self))


class Lifecycle(Event, frozen=True, kw_only=True):
    response: ResponseObject


class Created(Lifecycle, frozen=True, tag="response.created"): ...


class Queued(Lifecycle, frozen=True, tag="response.queued"): ...


class InProgress(Lifecycle, frozen=True, tag="response.in_progress"): ...


class Completed(Lifecycle, frozen=True, tag="response.completed"): ...


class IncompleteEvent(Lifecycle, frozen=True, tag="response.incomplete"): ...


class Failed(Lifecycle, frozen=True, tag="response.failed"): ...


class Cancelled(Lifecycle, frozen=True, tag="response.cancelled"): ...


class ItemAdded(Event, frozen=True, kw_only=True, tag="response.output_item.added"):
    item: OutputMessage
    output_index: int = 0


class ItemDone(Event, frozen=True, kw_only=True, tag="response.output_item.done"):
    item: OutputMessage
    output_index: int = 0


class InText(Event, frozen=True, kw_only=True):
    """About the one text of the one message."""

    item_id: str
    output_index: int = 0
    content_index: int = 0


class PartAdded(InText, frozen=True, kw_only=True, tag="response.content_part.added"):
    part: TextPart


class TextDelta(InText, frozen=True, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: tuple[()] = ()


class TextDone(InText, frozen=True, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: tuple[()] = ()


class PartDone(InText, frozen=True, kw_only=True, tag="response.content_part.done"):
    part: TextPart
