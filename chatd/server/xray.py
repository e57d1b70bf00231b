"""Where each token of a prompt came from, and why the first computed one was a miss. Pure.

A prompt is ``gpu_hit`` tokens whose KV was in memory, then ``disk_hit`` that came back from disk, then
``computed`` ones. The cause is about one token, the first computed one, at position ``gpu_hit + disk_hit``.
Of the lines of `MEANINGS`, the first that holds decides.

"Had KV before" is what the conversation's stored history says: the ids that the engine was given for this
path or one that forks off it, and how far their KV was computed (`chatd.store.kv_paths`). So in a new
conversation everything is new, even a system prompt that another conversation had and that was evicted.

``message`` is the k of `template_rewrote` and `edited`: its index on the path from the root, from 0. A client
must not learn that others have the same text, so `for_client` makes `new_text` of `other_namespace`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import msgspec
from msgspec import Struct

from chatd.cache.block_tier import BLOCK_LEN
from chatd.engine.messages import Prefill, Probed, TierNote, TierOutcome


class Cause(StrEnum):
    LAST_TOKEN = "last_token"
    CACHE_OFF = "cache_off"
    DAMAGED = "damaged"
    READ_FAILED = "read_failed"
    RECOMPUTE_CHEAPER = "recompute_cheaper"
    NO_PAGES = "no_pages"
    MODEL_CHANGED = "model_changed"
    TIER_OFF = "tier_off"
    BELOW_BLOCK = "below_block"
    RESTARTED = "restarted"
    EVICTED = "evicted"
    TRUNCATED = "truncated"
    TEMPLATE_REWROTE = "template_rewrote"
    EDITED = "edited"
    OTHER_NAMESPACE = "other_namespace"
    NEW_TEXT = "new_text"


MEANINGS = {
    Cause.LAST_TOKEN: "is the prompt's last one, which is always computed: the answer begins with it",
    Cause.CACHE_OFF: "was not looked for: the server runs with `--no-prefix-cache`",
    Cause.DAMAGED: "was on disk, but its record did not hold what it should",
    Cause.READ_FAILED: "was on disk, but could not be read",
    Cause.RECOMPUTE_CHEAPER: "was on disk, but computing it was estimated to be faster than loading it",
    Cause.NO_PAGES: "was on disk, but no page of memory could be had for it",
    Cause.MODEL_CHANGED: "had KV before, made by another model or in other formats",
    Cause.TIER_OFF: "had KV in an earlier run of the server, and there is no disk tier to keep it",
    Cause.BELOW_BLOCK: "had KV before, but not all of the 64-token block it is in: the disk keeps no less",
    Cause.RESTARTED: "had KV in an earlier run of the server, and the disk does not have it (any more)",
    Cause.EVICTED: "had KV in this run of the server, and neither memory nor disk has it any more",
    Cause.TRUNCATED: "had none: the oldest turns were left out, so what follows them stands elsewhere",
    Cause.TEMPLATE_REWROTE: "had none: the chat template shows message k in another way than before",
    Cause.EDITED: "had none: message k was edited, here or in the history that a stateless client sent",
    Cause.OTHER_NAMESPACE: "had none, but another account has KV of that text (only the operator is told)",
    Cause.NEW_TEXT: "had none: it is new",
}
"""Of the first computed token, in the order in which they are tried."""

_ON_DISK = {
    TierOutcome.DAMAGED: Cause.DAMAGED,
    TierOutcome.FAILED: Cause.READ_FAILED,
    TierOutcome.CHEAPER: Cause.RECOMPUTE_CHEAPER,
    TierOutcome.NO_PAGES: Cause.NO_PAGES,
}


@dataclass(frozen=True, slots=True)
class Earlier:
    """KV of the first ``length`` tokens of the prompt that some response left: in this run of the engine or
    an earlier one, and whether with the same model and formats."""

    length: int
    this_run: bool
    same_formats: bool


@dataclass(frozen=True, slots=True)
class PromptFacts:
    """What the server knows of a prompt before the engine looks. ``earlier`` is in the order of time."""

    earlier: tuple[Earlier, ...] = ()
    edited: int | None = None
    rewritten: int | None = None
    truncated: bool = False
    cache_on: bool = True

    @property
    def history_len(self) -> int:
        """Tokens at the start that had KV before: what a cache that loses nothing would give."""
        return max((one.length for one in self.earlier), default=0)

    def last_with(self, position: int) -> Earlier | None:
        """The newest that had KV at ``position``."""
        return next((one for one in reversed(self.earlier) if one.length > position), None)


def cause_of(facts: PromptFacts, prompt_tokens: int, first: int, tier: TierNote) -> Cause:
    """Why the token at ``first``, the first computed one, was a miss. See `MEANINGS`."""
    if first >= prompt_tokens - 1:
        return Cause.LAST_TOKEN
    if not facts.cache_on:
        return Cause.CACHE_OFF
    if (on_disk := _ON_DISK.get(tier.outcome)) is not None:
        return on_disk
    if (earlier := facts.last_with(first)) is not None:
        return _lost(earlier, first, tier)
    return _never_had(facts, tier)


def _lost(earlier: Earlier, first: int, tier: TierNote) -> Cause:
    if not earlier.same_formats:
        return Cause.MODEL_CHANGED
    if tier.outcome is TierOutcome.OFF:
        return Cause.EVICTED if earlier.this_run else Cause.TIER_OFF
    if first - first % BLOCK_LEN + BLOCK_LEN > earlier.length:
        return Cause.BELOW_BLOCK
    return Cause.EVICTED if earlier.this_run else Cause.RESTARTED


def _never_had(facts: PromptFacts, tier: TierNote) -> Cause:
    if facts.truncated:
        return Cause.TRUNCATED
    if facts.rewritten is not None:
        return Cause.TEMPLATE_REWROTE
    if facts.edited is not None:
        return Cause.EDITED
    return Cause.OTHER_NAMESPACE if tier.elsewhere else Cause.NEW_TEXT


class Prediction(Struct, frozen=True):
    """What was expected of a prompt just before it was handed in. Milliseconds."""

    gpu_hit: int
    disk_hit: int
    computed: int
    queue_ms: float
    restore_ms: float
    compute_ms: float

    @property
    def ttft_ms(self) -> float:
        return self.queue_ms + self.restore_ms + self.compute_ms


def prediction_of(probed: Probed) -> Prediction:
    return Prediction(
        gpu_hit=probed.gpu_hit,
        disk_hit=probed.disk_hit,
        computed=probed.computed,
        queue_ms=1000 * probed.queue_s,
        restore_ms=1000 * probed.restore_s,
        compute_ms=1000 * probed.compute_s,
    )


class Xray(Struct, frozen=True):
    """All there is to say of one prompt but the buckets, as the store keeps it. ``elsewhere`` is for the
    operator alone. Estimates in ms; ``found`` counts tokens that the disk had beyond memory."""

    cause: Cause
    message: int | None
    history_len: int
    outcome: TierOutcome
    found: int
    load_ms: float
    compute_ms: float
    restore_ms: float
    elsewhere: int
    predicted: Prediction | None

    @property
    def choice(self) -> Literal["load", "compute"] | None:
        """What was done where there was a choice."""
        if not self.found or self.outcome not in (TierOutcome.LOADED, TierOutcome.CHEAPER):
            return None
        return "load" if self.outcome is TierOutcome.LOADED else "compute"


def explain(facts: PromptFacts, answer: Prefill | Probed, predicted: Prediction | None = None) -> Xray:
    """The X-ray of a prompt that was admitted, or of one that was only asked about."""
    tier, first = answer.tier, answer.gpu_hit + answer.disk_hit
    cause = cause_of(facts, answer.prompt_tokens, first, tier)
    message = {Cause.EDITED: facts.edited, Cause.TEMPLATE_REWROTE: facts.rewritten}.get(cause)
    return Xray(
        cause=cause,
        message=message,
        history_len=max(facts.history_len, first),
        outcome=tier.outcome,
        found=tier.found,
        load_ms=tier.load_ms,
        compute_ms=tier.compute_ms,
        restore_ms=tier.restore_ms,
        elsewhere=tier.elsewhere,
        predicted=predicted,
    )


def for_client(cause: Cause) -> Cause:
    """Without what a client must never learn."""
    return Cause.NEW_TEXT if cause is Cause.OTHER_NAMESPACE else cause


def to_json(xray: Xray) -> str:
    return msgspec.json.encode(xray).decode()


def from_json(text: str) -> Xray | None:
    """None for a response that was never admitted, or before X-rays were kept."""
    return msgspec.json.decode(text, type=Xray) if text else None


def rewritten_at(miss: str) -> int | None:
    """The index in a plan's ``miss`` (``template_rewrote:3``), if there is one."""
    return int(miss.partition(":")[2]) if miss.startswith("template_rewrote:") else None
