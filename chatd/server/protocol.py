"""chatd.v1: bytes to frozen client events, and server events to bytes. Pure.

One JSON object per text frame, with its name in ``type``. Client frames are strict: an unknown type,
an unknown or missing field, a wrong type or a value out of range is answered with one `Error`.
Readers of server frames must ignore fields and types they do not know, so that the server can grow.

`python -m chatd.server.protocol` prints the tables of events, error codes and close codes that README
shows; a test holds the three together.
"""

from enum import IntEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from chatd.errors import BadFrame, ChatdError, InvalidParameter
from chatd.server.strict_json import Limits, check_json, explained, malformed

SUBPROTOCOL = "chatd.v1"
FRAME_LIMITS = Limits(max_bytes=1 << 20, max_depth=32, max_tokens=20_000)

Id = Annotated[str, Meta(min_length=1, max_length=128)]
Key = Annotated[str, Meta(min_length=1, max_length=200)]
Seq = Annotated[int, Meta(ge=0, lt=1 << 53)]
FinishReason = Literal["end", "stop", "length", "cancelled", "failed"]
Kind = Literal["input", "edit", "regenerate", "continue"]
Cause = Literal[
    "last_token",
    "cache_off",
    "damaged",
    "read_failed",
    "recompute_cheaper",
    "no_pages",
    "model_changed",
    "tier_off",
    "below_block",
    "restarted",
    "evicted",
    "truncated",
    "template_rewrote",
    "edited",
    "new_text",
]
Tier = Literal["off", "nothing", "loaded", "cheaper", "damaged", "failed", "no_pages"]


