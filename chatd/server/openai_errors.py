"""Errors in OpenAI's shape: ``{"error": {message, type, param, code}}``."""

import functools
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from chatd.errors import ChatdError
from chatd.server import openai_types as wire
from chatd.server.http import json_response, retry_headers
from chatd.server.protocol_tables import error_classes
from chatd.store.records import ResponseRecord, ResponseStatus

_STATUS_OF = {error.code: error.http_status for error in error_classes()}

Endpoint = Callable[[Request], Awaitable[Response]]


def openai_errors(endpoint: Endpoint) -> Endpoint:
    """``endpoint`` with its errors in that shape."""

    @functools.wraps(endpoint)
    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ChatdError as error:
            return error_response(error)

    return guarded


def error_response(error: ChatdError) -> Response:
    detail = wire.ErrorDetail(error.message, _kind(error.http_status), error.param, error.code)
    return json_response(wire.ErrorBody(detail), error.http_status, retry_headers(error))


def fault_of(record: ResponseRecord) -> tuple[int, wire.ErrorBody] | None:
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


def _kind(http_status: int) -> str:
    """As OpenAI's clients tell errors apart."""
    if http_status == 429:
        return "rate_limit_error"
    return "server_error" if http_status >= 500 else "invalid_request_error"
