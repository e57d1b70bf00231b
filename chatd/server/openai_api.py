"""/v1: chat completions and models as OpenAI's clients expect them.

A response belongs to its request: when the client goes away, it ends. With an ``Idempotency-Key`` header it
goes on for the server's grace instead, so that the same request again gets the same reply, billed once.
The history comes as text every time; what this server said before is recognised and continued from its
stored ids (`chatd.server.turns`), so it hits the cache just as a session does.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from chatd.engine.stream import Delta, Ended, TokenStream
from chatd.errors import ChatdError, InvalidParameter, NotFound
from chatd.ids import Namespace
from chatd.server import openai_types as wire
from chatd.server.commands import CreateCommand, Started
from chatd.server.http import json_response, read_body
from chatd.server.protocol_tables import error_classes
from chatd.server.state import AppState, Service
from chatd.server.views import history_of
from chatd.store.records import ResponseRecord, ResponseStatus

KEEP_ALIVE_S = 15.0
"""While nothing is to be said, a comment goes out this often, so that no proxy gives up."""
CLIENT_LEFT = 499
"""What is logged for a request whose client did not wait."""
MAX_KEY_CHARS = 200
_STATUS_OF = {error.code: error.http_status for error in error_classes()}

Endpoint = Callable[[Request], Awaitable[Response]]


def _openai_errors(endpoint: Endpoint) -> Endpoint:
    """Errors in OpenAI's shape."""

    @functools.wraps(endpoint)
    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ChatdError as error:
            return error_response(error)

    return guarded


def error_response(error: ChatdError) -> Response:
    """``error`` in OpenAI's shape."""
    return json_response(_error_body(error), error.http_status)


@_openai_errors
async def chat_completions(request: Request) -> Response:
    state: AppState = request.app.state.chatd
    service = state.ready_service()
    asked = wire.decode_request(await read_body(request))
    command = _command(asked, request.headers.get("idempotency-key"))
    started = await service.create(state.namespace, command)
    answer = _Answer(service, state.namespace, started)
    if asked.stream:
        return _EventStream(answer, include_usage=asked.include_usage)
    return await answer.whole(request.receive)


@_openai_errors
async def list_models(request: Request) -> Response:
    return json_response(wire.ModelList((_model(request),)))


@_openai_errors
async def get_model(request: Request) -> Response:
    model = _model(request)
    if request.path_params["model"] != model.id:
        raise NotFound(f"The model served here is {model.id}.", param="model")
    return json_response(model)


ROUTES = Mount(
    "/v1",
    routes=[
        Route("/chat/completions", chat_completions, methods=["POST"]),
        Route("/models", list_models),
        Route("/models/{model:path}", get_model),
    ],
)


def _model(request: Request) -> wire.Model:
    state: AppState = request.app.state.chatd
    return wire.Model(state.ready_service().backend.model_name, created=int(time.time()))


def _command(asked: wire.ChatRequest, key: str | None) -> CreateCommand:
    if key is not None and not 1 <= len(key) <= MAX_KEY_CHARS:
        raise InvalidParameter(
            f"Idempotency-Key must have 1 to {MAX_KEY_CHARS} characters.", param="Idempotency-Key"
        )
    return CreateCommand(
        kind="input",
        messages=asked.turns(),
        params=asked.params(),
        idempotency_key=key,
        hidden=True,
        grace_s=0.0 if key is None else None,
    )


class _Answer:
    """One response as its request sees it: text, then an ending that is good or raises."""

    def __init__(self, service: Service, namespace: Namespace, started: Started) -> None:
        self.id = started.response_id
        self.model = service.backend.model_name
        self.created = int(time.time())
        self._service = service
        self._namespace = namespace

    @contextlib.asynccontextmanager
    async def stream(self) -> AsyncIterator[TokenStream[ResponseRecord]]:
        """All of it from the first piece on. Leaving the block, by whatever way, lets go of it."""
        stream = await self._service.subscribe(self._namespace, self.id, 0)
        try:
            yield stream
        finally:
            stream.close()

    async def whole(self, receive: Receive) -> Response:
        """The whole answer, or the error it ended with."""
        parts: list[str] = []
        response = Response(status_code=CLIENT_LEFT)
        async with self.stream() as stream, _while_connected(receive):
            while not isinstance(event := await stream.get(), Ended):
                if isinstance(event, Delta):
                    parts.append(event.text)
            if (fault := _fault(event.record)) is not None:
                response = json_response(fault[1], fault[0])
            else:
                response = json_response(self._completion("".join(parts), event.record))
        return response

    def _completion(self, text: str, record: ResponseRecord) -> wire.Completion:
        choice = wire.Choice(wire.AnswerMessage(text), _finish_reason(record))
        return wire.Completion(
            id=self.id,
            created=self.created,
            model=record.model,
            choices=(choice,),
            usage=_usage(record),
            dropped_turns=_dropped_turns(record),
        )


