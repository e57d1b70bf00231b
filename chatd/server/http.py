"""JSON over HTTP: bodies in, answers and errors out, with the same strictness as the WebSocket."""

from typing import TypeVar

import msgspec
from anyio import move_on_after
from starlette.requests import Request
from starlette.responses import Response

from chatd.errors import ChatdError, TooLarge
from chatd.server.strict_json import Limits, check_json, explained, malformed
from chatd.server.views import error_of

BodyT = TypeVar("BodyT")

BODY_LIMITS = Limits(max_bytes=1 << 20, max_depth=32, max_tokens=20_000)
MOST_DROPPED_BYTES, DROP_S = 256 << 20, 10.0
"""Of a body that is refused for its size."""


def json_response(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """``content`` may be anything msgspec encodes."""
    chosen = {"cache-control": "no-store", **(headers or {})}
    if status == TooLarge.http_status:
        chosen["connection"] = "close"  # or the server would read the rest of the body, just to drop it
    return Response(msgspec.json.encode(content), status, chosen, media_type="application/json")


def error_response(error: ChatdError) -> Response:
    """The native error shape: ``{"error": {code, message, retryable, param}}``."""
    return json_response(error_of(error), error.http_status, retry_headers(error))


def retry_headers(error: ChatdError) -> dict[str, str]:
    """``Retry-After``, for an error that passes."""
    return {"retry-after": str(error.retry_after_s)} if error.retry_after_s else {}


async def read_body(request: Request, max_bytes: int = BODY_LIMITS.max_bytes) -> bytes:
    """The whole body, or `TooLarge` as soon as that is known: never more than ``max_bytes`` are kept."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        await _drop(request, int(declared))
        raise TooLarge(f"a body of {int(declared):,} bytes is more than the {max_bytes:,} allowed")
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise TooLarge(f"a body of more than {max_bytes:,} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


async def _drop(request: Request, size: int) -> None:
    """Read a body for nothing: a connection that is closed with bytes unread is reset, and the client, which
    still sends, never sees why. One that asks first (Expect) has not sent any.
    """
    if size <= MOST_DROPPED_BYTES and "expect" not in request.headers:
        with move_on_after(DROP_S):
            async for _ in request.stream():
                pass


async def read_json(request: Request, shape: type[BodyT], limits: Limits = BODY_LIMITS) -> BodyT:
    """The body as a ``shape``; `BadFrame` if it is malformed, `InvalidParameter` for a wrong field."""
    return decode_json(await read_body(request, limits.max_bytes), shape, limits)


def decode_json(raw: bytes, shape: type[BodyT], limits: Limits = BODY_LIMITS) -> BodyT:
    """As `read_json`, of bytes that are here."""
    check_json(raw, limits)
    try:
        return msgspec.json.decode(raw, type=shape)
    except msgspec.ValidationError as error:
        raise explained(error) from error
    except msgspec.DecodeError as error:
        raise malformed(raw, error) from error
