"""One response as the request that asked for it sees it: text, then an ending; whole or as events.

A response belongs to its request: when the client goes away, it ends. With an ``Idempotency-Key`` header it
goes on for the server's grace instead, so that the same request again gets the same reply, billed once.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from typing import Protocol

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from chatd.engine.stream import Delta, Ended, PrefillEvent, TokenStream
from chatd.errors import InvalidParameter
from chatd.ids import Namespace, ResponseId
from chatd.server import openai_types as wire
from chatd.server.commands import CreateCommand
from chatd.server.request_log import CLIENT_LEFT
from chatd.server.state import Service
from chatd.server.views import history_of
from chatd.server.visitors import Visitor
from chatd.store.records import ResponseRecord, ResponseStatus

KEEP_ALIVE_S = 15.0
"""While nothing is to be said, a comment goes out this often, so that no proxy gives up."""
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
MAX_KEY_CHARS = 200

Heard = Delta | PrefillEvent


def key_of(request: Request) -> str | None:
    """The idempotency key of a request, if it has one."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= MAX_KEY_CHARS:
        raise InvalidParameter(
            f"Idempotency-Key must have 1 to {MAX_KEY_CHARS} characters.", param="Idempotency-Key"
        )
    return key


class Answer:
    """One response of ``service``. ``after_seq`` pieces of it are not asked for."""

    def __init__(
        self, service: Service, namespace: Namespace, response_id: ResponseId, after_seq: int = 0
    ) -> None:
        self.id = response_id
        self.model = service.backend.model_name
        self.created = int(time.time())
        self._service = service
        self._namespace = namespace
        self._after_seq = after_seq

    @classmethod
    async def ask(cls, service: Service, visitor: Visitor, command: CreateCommand) -> "Answer":
        """Raises what `ChatService.create` raises."""
        started = await service.create(visitor.namespace, command, visitor)
        return cls(service, visitor.namespace, started.response_id)

    @contextlib.asynccontextmanager
    async def stream(self) -> AsyncIterator[TokenStream[ResponseRecord]]:
        """All of it from the first piece on. Leaving the block, by whatever way, lets go of it."""
        stream = await self._service.subscribe(self._namespace, self.id, self._after_seq)
        try:
            yield stream
        finally:
            stream.close()

    async def whole(self, receive: Receive) -> tuple[str, ResponseRecord] | None:
        """All text and the record; None if the client went away before."""
        parts: list[str] = []
        record: ResponseRecord | None = None
        async with self.stream() as stream, while_connected(receive):
            while not isinstance(event := await stream.get(), Ended):
                if isinstance(event, Delta):
                    parts.append(event.text)
            record = event.record
        return None if record is None else ("".join(parts), record)


def nobody() -> Response:
    """For a client that did not wait."""
    return Response(status_code=CLIENT_LEFT)


@contextlib.asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
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


class Voice(Protocol):
    """How one API says things as server-sent events. Each is whole, with its blank line."""

    def opening(self) -> Iterable[bytes]: ...
    def hear(self, event: Heard) -> Iterable[bytes]: ...
    def ending(self, record: ResponseRecord) -> Iterable[bytes]: ...


class EventStream(Response):
    """Server-sent events, in an ASGI message of their own as soon as they are there."""

    def __init__(self, answer: Answer, voice: Voice) -> None:
        super().__init__(
            headers={"cache-control": "no-store", "x-accel-buffering": "no"}, media_type="text/event-stream"
        )
        del self.headers["content-length"]
        self._answer = answer
        self._voice = voice

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._answer.stream() as stream, while_connected(receive):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await _say(send, self._voice.opening())
            await self._tell(stream, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell(self, stream: TokenStream[ResponseRecord], send: Send) -> None:
        clock = asyncio.get_running_loop().time
        due = clock() + KEEP_ALIVE_S
        while True:
            match await _next_event(stream, due):
                case None:
                    said = await _say(send, [KEEP_ALIVE])
                case Ended(record=record):
                    await _say(send, self._voice.ending(record))
                    return
                case event:
                    said = await _say(send, self._voice.hear(event))
            if said:
                due = clock() + KEEP_ALIVE_S


async def _next_event(
    stream: TokenStream[ResponseRecord], due: float
) -> Heard | Ended[ResponseRecord] | None:
    """What a voice has a word for; None if it did not come until ``due``. Cancelled, nothing is lost."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(due):
            while True:
                event = await stream.get()
                if isinstance(event, Delta | PrefillEvent | Ended):
                    return event
    return None


async def _say(send: Send, events: Iterable[bytes]) -> bool:
    """Whether there was anything to say."""
    body = b"".join(events)
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})
    return bool(body)


def data(event: msgspec.Struct) -> bytes:
    """One event without a name."""
    return b"data: %b\n\n" % msgspec.json.encode(event)


def finish_reason_of(record: ResponseRecord) -> wire.FinishReason:
    """Of a response that came to a good end."""
    return "length" if record.status is ResponseStatus.INCOMPLETE else "stop"


def usage_of(record: ResponseRecord) -> wire.Usage:
    return wire.Usage(
        prompt_tokens=record.prompt_tokens,
        completion_tokens=record.output_tokens,
        total_tokens=record.prompt_tokens + record.output_tokens,
        prompt_tokens_details=wire.PromptDetails(record.gpu_hit + record.disk_hit),
    )


def timings_of(record: ResponseRecord) -> wire.Timings:
    """llama.cpp's figures: of the prompt what was computed, and how long it and the answer took."""
    queue_ms, ttft_ms, total_ms = record.timings.queue_ms, record.timings.ttft_ms, record.timings.total_ms
    prompt_ms = None if ttft_ms is None else max(0.0, ttft_ms - (queue_ms or 0.0))
    predicted_ms = None if ttft_ms is None or total_ms is None else total_ms - ttft_ms
    computed, output = record.computed, record.output_tokens
    return wire.Timings(
        cache_n=record.gpu_hit + record.disk_hit,
        prompt_n=computed,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=_over(prompt_ms, computed),
        prompt_per_second=_over(1000 * computed, prompt_ms),
        predicted_n=output,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=_over(predicted_ms, output),
        predicted_per_second=_over(1000 * output, predicted_ms),
    )


def _over(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def progress_of(event: PrefillEvent, since: float) -> wire.PromptProgress:
    """llama.cpp's word for a prefill; ``since`` is when it was asked for, monotonic seconds."""
    return wire.PromptProgress(
        total=event.total,
        cache=event.gpu_hit + event.disk_hit,
        processed=event.done,
        time_ms=round(1000 * (time.monotonic() - since)),
    )


def dropped_turns_of(record: ResponseRecord) -> int | msgspec.UnsetType:
    """What ``truncation: "auto"`` left out, if anything."""
    return history_of(record).dropped_turns or msgspec.UNSET