class ClientFrame(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type"):
    """Base of what a client may send."""


class SessionHello(ClientFrame, frozen=True, tag="session.hello"):
    """Ask for `session.created`. Optional; may be repeated, say after `not_ready`."""


class Asking(ClientFrame, frozen=True):
    """What an answer is asked with. Without ``conversation_id`` it goes into a new conversation; without
    ``parent_id`` the input goes under the conversation's tip."""

    idempotency_key: Key
    input: str | None = None
    conversation_id: Id | None = None
    parent_id: Id | None = None
    edit: Id | None = None
    regenerate: Id | None = None
    continues: Id | None = field(name="continue", default=None)
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """What is asked for. Valid once `check` has passed."""
        if self.edit is not None:
            return "edit"
        if self.regenerate is not None:
            return "regenerate"
        return "input" if self.continues is None else "continue"

    @property
    def target_id(self) -> str | None:
        """The message that is edited, regenerated or continued."""
        return self.edit or self.regenerate or self.continues

    def check(self) -> None:
        """Raise `InvalidParameter` unless the fields fit together and there is something to answer."""
        targets = [name for name in ("edit", "regenerate", "continues") if getattr(self, name) is not None]
        if len(targets) > 1:
            raise InvalidParameter("give only one of edit, regenerate and continue")
        needs_input = self.kind in ("input", "edit")
        if needs_input and self.input is None:
            raise InvalidParameter("input is missing", param="input")
        if needs_input and not (self.input or "").strip():
            raise InvalidParameter("input is empty", param="input")
        if not needs_input and self.input is not None:
            raise InvalidParameter(f"input does not go with {self.kind}", param="input")
        if targets and self.parent_id is not None:
            raise InvalidParameter(f"parent_id does not go with {self.kind}", param="parent_id")
        if self.parent_id is not None and self.conversation_id is None:
            raise InvalidParameter("parent_id needs conversation_id", param="parent_id")


class ResponseCreate(Asking, frozen=True, tag="response.create"):
    """Ask for an answer: to a new ``input``, to an ``edit`` of a user message, to the same message once
    more (``regenerate`` an assistant message), or ``continue`` an assistant message.

    The same ``idempotency_key`` again names the same response.
    """


class CacheEstimate(Asking, frozen=True, tag="cache.estimate"):
    """Ask what `response.create` with the same fields would reuse, take and cost. Nothing is generated or
    stored; the key only tells the answer, `cache.estimated`, from others."""


class ConversationWarm(ClientFrame, frozen=True, tag="conversation.warm"):
    """This conversation will go on soon: bring its KV back from disk, if that costs nobody anything. A hint;
    not answered unless the conversation is unknown, and dropped if there are too many."""

    conversation_id: Id


class ResponseCancel(ClientFrame, frozen=True, tag="response.cancel"):
    """Stop an answer. Its stream ends as usual, with one of the four endings."""

    response_id: Id


class ResponseSubscribe(ClientFrame, frozen=True, tag="response.subscribe"):
    """Hear a response from the piece after ``after_seq`` on, whether it still runs or not."""

    response_id: Id
    after_seq: Seq


class ResponseAck(ClientFrame, frozen=True, tag="response.ack"):
    """The text up to piece ``seq`` has arrived. Not answered; the ledger keeps it beside what was sent, and
    nothing depends on it. About once a second is enough, and once after the ending."""

    response_id: Id
    seq: Seq


class Ping(ClientFrame, frozen=True, tag="ping"):
    """Answered with `pong`, whatever else goes on."""


ClientEvent = (
    SessionHello
    | ResponseCreate
    | ResponseCancel
    | ResponseSubscribe
    | ResponseAck
    | CacheEstimate
    | ConversationWarm
    | Ping
)


class Usage(Struct, frozen=True):
    """Tokens. ``gpu_hit + disk_hit + computed == prompt_tokens``; all 0 if it never ran."""

    prompt_tokens: int
    gpu_hit: int
    disk_hit: int
    computed: int
    output_tokens: int
    total_tokens: int


class Timings(Struct, frozen=True):
    """Milliseconds (and tokens per second); null where there was nothing to measure."""

    queue_ms: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    tokens_per_s: float | None
    total_ms: float | None


class Cost(Struct, frozen=True):
    """Integer nano-units of ``currency``, at the prices of ``price_version``."""

    currency: str
    total_nano: int
    without_cache_nano: int
    saved_nano: int
    prompt_nano: int
    output_nano: int
    price_version: str


class Source(Struct, frozen=True):
    """The prompt's tokens ``start .. end - 1`` came from there."""

    source: Literal["gpu", "disk", "computed"]
    start: int
    end: int


class DiskLook(Struct, frozen=True):
    """What the disk tier did for a prompt. ``found`` tokens it had beyond those in memory: loading them was
    estimated to take ``load_ms``, computing them ``compute_ms`` (0 where nothing was found), and ``choice``
    says what was done. Loading really took ``restore_ms``."""

    outcome: Tier
    found: int
    load_ms: float
    compute_ms: float
    restore_ms: float
    choice: Literal["load", "compute"] | None


class Predicted(Struct, frozen=True):
    """What was expected just before the request was handed in, and how it came: ``exact`` if the tokens came
    from where they were expected to, ``ttft_error`` relative to the real TTFT (null without one)."""

    gpu_hit: int
    disk_hit: int
    computed: int
    ttft_ms: float
    exact: bool
    ttft_error: float | None


class Xray(Struct, frozen=True):
    """Where each prompt token came from, and the ``cause`` why the ``first_computed`` one was a miss.

    ``message`` is the index on the path of the message that was edited or rewritten. ``history_len`` tokens
    at the start had KV before: with a cache that loses nothing all of them would have been reused.
    """

    cause: Cause
    message: int | None
    first_computed: int
    history_len: int
    sources: tuple[Source, ...]
    disk: DiskLook
    predicted: Predicted | None


class Failure(Struct, frozen=True):
    """Why a response failed."""

    code: str
    message: str
    retryable: bool


class ServerFrame(Struct, frozen=True, tag_field="type"):
    """Base of what the server sends."""


class SessionCreated(ServerFrame, frozen=True, tag="session.created"):
    """Answer to `session.hello`. Model and context are null while the model loads. The server sends
    something at least every ``heartbeat_s`` seconds; longer silence means that the connection is dead.
    Answers for which no ``temperature`` is asked have that one."""

    session_id: str
    model: str | None
    context_length: int | None
    version: str
    heartbeat_s: float
    currency: str
    temperature: float | None = None


class ResponseCreated(ServerFrame, frozen=True, tag="response.created"):
    """The request was accepted and stored; exactly one ending will follow. ``dropped_turns`` of the oldest
    turns were left out of the prompt (`truncation: "auto"`); ``miss`` says why ids of earlier turns could not
    be reused ("" if they were), such as `template_rewrote:3`."""

    response_id: str
    idempotency_key: str
    conversation_id: str
    user_message_id: str | None
    message_id: str
    dropped_turns: int
    miss: str


class ResponseQueued(ServerFrame, frozen=True, tag="response.queued"):
    """Waiting; ``position`` 1 is next."""

    response_id: str
    position: int


class ResponseRestoring(ServerFrame, frozen=True, tag="response.restoring"):
    """``done`` of ``total`` tokens of the prompt's KV have come back from disk."""

    response_id: str
    done: int
    total: int


class ResponsePrefill(ServerFrame, frozen=True, tag="response.prefill"):
    """The prompt's ``total`` tokens by origin, and how many are ``done``."""

    response_id: str
    total: int
    gpu_hit: int
    disk_hit: int
    computed: int
    done: int


class ResponseDelta(ServerFrame, frozen=True, tag="response.output_text.delta"):
    """Text of the pieces ``from_seq..seq``. Each piece is sent once per subscription, in order."""

    response_id: str
    from_seq: int
    seq: int
    delta: str


class Ending(ServerFrame, frozen=True, kw_only=True, omit_defaults=True):
    """Fields of the four endings. ``last_seq`` is the last piece's; ``error`` only where it failed; ``xray``
    not where the prompt was never looked at."""

    response_id: str
    conversation_id: str
    message_id: str
    finish_reason: FinishReason
    last_seq: int
    usage: Usage
    timings: Timings
    cost: Cost
    xray: Xray | UnsetType = UNSET
    error: Failure | UnsetType = UNSET


class ResponseCompleted(Ending, frozen=True, tag="response.completed"):
    """The model ended its text, or a stop string did."""


class ResponseIncomplete(Ending, frozen=True, tag="response.incomplete"):
    """`max_tokens` or the context was reached."""


class ResponseCancelled(Ending, frozen=True, tag="response.cancelled"):
    """Stopped by the client, by nobody coming back, or by shutdown. What was generated is billed."""


class ResponseFailed(Ending, frozen=True, tag="response.failed"):
    """The engine could not go on; see ``error``."""


class ConversationUpdated(ServerFrame, frozen=True, tag="conversation.updated"):
    """Follows an ending: the conversation as a list shows it. ``updated_at`` is RFC 3339, UTC.
    ``system_changed``: its system prompt is another than before."""

    conversation_id: str
    title: str
    tip_id: str | None
    updated_at: str
    pinned: bool = False
    system_changed: bool = False


class PromptCost(Struct, frozen=True):
    """What a prompt would cost, in integer nano-units, and what without the cache. No answer is in it."""

    currency: str
    prompt_nano: int
    without_cache_nano: int
    price_version: str


class CacheEstimated(ServerFrame, frozen=True, tag="cache.estimated"):
    """Answer to `cache.estimate`: what would become of that prompt now. ``ttft_ms`` is the sum of the three
    before it; ``context_left`` tokens would be left for the answer, which may have ``max_tokens``."""

    idempotency_key: str
    prompt_tokens: int
    gpu_hit: int
    disk_hit: int
    computed: int
    queue_ms: float
    restore_ms: float
    compute_ms: float
    ttft_ms: float
    cost: PromptCost
    context_left: int
    max_tokens: int
    dropped_turns: int
    xray: Xray


class ServerDraining(ServerFrame, frozen=True, tag="server.draining"):
    """The server shuts down: running answers have ``deadline_s`` seconds, new ones are refused."""

    deadline_s: float


class Pong(ServerFrame, frozen=True, tag="pong"):
    """Answer to `ping`, and the heartbeat when there is nothing else to say."""


class Error(ServerFrame, frozen=True, tag="error", omit_defaults=True):
    """A frame was refused. Names the request it belongs to where that could be read.

    ``retry_after_s`` seconds have to pass before it is worth another try, if that is known.
    """

    code: str
    message: str
    retryable: bool
    param: str | UnsetType = UNSET
    retry_after_s: int | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET
    response_id: str | UnsetType = UNSET
    conversation_id: str | UnsetType = UNSET


AnyEnding = ResponseCompleted | ResponseIncomplete | ResponseCancelled | ResponseFailed
ServerEvent = (
    SessionCreated
    | ResponseCreated
    | ResponseQueued
    | ResponseRestoring
    | ResponsePrefill
    | ResponseDelta
    | AnyEnding
    | ConversationUpdated
    | CacheEstimated
    | ServerDraining
    | Pong
    | Error
)


class CloseCode(IntEnum):
    """Codes the server closes a WebSocket with. 4400 and up are chatd's own."""

    PROTOCOL_ERROR = 1002
    BAD_UTF8 = 1007
    TOO_BIG = 1009
    INTERNAL = 1011
    RESTART = 1012
    UNAUTHORIZED = 4401
    WRONG_SUBPROTOCOL = 4406
    SLOW_READER = 4408


CLOSE_MEANINGS = {
    CloseCode.PROTOCOL_ERROR: "A frame broke RFC 6455, or was compressed although no extension was agreed.",
    CloseCode.BAD_UTF8: "A text frame was not UTF-8.",
    CloseCode.TOO_BIG: "A message was larger than the transport allows (2 MiB).",
    CloseCode.INTERNAL: "No answer to the server's pings in time, or a fault of the server. Reconnect.",
    CloseCode.RESTART: "The server shut down or restarts. Reconnect and subscribe again.",
    CloseCode.UNAUTHORIZED: "The key was revoked, the page logged out, or keys are wanted now. Log in again.",
    CloseCode.WRONG_SUBPROTOCOL: "The client did not offer the subprotocol `chatd.v1`.",
    CloseCode.SLOW_READER: "The client took no data for too long. Reconnect and subscribe again.",
}

_decoder = msgspec.json.Decoder(ClientEvent)
_server_decoder = msgspec.json.Decoder(ServerEvent)
_encoder = msgspec.json.Encoder()


def decode_client(frame: str | bytes) -> ClientEvent | Error:
    """What the client said. Never raises: a bad frame (text, or ``bytes`` for a binary one) is an `Error`."""
    if isinstance(frame, bytes):
        return error_event(BadFrame("binary frames are not used; send JSON text"))
    raw = frame.encode("utf-8", "surrogatepass")
    try:
        check_json(raw, FRAME_LIMITS)
    except BadFrame as error:
        return error_event(error)
    try:
        return _decode(raw)
    except ChatdError as error:
        return error_event(error, **_correlation(raw))


def _decode(raw: bytes) -> ClientEvent:
    try:
        event = _decoder.decode(raw)
    except msgspec.ValidationError as error:  # well-formed, but not one of ours
        why = explained(error)
        raise (BadFrame(f"unknown type: {error}") if why.param == "type" else why) from error
    except msgspec.DecodeError as error:
        raise malformed(raw, error) from error
    if isinstance(event, Asking):
        event.check()
    return event


def _correlation(raw: bytes) -> dict[str, str]:
    """The ids a refused frame carries, where they can be read. ``raw`` has passed `check_json`."""
    try:
        fields = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return {}
    if not isinstance(fields, dict):
        return {}
    names = ("idempotency_key", "response_id", "conversation_id")
    ids = {name: fields[name] for name in names if isinstance(fields.get(name), str)}
    if len(ids) > 1:  # a create names its conversation, but is told from others by its key
        ids.pop("conversation_id", None)
    return {name: value for name, value in ids.items() if len(value) <= 200}


def error_event(
    error: ChatdError,
    *,
    idempotency_key: str | None = None,
    response_id: str | None = None,
    conversation_id: str | None = None,
) -> Error:
    """``error`` as the wire has it."""
    return Error(
        code=error.code,
        message=error.message,
        retryable=error.retryable,
        param=UNSET if error.param is None else error.param,
        retry_after_s=error.retry_after_s or UNSET,
        idempotency_key=UNSET if idempotency_key is None else idempotency_key,
        response_id=UNSET if response_id is None else response_id,
        conversation_id=UNSET if conversation_id is None else conversation_id,
    )


def encode(event: ServerEvent | ClientEvent) -> bytes:
    """One frame's JSON."""
    return _encoder.encode(event)


def decode_server(frame: str | bytes) -> ServerEvent:
    """For clients: one server frame. Raises `BadFrame` for one that this version does not know."""
    try:
        return _server_decoder.decode(frame)
    except msgspec.DecodeError as error:
        raise BadFrame(f"not a chatd.v1 server frame: {error}") from error


if __name__ == "__main__":
    from chatd.server.protocol_tables import markdown

    print(markdown(), end="")
