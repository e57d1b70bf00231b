"""/v1/completions: text goes on, without a chat template.

The prompt is one text, or one list of token ids, which is taken as it is. In text there are no control
tokens: it stands for itself. ``echo`` puts the prompt before the answer.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatd.engine.stream import PrefillEvent
from chatd.errors import InvalidParameter, Unsupported
from chatd.server import openai_types as wire
from chatd.server import params as rules
from chatd.server.commands import CreateCommand
from chatd.server.http import json_response, read_body
from chatd.server.openai_answer import (
    DONE,
    Answer,
    EventStream,
    Heard,
    data,
    finish_reason_of,
    key_of,
    nobody,
    progress_of,
    timings_of,
    usage_of,
)
from chatd.server.openai_errors import fault_of, openai_errors
from chatd.server.state import AppState
from chatd.server.visitors import visitor_of
from chatd.store.records import ResponseRecord

MAX_TOKENS = 16
"""Of a request that names none, as OpenAI has it."""

ACCEPTED: Mapping[str, tuple[object, ...]] = {
    name: values for name, values in wire.ACCEPTED.items() if name != "echo"
} | {"logprobs": (False, 0)}


class CompletionRequest(wire.Sampling, frozen=True, kw_only=True):
    """A request body. Values of parameters are looked at by `chatd.server.params`."""

    prompt: str | list[Any]
    model: Any = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: wire.StreamOptions | None = None
    max_tokens: Any = None
    return_progress: bool | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def raw(self) -> str | tuple[int, ...]:
        """The one prompt, as text or as ids."""
        prompt: object = self.prompt
        if isinstance(prompt, list) and len(prompt) == 1 and not _is_id(prompt[0]):
            prompt = prompt[0]
        if isinstance(prompt, str):
            rules.check_text(prompt, "prompt")
            return prompt
        if isinstance(prompt, list) and all(map(_is_id, prompt)):
            return tuple(prompt)
        if isinstance(prompt, list) and len(prompt) > 1:
            raise Unsupported("Only one prompt a request is supported.", param="prompt")
        raise InvalidParameter("prompt must be a text, or a list of token ids.", param="prompt")

    def params(self) -> dict[str, object]:
        given = {name: getattr(self, name) for name in rules.NAMES}
        if given["truncation"] == "auto":
            raise Unsupported("There are no turns to leave out of a text.", param="truncation")
        return given | ({"max_tokens": MAX_TOKENS} if self.max_tokens is None else {})


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class TextChoice(Struct, frozen=True):
    """``finish_reason`` is null but in the last event of a stream."""

    text: str
    finish_reason: wire.FinishReason | None
    index: int = 0
    logprobs: None = None


class TextCompletion(Struct, frozen=True):
    """A whole completion, or one event of a stream."""

    id: str
    created: int
    model: str
    choices: tuple[TextChoice, ...]
    usage: wire.Usage | UnsetType | None = UNSET
    timings: wire.Timings | UnsetType = UNSET
    prompt_progress: wire.PromptProgress | UnsetType = UNSET
    object: str = "text_completion"
    system_fingerprint: None = None


@openai_errors
async def completions(request: Request) -> Response:
    """More of a text, whole or as server-sent events."""
    state: AppState = request.app.state.chatd
    service = state.ready_service()
    asked = wire.decode_accepted(await read_body(request), CompletionRequest, ACCEPTED)
    raw = asked.raw()
    text = raw if isinstance(raw, str) else service.text_of(raw)
    answer = await Answer.ask(
        service, visitor_of(request), _command(raw, text, asked.params(), key_of(request))
    )
    echo = text if asked.echo else ""
    if asked.stream:
        return EventStream(answer, TextVoice(answer, asked, echo))
    found = await answer.whole(request.receive)
    if found is None:
        return nobody()
    said, record = found
    if (fault := fault_of(record)) is not None:
        return json_response(fault[1], fault[0])
    made = _event(answer, echo + said, finish_reason_of(record))
    return json_response(replace(made, usage=usage_of(record), timings=timings_of(record)))


def _command(
    raw: str | tuple[int, ...], text: str, params: Mapping[str, object], key: str | None
) -> CreateCommand:
    return CreateCommand(
        kind="input",
        input=text,
        raw=raw,
        params=params,
        idempotency_key=key,
        hidden=True,
        grace_s=0.0 if key is None else None,
    )


def _event(answer: Answer, text: str, finish_reason: wire.FinishReason | None = None) -> TextCompletion:
    return TextCompletion(answer.id, answer.created, answer.model, (TextChoice(text, finish_reason),))


class TextVoice:
    """``text_completion`` events, and ``[DONE]``."""

    def __init__(self, answer: Answer, asked: CompletionRequest, echo: str) -> None:
        self._answer = answer
        self._echo = echo
        self._include_usage = asked.include_usage
        self._progress = bool(asked.return_progress)
        self._since = time.monotonic()

    def opening(self) -> Iterator[bytes]:
        if self._echo:
            yield self._data(_event(self._answer, self._echo))

    def hear(self, event: Heard) -> Iterator[bytes]:
        if not isinstance(event, PrefillEvent):
            yield self._data(_event(self._answer, event.text))
        elif self._progress:
            progress = progress_of(event, self._since)
            yield self._data(replace(_event(self._answer, ""), prompt_progress=progress))

    def ending(self, record: ResponseRecord) -> Iterator[bytes]:
        if (fault := fault_of(record)) is not None:
            yield data(fault[1])
        else:
            last = _event(self._answer, "", finish_reason_of(record))
            yield self._data(replace(last, timings=timings_of(record)))
            if self._include_usage:
                yield data(replace(_event(self._answer, ""), choices=(), usage=usage_of(record)))
        yield DONE

    def _data(self, event: TextCompletion) -> bytes:
        return data(replace(event, usage=None) if self._include_usage else event)


ROUTES = [Route("/completions", completions, methods=["POST"])]
"""Under ``/v1``."""
