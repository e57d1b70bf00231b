"""The errors a user can meet. Each has a wire code and a message that says what to do.

Raise the narrowest class where the cause is known. ``code`` is stable and part of the wire
protocol; ``message`` is for people and may change. ``retryable`` says whether the same request
may succeed later without being changed.
"""

from typing import ClassVar


class ChatdError(Exception):
    """Base of every error that is shown to a user; by itself, a fault of the server.

    ``http_status`` is the status of an HTTP answer; ``param`` names the offending field, if one is.
    ``retry_after_s``, if not 0, is how many seconds to wait before trying again.
    """

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    retry_after_s: int = 0

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(ChatdError):
    """The request can never be right as it stands."""

    code = "invalid_request"
    http_status = 400


class BadFrame(InvalidRequest):
    """A WebSocket frame or a body that is not well-formed."""

    code = "bad_frame"


class InvalidParameter(InvalidRequest):
    """A known field with a value out of its range or of the wrong type."""

    code = "invalid_parameter"


class Unsupported(InvalidRequest):
    """A field that other servers have and that this one does not do yet."""

    code = "unsupported"


class TooLarge(InvalidRequest):
    """A body of more bytes than this server takes."""

    code = "too_large"
    http_status = 413


class MethodNotAllowed(InvalidRequest):
    """This address exists, but not for that HTTP method."""

    code = "method_not_allowed"
    http_status = 405


class WrongHost(InvalidRequest):
    """The Host header names a server that this is not."""

    code = "wrong_host"
    http_status = 421


class WrongOrigin(InvalidRequest):
    """A web page of another origin asked for something only chatd's own page may do."""

    code = "wrong_origin"
    http_status = 403


class Unauthorized(ChatdError):
    """No key was given, or one that is unknown or revoked."""

    code = "unauthorized"
    http_status = 401


class NotAllowed(ChatdError):
    """Not among the scopes of the key. Without keys: only who can read the data folder may do that."""

    code = "not_allowed"
    http_status = 403


class ContextTooLong(InvalidRequest):
    """The prompt leaves no room for one token in the model's context."""

    code = "context_length_exceeded"


class PromptTooLarge(InvalidRequest):
    """The request can never fit in the KV pool, however empty it is."""

    code = "exceeds_kv_pool"


class NotFound(ChatdError):
    """Unknown id, or somebody else's: the two look alike."""

    code = "not_found"
    http_status = 404


class Conflict(ChatdError):
    """The target is not in a state that allows this."""

    code = "conflict"
    http_status = 409


class RateLimited(ChatdError):
    """The key has used what it may in a minute, or has too many answers under way. Wait as told."""

    code = "rate_limited"
    http_status = 429
    retryable = True

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BudgetSpent(ChatdError):
    """What is left of the key's budget for this day or month does not cover the answer."""

    code = "budget_spent"
    http_status = 429

    def __init__(self, message: str, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Overloaded(ChatdError):
    """Too much is waiting already."""

    code = "overloaded"
    http_status = 503
    retryable = True
    retry_after_s = 1


class Draining(ChatdError):
    """The server is shutting down."""

    code = "draining"
    http_status = 503
    retryable = True
    retry_after_s = 5


class NotReady(ChatdError):
    """The model is still loading, or the engine is stalled."""

    code = "not_ready"
    http_status = 503
    retryable = True
    retry_after_s = 2


class EngineFailure(ChatdError):
    """The engine could not go on with this request."""

    code = "engine_failure"
    retryable = True


class BadLogits(EngineFailure):
    """The model produced NaN or infinite logits for this request alone."""

    code = "bad_logits"
    retryable = False


class SetupError(ChatdError):
    """The server cannot start as configured (printed by the command line, exit code 2)."""

    code = "setup_error"


class ModelFileError(SetupError):
    """A model file is malformed, unsafe or of an unsupported kind."""

    code = "model_file_error"


class TemplateError(SetupError):
    """A chat template is unsafe, too slow or cannot be rendered."""

    code = "template_error"
