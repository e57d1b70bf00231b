"""/v1: what OpenAI's clients expect. Chat completions and models here, the rest in modules of their own.

The history comes as text every time; what this server said before is recognised and continued from its
stored ids (`chatd.server.turns`), so it hits the cache just as a session does.
"""

import time
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from chatd.engine.stream import PrefillEvent
from chatd.errors import NotFound
from chatd.server import openai_completions, openai_responses
from chatd.server import openai_types as wire
from chatd.server.commands import CreateCommand
from chatd.server.http import json_response, read_body
from chatd.server.openai_answer import (
    DONE,
    Answer,
    EventStream,
    Heard,
    data,
    dropped_turns_of,
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


@openai_errors
async def chat_completions(request: Request) -> Response:
    """An answer to a history, whole or as server-sent events."""
    state: AppState = request.app.state.chatd
    service = state.ready_service()
    asked = wire.decode_request(await read_body(request))
    answer = await Answer.ask(service, visitor_of(request), _command(asked, key_of(request)))
    if asked.stream:
        return EventStream(answer, ChatVoice(answer, asked))
    found = await answer.whole(request.receive)
    if found is None:
        return nobody()
    text, record = found
    if (fault := fault_of(record)) is not None:
        return json_response(fault[1], fault[0])
    return json_response(_completion(answer, text, record))


@openai_errors
async def count_chat_tokens(request: Request) -> Response:
    """How many tokens the prompt of a chat completion with this body would have."""
    state: AppState = request.app.state.chatd
    service = state.ready_service()
    asked = wire.decode_request(await read_body(request))
    state.looks.take(visitor_of(request), state.clock())
    count = await service.count_tokens(visitor_of(request).namespace, _command(asked, None))
    return json_response(wire.InputTokens(count))


@openai_errors
async def list_models(request: Request) -> Response:
    """The one model that is served."""
    return json_response(wire.ModelList((_model(request),)))


@openai_errors
async def get_model(request: Request) -> Response:
    """The model by its name."""
    model = _model(request)
    if request.path_params["model"] != model.id:
        raise NotFound(f"The model served here is {model.id}.", param="model")
    return json_response(model)


ROUTES = Mount(
    "/v1",
    routes=[
        Route("/chat/completions", chat_completions, methods=["POST"]),
        Route("/chat/completions/input_tokens", count_chat_tokens, methods=["POST"]),
        *openai_completions.ROUTES,
        *openai_responses.ROUTES,
        Route("/models", list_models, methods=["GET"]),
        Route("/models/{model:path}", get_model, methods=["GET"]),
    ],
)


def _model(request: Request) -> wire.Model:
    state: AppState = request.app.state.chatd
    return wire.Model(state.ready_service().backend.model_name, created=int(time.time()))


def _command(asked: wire.ChatRequest, key: str | None) -> CreateCommand:
    return CreateCommand(
        kind="input",
        messages=asked.turns(),
        params=asked.params(),
        idempotency_key=key,
        hidden=True,
        grace_s=0.0 if key is None else None,
    )


def _completion(answer: Answer, text: str, record: ResponseRecord) -> wire.Completion:
    return wire.Completion(
        id=answer.id,
        created=answer.created,
        model=record.model,
        choices=(wire.Choice(wire.AnswerMessage(text), finish_reason_of(record)),),
        usage=usage_of(record),
        timings=timings_of(record),
        dropped_turns=dropped_turns_of(record),
    )


class ChatVoice:
    """``chat.completion.chunk`` events, and ``[DONE]``."""

    def __init__(self, answer: Answer, asked: wire.ChatRequest) -> None:
        self._answer = answer
        self._include_usage = asked.include_usage
        self._progress = bool(asked.return_progress)
        self._since = time.monotonic()

    def opening(self) -> Iterator[bytes]:
        yield data(self._chunk(wire.ChunkDelta(role="assistant", content="")))

    def hear(self, event: Heard) -> Iterator[bytes]:
        if not isinstance(event, PrefillEvent):
            yield data(self._chunk(wire.ChunkDelta(content=event.text)))
        elif self._progress:
            yield data(
                replace(self._chunk(wire.ChunkDelta()), prompt_progress=progress_of(event, self._since))
            )

    def ending(self, record: ResponseRecord) -> Iterator[bytes]:
        if (fault := fault_of(record)) is not None:
            yield data(fault[1])
        else:
            yield data(self._last(record))
            if self._include_usage:
                yield data(replace(self._chunk(wire.ChunkDelta()), choices=(), usage=usage_of(record)))
        yield DONE

    def _last(self, record: ResponseRecord) -> wire.Chunk:
        return replace(
            self._chunk(wire.ChunkDelta(), finish_reason_of(record)),
            timings=timings_of(record),
            dropped_turns=dropped_turns_of(record),
        )

    def _chunk(self, delta: wire.ChunkDelta, finish_reason: wire.FinishReason | None = None) -> wire.Chunk:
        return wire.Chunk(
            id=self._answer.id,
            created=self._answer.created,
            model=self._answer.model,
            choices=(wire.ChunkChoice(delta, finish_reason),),
            usage=None if self._include_usage else msgspec.UNSET,
        )
