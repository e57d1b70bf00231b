"""The shapes of OpenAI's chat completions, as far as chatd speaks them.

Requests are lenient where that is harmless: unknown fields are let through, any model name will do.
What would change the answer and is not done here is refused by name, never ignored (`ACCEPTED`).
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from chatd.errors import InvalidParameter, Unsupported
from chatd.server import params as rules
from chatd.server.commands import ChatTurn
from chatd.server.http import decode_json

MAX_MESSAGES = 2048

RequestT = TypeVar("RequestT", bound=Struct)

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

ACCEPTED: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (),
    "prompt_logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "use_beam_search": (False,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "grammar": ("",),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
}
"""Fields that other servers act on, with the values (besides null) that ask for nothing."""


class ContentPart(Struct, frozen=True):
    type: str
    text: str | None = None


class Message(Struct, frozen=True):
    """One message of the history. ``content`` is text, or parts that are all text."""

    role: str
    content: str | list[ContentPart] | None = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None

    def turn(self, at: int) -> ChatTurn:
        """Raises Unsupported for what is no text."""
        where = f"messages[{at}]"
        role = ROLES.get(self.role)
        if role is None:
            raise Unsupported(f"Messages of this role are not supported: {where}.", param=f"{where}.role")
        for name in ("tool_calls", "function_call", "audio"):
            if getattr(self, name):
                raise Unsupported(f"The field {name} is not supported.", param=f"{where}.{name}")
        if isinstance(self.content, list):
            return ChatTurn(role, "".join(self._text(part, where) for part in self.content))
        if self.content is None and role != "assistant":
            raise InvalidParameter(f"{where} has no content.", param=f"{where}.content")
        return ChatTurn(role, self.content or "")

    @staticmethod
    def _text(part: ContentPart, where: str) -> str:
        if part.type != "text" or part.text is None:
            raise Unsupported("Only content parts of type text are supported.", param=f"{where}.content")
        return part.text


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None


class Sampling(Struct, frozen=True, kw_only=True):
    """What every request of OpenAI's may say on how an answer is drawn, and where it ends."""

    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    min_p: Any = None
    seed: Any = None
    stop: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    repetition_penalty: Any = None
    logit_bias: Any = None
    ignore_eos: Any = None
    truncation: Any = None


class ChatRequest(Sampling, frozen=True, kw_only=True):
    """A request body. Values of parameters are looked at by `chatd.server.params`."""

    messages: list[Message]
    model: Any = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: Any = None
    max_tokens: Any = None
    return_progress: bool | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def turns(self) -> tuple[ChatTurn, ...]:
        """The history as text. Raises for too many messages, and for a history that asks for no answer."""
        if len(self.messages) > MAX_MESSAGES:
            raise InvalidParameter(f"At most {MAX_MESSAGES} messages are allowed.", param="messages")
        turns = tuple(message.turn(at) for at, message in enumerate(self.messages))
        if turns and turns[-1].role == "assistant":
            raise Unsupported(
                "The last message is an assistant's. Going on with it is not supported: end with a user's.",
                param="messages",
            )
        return turns

    def params(self) -> dict[str, object]:
        """By the names of `chatd.server.params`; ``max_completion_tokens`` is another for ``max_tokens``."""
        given = {name: getattr(self, name) for name in rules.NAMES}
        if self.max_completion_tokens is not None:
            given["max_tokens"] = self.max_completion_tokens
        return given


def decode_request(raw: bytes) -> ChatRequest:
    """A body as a request. Raises BadFrame, InvalidParameter, or Unsupported for what is not done here."""
    return decode_accepted(raw, ChatRequest, ACCEPTED)


def decode_accepted(
    raw: bytes, shape: type[RequestT], accepted: Mapping[str, tuple[object, ...]]
) -> RequestT:
    """A body as a ``shape``. Raises Unsupported for a field with another value than those ``accepted``."""
    asked = decode_json(raw, shape)
    fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    for name, harmless in accepted.items():
        value = msgspec.json.decode(fields[name]) if name in fields else None
        if value is not None and value not in harmless:
            raise Unsupported(f"The field {name} is not supported.", param=name)
    return asked


class PromptDetails(Struct, frozen=True):
    cached_tokens: int


class Usage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Timings(Struct, frozen=True):
    """By llama.cpp's names: ``cache_n`` prompt tokens were reused, ``prompt_n`` computed. What could not be
    measured is null."""

    cache_n: int
    prompt_n: int
    prompt_ms: float | None
    prompt_per_token_ms: float | None
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float | None
    predicted_per_token_ms: float | None
    predicted_per_second: float | None


class PromptProgress(Struct, frozen=True):
    """By llama.cpp's names: of ``total`` prompt tokens ``processed`` have KV, ``cache`` had it before."""

    total: int
    cache: int
    processed: int
    time_ms: int


FinishReason = Literal["stop", "length"]


class AnswerMessage(Struct, frozen=True):
    content: str
    role: str = "assistant"
    refusal: None = None


class Choice(Struct, frozen=True):
    message: AnswerMessage
    finish_reason: FinishReason
    index: int = 0
    logprobs: None = None


class Completion(Struct, frozen=True):
    """``dropped_turns`` (only if there were any): the oldest turns that were left out of the prompt."""

    id: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Usage
    timings: Timings
    object: str = "chat.completion"
    system_fingerprint: None = None
    dropped_turns: int | UnsetType = UNSET


class ChunkDelta(Struct, frozen=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True):
    delta: ChunkDelta
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: None = None


class Chunk(Struct, frozen=True):
    """``usage`` is null in all chunks but the last, and absent where it was not asked for. ``timings`` come
    with the finish reason, ``prompt_progress`` in chunks of its own with ``return_progress``."""

    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    object: str = "chat.completion.chunk"
    system_fingerprint: None = None
    timings: Timings | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET
    dropped_turns: int | UnsetType = UNSET


class InputTokens(Struct, frozen=True):
    """What counting says: the whole prompt, as the model would see it."""

    input_tokens: int
    object: str = "response.input_tokens"


class Model(Struct, frozen=True):
    id: str
    created: int
    object: str = "model"
    owned_by: str = "chatd"


class ModelList(Struct, frozen=True):
    data: tuple[Model, ...]
    object: str = "list"


class ErrorDetail(Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(Struct, frozen=True):
    error: ErrorDetail
