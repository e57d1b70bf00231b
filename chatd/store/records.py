"""What crosses the seam between the store and its callers: frozen values, no rows, no sessions.

Times are Unix microseconds (``int``, UTC). Money is whole nano-units of a currency. ``*_len`` and
token counts are tokens. A text position is a count of Unicode code points.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NewType

from chatd.ids import ConversationId, MessageId, Namespace, ResponseId
from chatd.store.key_records import Room

RunId = NewType("RunId", int)
"""One life of the engine, from its start to its end or its death."""

ROOT_KEY = b""
"""The parent chain key of a message that has no parent."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def chain_key(namespace: Namespace, parent_key: bytes, role: str, text: str) -> bytes:
    """The 32-byte look-up key of a message: a hash of who, what came before, and what it says.

    ``parent_key`` is the parent's chain key, ``ROOT_KEY`` for the first message. Each part goes in
    with its length, so no two different chains share a hash input. A lone surrogate raises
    UnicodeEncodeError: such text cannot be stored either.
    """
    digest = hashlib.sha256()
    for part in (namespace.encode(), parent_key, role.encode(), text.encode()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def title_of(text: str) -> str:
    """A conversation's title: the first line of ``text`` that is not blank, cut at 60 characters."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first if len(first) <= 60 else first[:59].rstrip() + "…"


def micros(seconds: float) -> int:
    """Unix seconds to Unix microseconds."""
    return round(seconds * 1_000_000)


def rfc3339(at: int) -> str:
    """Unix microseconds as the wire writes a time: ``2026-11-29T14:20:05.123456Z``."""
    return (_EPOCH + timedelta(microseconds=at)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class ResponseStatus(StrEnum):
    """OPEN, then exactly one of the others, for good."""

    OPEN = "open"
    COMPLETED = "completed"  # end of text or a stop string
    INCOMPLETE = "incomplete"  # max_tokens or the context
    CANCELLED = "cancelled"
    FAILED = "failed"


class MessageStatus(StrEnum):
    """STREAMING while a response writes it, then that response's status. Others are COMPLETED."""

    STREAMING = "streaming"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"
    FAILED = "failed"


# --- conversations -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Conversation:
    """``tip_id`` is the newest message, under which a plain input goes; None in an empty one.

    ``hidden`` ones hold the histories of stateless clients: never listed, and they expire. ``pinned`` ones
    are what their owner wants to have at hand.
    """

    id: ConversationId
    title: str
    hidden: bool
    created_at: int
    updated_at: int
    tip_id: MessageId | None
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class ConversationPage:
    """Newest first. ``next`` is the ``before`` of the following page, None on the last."""

    conversations: tuple[Conversation, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of a tree. ``role`` is system, user or assistant.

    ``token_ids`` None means unknown: encode the text. While STREAMING, text and ids are those from
    before the running response (empty, or what is being continued): the rest is in its pieces, and
    ``chain_key`` is None until it ends.
    """

    id: MessageId
    conversation_id: ConversationId
    parent_id: MessageId | None
    role: str
    text: str
    token_ids: tuple[int, ...] | None
    status: MessageStatus
    chain_key: bytes | None
    created_at: int


# --- responses: the ledger ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds; None where it never came to that (no first token, no second)."""

    queue_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    tokens_per_s: float | None = None
    total_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """One row's bill in nano-units of ``currency``, each bucket rounded once, half up.

    ``without_cache_nano`` is what the same tokens cost had nothing been reused.
    """

    currency: str
    price_version: str
    gpu_hit_nano: int
    disk_hit_nano: int
    computed_nano: int
    output_nano: int
    without_cache_nano: int

    @property
    def prompt_nano(self) -> int:
        return self.gpu_hit_nano + self.disk_hit_nano + self.computed_nano

    @property
    def total_nano(self) -> int:
        return self.prompt_nano + self.output_nano

    @property
    def saved_nano(self) -> int:
        return self.without_cache_nano - self.total_nano


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """One ledger row. Buckets are 0 until the request is admitted and never change afterwards.

    ``output_tokens`` is what was generated and stored so far, ``delivered`` what went out to a
    reader, ``acknowledged`` what a reader said it has, ``last_seq`` the newest stored piece (0: none).
    ``finish_reason`` and ``ended_at`` are None while OPEN; ``cost`` then is the bill if it ended now.

    ``history_len`` tokens at the start of the prompt had had KV before, by what was stored of the
    conversation; ``kv_len`` at the start of prompt and answer have it since. ``cause`` says why the first
    computed token was a miss and ``xray_json`` all the rest there is to say of it (both "" until the
    request is admitted). ``backend`` and ``formats`` are what computed it.
    """

    id: ResponseId
    namespace: Namespace
    idempotency_key: str | None
    conversation_id: ConversationId
    user_message_id: MessageId | None
    message_id: MessageId
    model: str
    params_json: str
    status: ResponseStatus
    finish_reason: str | None
    error_code: str
    error: str
    prompt_len: int
    prompt_tokens: int
    gpu_hit: int
    disk_hit: int
    computed: int
    output_tokens: int
    delivered: int
    last_seq: int
    preemptions: int
    recomputed: int
    timings: Timings
    cost: Cost
    opened_at: int
    admitted_at: int | None
    ended_at: int | None
    history_len: int = 0
    kv_len: int = 0
    cause: str = ""
    backend: str = ""
    formats: str = ""
    xray_json: str = ""
    branch_id: str = ""
    key_id: str = ""
    acknowledged: int = 0


@dataclass(frozen=True, slots=True)
class KeptKV:
    """What one response left: KV of the first ``kv_len`` tokens of its prompt and answer.

    ``prompt_len`` of these were the prompt. It wrote ``message_id``, which hangs under ``parent_id``, in
    engine run ``run_id``, with a model and formats that only equal ones can go on from.
    """

    message_id: MessageId
    parent_id: MessageId | None
    prompt_len: int
    kv_len: int
    run_id: RunId
    model: str
    backend: str
    formats: str


@dataclass(frozen=True, slots=True)
class Purge:
    """KV to be removed from every tier: the token ids of one path of a deleted conversation."""

    seq: int
    namespace: Namespace
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pin:
    """A prompt prefix that the operator wants to keep. ``what`` says for people what it is."""

    name: str
    namespace: Namespace
    what: str
    token_ids: tuple[int, ...]
    created_at: int


@dataclass(frozen=True, slots=True)
class CauseSum:
    """How often a cause was found, and how many tokens were computed there."""

    cause: str
    responses: int
    computed: int


@dataclass(frozen=True, slots=True)
class XrayRow:
    """What of an ended response a look at the cache's choices and predictions needs."""

    gpu_hit: int
    disk_hit: int
    computed: int
    ttft_ms: float | None
    xray_json: str


@dataclass(frozen=True, slots=True)
class ReplayTurn:
    """An ended answer with the ids of its prompt and, last, ``answer_len`` that the model sampled."""

    response: ResponseRecord
    token_ids: tuple[int, ...]
    answer_len: int


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message and the responses that wrote it, oldest first (more than one if it was continued)."""

    message: StoredMessage
    responses: tuple[ResponseRecord, ...]


@dataclass(frozen=True, slots=True)
class ConversationView:
    """A whole conversation. Messages in the order they were stored, so parents come first."""

    conversation: Conversation
    messages: tuple[MessageView, ...]


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to be stored. ``chain_key`` must be that of its text under its parent."""

    role: str
    text: str
    token_ids: tuple[int, ...] | None
    chain_key: bytes


@dataclass(frozen=True, slots=True)
class NewResponse:
    """A response to be opened, with the messages it brings.

    ``new_messages`` go in a chain under ``parent_id`` (None: a new root), and the assistant message
    that will be written goes under the last of them; with none (regenerate) directly under
    ``parent_id``. ``under_tip`` says the caller took the tip for parent: if it has moved since,
    nothing is stored and `TipMoved` is raised. ``conversation_id`` None makes a conversation
    (``hidden`` only matters then). ``continues`` names an ended assistant message without children
    that the answer is appended to; no new message is made then, and ``continued_ids``, if given,
    replace its stored ids (what the prompt ends with). ``prompt_len`` is the whole prompt in tokens.
    ``request_hash`` tells one request from another under the same idempotency key. ``key_id`` names the key
    it was asked with, if with any. The answer has at most ``max_tokens``. A ``note`` is kept with it, and
    what is not to be ``stored`` is withdrawn from the start: see `chatd.store.notes`.
    """

    response_id: ResponseId
    namespace: Namespace
    idempotency_key: str | None
    request_hash: bytes
    conversation_id: ConversationId | None
    hidden: bool
    parent_id: MessageId | None
    new_messages: tuple[NewMessage, ...]
    continues: MessageId | None
    model: str
    params_json: str
    prompt_len: int
    under_tip: bool = False
    continued_ids: tuple[int, ...] | None = None
    backend: str = ""
    formats: str = ""
    key_id: str = ""
    max_tokens: int = 0
    note: str = ""
    stored: bool = True


@dataclass(frozen=True, slots=True)
class BegunResponse:
    """``user_message_id`` is the last of the new messages, None if there was none.

    ``replay``: the idempotency key was known, nothing was stored, this is what it made then. ``room`` is what
    its key has left.
    """

    response: ResponseRecord
    conversation_id: ConversationId
    user_message_id: MessageId | None
    message_id: MessageId
    replay: bool
    room: Room | None = None


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """Pieces ``from_seq..seq``. ``piece_ends`` has one entry a piece: where it ends in ``text``."""

    from_seq: int
    seq: int
    text: str
    piece_ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunCounters:
    """The engine's totals since its start, by the engine's own names.

    The five that the ledger is verified against, then those kept for reports.
    """

    prompt_tokens: int = 0
    gpu_hit: int = 0
    disk_hit: int = 0
    computed: int = 0
    generated: int = 0
    steps: int = 0
    preemptions: int = 0
    recomputed: int = 0
    evicted_pages: int = 0
