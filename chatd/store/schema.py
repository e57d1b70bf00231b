"""The tables as queries see them, and how token ids become bytes.

The schema itself (constraints, indices, triggers) is made by ``migrations/``; a test holds the columns
named here to what the migrations make.
"""

import sys
from array import array
from collections.abc import Iterable

from sqlalchemy import Column, Float, Integer, LargeBinary, MetaData, Table, Text

metadata = MetaData()


def _int(name: str, *, null: bool = False) -> Column[int]:
    return Column(name, Integer, nullable=null)


def _real(name: str) -> Column[float]:
    return Column(name, Float, nullable=True)


def _text(name: str, *, null: bool = False) -> Column[str]:
    return Column(name, Text, nullable=null)


def _blob(name: str, *, null: bool = False) -> Column[bytes]:
    return Column(name, LargeBinary, nullable=null)


conversations = Table(
    "conversations",
    metadata,
    Column("seq", Integer, primary_key=True),
    _text("id"),
    _text("namespace"),
    _text("title"),
    _int("hidden"),
    _text("tip_id", null=True),
    _int("created_at"),
    _int("updated_at"),
    _int("expires_at", null=True),
    _int("pinned_at", null=True),
)

messages = Table(
    "messages",
    metadata,
    Column("seq", Integer, primary_key=True),
    _text("id"),
    _text("conversation_id"),
    _text("parent_id", null=True),
    _text("role"),
    _text("text"),
    _blob("token_ids", null=True),
    _text("status"),
    _blob("chain_key", null=True),
    _int("created_at"),
)

price_books = Table(
    "price_books",
    metadata,
    Column("version", Text, primary_key=True),
    _text("currency"),
    _text("valid_from"),
    _int("computed"),
    _int("gpu_hit"),
    _int("disk_hit"),
    _int("generated"),
    _text("details"),
)

engine_runs = Table(
    "engine_runs",
    metadata,
    Column("id", Integer, primary_key=True),
    _text("outcome"),
    _int("started_at"),
    _int("updated_at"),
    _int("prompt_tokens"),
    _int("gpu_hit"),
    _int("disk_hit"),
    _int("computed"),
    _int("generated"),
    _int("steps"),
    _int("preemptions"),
    _int("recomputed"),
    _int("evicted_pages"),
)

responses = Table(
    "responses",
    metadata,
    Column("seq", Integer, primary_key=True),
    _text("id"),
    _int("run_id"),
    _text("namespace"),
    _text("idempotency_key", null=True),
    _blob("request_hash"),
    _text("conversation_id"),
    _text("user_message_id", null=True),
    _text("message_id"),
    _int("base_len"),
    _text("model"),
    _text("params_json"),
    _text("status"),
    _text("finish_reason", null=True),
    _text("error_code"),
    _text("error"),
    _int("prompt_len"),
    _int("prompt_tokens"),
    _int("gpu_hit"),
    _int("disk_hit"),
    _int("computed"),
    _int("output_tokens"),
    _int("delivered"),
    _int("last_seq"),
    _int("preemptions"),
    _int("recomputed"),
    _real("queue_ms"),
    _real("ttft_ms"),
    _real("tpot_ms"),
    _real("tokens_per_s"),
    _real("total_ms"),
    _int("opened_at"),
    _int("admitted_at", null=True),
    _int("ended_at", null=True),
    _text("price_version"),
    _int("gpu_hit_nano", null=True),
    _int("disk_hit_nano", null=True),
    _int("computed_nano", null=True),
    _int("output_nano", null=True),
    _int("without_cache_nano", null=True),
    _int("history_len"),
    _int("kv_len"),
    _text("cause"),
    _text("backend"),
    _text("formats"),
    _text("xray_json"),
    _text("branch_id"),
    _text("key_id"),
    _int("acknowledged"),
    _int("max_tokens"),
    _int("reserved_nano"),
)

pieces = Table(
    "pieces",
    metadata,
    Column("response_seq", Integer, primary_key=True),
    Column("from_seq", Integer, primary_key=True),
    _int("seq"),
    _text("text"),
    _blob("token_ids"),
    _blob("piece_ends"),
)

response_notes = Table(
    "response_notes",
    metadata,
    Column("response_id", Text, primary_key=True),
    _text("conversation_id"),
    _text("note"),
    _int("withdrawn"),
)

purges = Table(
    "purges",
    metadata,
    Column("seq", Integer, primary_key=True),
    _text("namespace"),
    _blob("token_ids"),
)

pins = Table(
    "pins",
    metadata,
    Column("name", Text, primary_key=True),
    _text("namespace"),
    _text("what"),
    _blob("token_ids"),
    _int("created_at"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("name", Text, primary_key=True),
    _text("account"),
    _text("prefix"),
    _blob("salt"),
    _blob("hash"),
    _text("scopes"),
    _int("requests_per_min", null=True),
    _int("tokens_per_min", null=True),
    _int("turns", null=True),
    _int("budget_nano", null=True),
    _text("budget_period", null=True),
    _text("budget_currency", null=True),
    _int("created_at"),
    _int("revoked_at", null=True),
)

logins = Table(
    "logins",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    _text("key_name", null=True),
    _int("created_at"),
    _int("expires_at"),
)

_KEY = ("namespace", "key_id", "model", "price_version")
COUNTS = (
    "turns",
    "prompt_tokens",
    "gpu_hit",
    "disk_hit",
    "computed",
    "output_tokens",
    "preemptions",
    "recomputed",
)
SUMS = (*COUNTS, "cost_nano", "without_cache_nano")
PACE = ("timed", "timed_tokens", "timed_us", "timed_product", "timed_squares")
"""Over turns with a first token: how many, their computed prompt tokens x, their TTFT y in microseconds,
x * y and x * x. From these comes what a computed token takes, by least squares: whatever else is in a TTFT
does not depend on x.
"""

usage_days = Table(
    "usage_days",
    metadata,
    _int("day"),
    *(_text(name) for name in _KEY),
    *(_int(name) for name in SUMS),
    *(_int(name) for name in PACE),
    _blob("latencies"),
)

usage_branches = Table(
    "usage_branches",
    metadata,
    _text("conversation_id"),
    _text("branch_id"),
    _int("day"),
    *(_text(name) for name in _KEY),
    *(_int(name) for name in SUMS),
    _int("first_at"),
    _int("last_at"),
    _blob("latencies"),
)

usage_sessions = Table(
    "usage_sessions",
    metadata,
    Column("conversation_id", Text, primary_key=True),
    _text("namespace"),
    _int("first_at"),
    _int("last_at"),
)

storage_days = Table(
    "storage_days",
    metadata,
    _int("day"),
    _text("namespace"),
    _text("tier"),
    _text("price_version"),
    _int("byte_seconds"),
)


def pack_ids(ids: Iterable[int]) -> bytes:
    """Numbers as little-endian uint32; OverflowError outside 0 .. 2**32 - 1."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(blob: bytes) -> tuple[int, ...]:
    """What `pack_ids` packed. ValueError if the length is no multiple of 4."""
    packed = array("I")
    packed.frombytes(blob)
    if sys.byteorder == "big":
        packed.byteswap()
    return tuple(packed)