@contextlib.asynccontextmanager
async def _while_connected(receive: Receive) -> AsyncIterator[None]:
    """The block is cancelled when the client goes away; then what follows the block runs.

    ``receive`` must have given the whole body before. What the block raises comes out as it is.
    """

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        tasks.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            yield
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        raise group.exceptions[0] from None


class _EventStream(Response):
    """Server-sent events, each in an ASGI message of its own as soon as it is there."""

    def __init__(self, answer: _Answer, *, include_usage: bool) -> None:
        super().__init__(
            headers={"cache-control": "no-store", "x-accel-buffering": "no"}, media_type="text/event-stream"
        )
        del self.headers["content-length"]
        self._answer = answer
        self._include_usage = include_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._answer.stream() as stream, _while_connected(receive):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await _send_event(send, self._chunk(wire.ChunkDelta(role="assistant", content="")))
            await self._send_answer(stream, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_answer(self, stream: TokenStream[ResponseRecord], send: Send) -> None:
        while True:
            match await _next_event(stream):
                case Delta(text=text):
                    await _send_event(send, self._chunk(wire.ChunkDelta(content=text)))
                case Ended(record=record):
                    await self._send_ending(record, send)
                    return
                case None:
                    await _send_body(send, b": keep-alive\n\n")

    async def _send_ending(self, record: ResponseRecord, send: Send) -> None:
        if (fault := _fault(record)) is not None:
            await _send_event(send, fault[1])
        else:
            await _send_event(send, self._chunk(wire.ChunkDelta(), record))
            if self._include_usage:
                summary = self._chunk(wire.ChunkDelta())
                await _send_event(send, replace(summary, choices=(), usage=_usage(record)))
        await _send_body(send, b"data: [DONE]\n\n")

    def _chunk(self, delta: wire.ChunkDelta, ended: ResponseRecord | None = None) -> wire.Chunk:
        finish_reason = _finish_reason(ended) if ended is not None else None
        return wire.Chunk(
            id=self._answer.id,
            created=self._answer.created,
            model=self._answer.model,
            choices=(wire.ChunkChoice(delta, finish_reason),),
            usage=None if self._include_usage else msgspec.UNSET,
            dropped_turns=_dropped_turns(ended) if ended is not None else msgspec.UNSET,
        )


async def _next_event(stream: TokenStream[ResponseRecord]) -> Delta | Ended[ResponseRecord] | None:
    """Text or the ending; None if neither came for `KEEP_ALIVE_S`. Cancelled, nothing is lost."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KEEP_ALIVE_S):
            while True:
                event = await stream.get()
                if isinstance(event, Delta | Ended):
                    return event
    return None


async def _send_event(send: Send, event: msgspec.Struct) -> None:
    await _send_body(send, b"data: %b\n\n" % msgspec.json.encode(event))


async def _send_body(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _finish_reason(record: ResponseRecord) -> wire.FinishReason:
    """Of a response without a `_fault`."""
    return "length" if record.status is ResponseStatus.INCOMPLETE else "stop"


def _fault(record: ResponseRecord) -> tuple[int, wire.ErrorBody] | None:
    """HTTP status and body for a response that did not come to a good end."""
    match record.status:
        case ResponseStatus.CANCELLED:
            detail = wire.ErrorDetail("The answer was cancelled.", _kind(409), None, "cancelled")
            return 409, wire.ErrorBody(detail)
        case ResponseStatus.FAILED:
            status = _STATUS_OF.get(record.error_code, 500)
            return status, wire.ErrorBody(
                wire.ErrorDetail(record.error, _kind(status), None, record.error_code)
            )
        case _:
            return None


def _usage(record: ResponseRecord) -> wire.Usage:
    return wire.Usage(
        prompt_tokens=record.prompt_tokens,
        completion_tokens=record.output_tokens,
        total_tokens=record.prompt_tokens + record.output_tokens,
        prompt_tokens_details=wire.PromptDetails(record.gpu_hit + record.disk_hit),
    )


def _dropped_turns(record: ResponseRecord) -> int | msgspec.UnsetType:
    """What ``truncation: "auto"`` left out, if anything."""
    return history_of(record).dropped_turns or msgspec.UNSET


def _error_body(error: ChatdError) -> wire.ErrorBody:
    return wire.ErrorBody(wire.ErrorDetail(error.message, _kind(error.http_status), error.param, error.code))


def _kind(http_status: int) -> str:
    return "server_error" if http_status >= 500 else "invalid_request_error"
