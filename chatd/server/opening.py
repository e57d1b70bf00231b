"""The steps of opening a response that only make values: what was asked, what is stored, what is run."""

import hashlib
import secrets
from dataclasses import asdict, dataclass

import msgspec

from chatd.engine.messages import Submit
from chatd.errors import InvalidParameter
from chatd.ids import Namespace, ResponseId, Rid
from chatd.server.backend import Backend
from chatd.server.commands import CreateCommand, Started
from chatd.server.params import MAX_SEED, RequestParams, check_text, parse_params
from chatd.server.prompt import Prompt, new_messages
from chatd.server.turns import Place
from chatd.server.views import history_of
from chatd.server.visitors import Visitor
from chatd.server.xray import PromptFacts
from chatd.store.records import BegunResponse, NewResponse


@dataclass(frozen=True, slots=True)
class Asked:
    """A command that was checked. ``digest`` tells it from another under the same idempotency key."""

    namespace: Namespace
    command: CreateCommand
    params: RequestParams
    digest: bytes
    by: Visitor | None = None

    @property
    def key_id(self) -> str:
        """As the ledger has it: "" without a key."""
        return "" if self.by is None else self.by.key_id

    @property
    def tokens_per_min(self) -> int | None:
        """The most that its key may use."""
        return None if self.by is None or self.by.key is None else self.by.key.limits.tokens_per_min


@dataclass(frozen=True, slots=True)
class Planned:
    """Where the answer goes, what its prompt is, how many tokens it may have, and what is known of it."""

    place: Place
    prompt: Prompt
    max_tokens: int
    facts: PromptFacts


def check_command(namespace: Namespace, command: CreateCommand, backend: Backend) -> Asked:
    """Raises InvalidParameter for a wrong value and for a message without text."""
    if command.messages is not None and not command.messages:
        raise InvalidParameter("messages is empty.", param="messages")
    if command.raw is not None:
        _check_raw(command, backend)
    elif command.messages is None and command.kind in ("input", "edit") and not command.input.strip():
        raise InvalidParameter("input is empty.", param="input")
    check_text(command.input, "input")
    for turn in command.messages or ():
        check_text(turn.text, "messages")
    params = parse_params(
        command.params,
        vocab_size=backend.vocab_size,
        temperature=backend.temperature,
        new_seed=lambda: secrets.randbelow(MAX_SEED),
    )
    return Asked(namespace, command, params, _digest(command))


def _check_raw(command: CreateCommand, backend: Backend) -> None:
    if not command.raw:
        raise InvalidParameter("prompt is empty.", param="prompt")
    if isinstance(command.raw, tuple):
        check_ids(command.raw, backend)


def check_ids(ids: tuple[int, ...], backend: Backend) -> None:
    """Raises InvalidParameter unless the model has them all."""
    if not all(0 <= token_id < backend.vocab_size for token_id in ids):
        raise InvalidParameter(f"Token ids are from 0 to {backend.vocab_size - 1}.", param="prompt")


def new_response(response_id: ResponseId, asked: Asked, planned: Planned, backend: Backend) -> NewResponse:
    """What the store opens."""
    place, prompt, command = planned.place, planned.prompt, asked.command
    return NewResponse(
        response_id=response_id,
        namespace=asked.namespace,
        idempotency_key=command.idempotency_key,
        request_hash=asked.digest,
        conversation_id=place.conversation_id,
        hidden=command.messages is not None or command.hidden,
        note=command.note,
        stored=command.store,
        parent_id=None if place.continues else place.parent_id,
        new_messages=new_messages(asked.namespace, place, prompt),
        continues=place.parent_id if place.continues else None,
        model=backend.model_name,
        params_json=_params_json(asked.params, planned),
        prompt_len=len(prompt.ids),
        under_tip=place.under_tip,
        continued_ids=prompt.answer_ids if place.continues else None,
        backend=backend.formats.backend,
        formats=backend.formats.text,
        key_id=asked.key_id,
        max_tokens=planned.max_tokens,
    )


def submit_of(response_id: ResponseId, asked: Asked, planned: Planned, backend: Backend) -> Submit:
    """What the engine runs."""
    return Submit(
        rid=Rid(response_id),
        namespace=asked.namespace,
        prompt_ids=planned.prompt.ids,
        params=asked.params.sampling,
        max_tokens=planned.max_tokens,
        stop=asked.params.stop,
        stop_ids=frozenset() if asked.params.ignore_eos else backend.tokenizer.eos_ids,
        owner=asked.key_id,
    )


def started_of(begun: BegunResponse) -> Started:
    """What the caller is told, now and each time the same key asks again."""
    history = history_of(begun.response)
    return Started(
        response_id=begun.response.id,
        conversation_id=begun.conversation_id,
        user_message_id=begun.user_message_id,
        message_id=begun.message_id,
        replay=begun.replay,
        dropped_turns=history.dropped_turns,
        miss=history.miss,
    )


def _digest(command: CreateCommand) -> bytes:
    what = (
        command.kind,
        command.input,
        command.conversation_id,
        command.parent_id,
        command.target_id,
        command.params,
        command.messages,
        command.raw,
        command.note,
    )
    return hashlib.sha256(msgspec.json.encode(what, order="deterministic")).digest()


def _params_json(params: RequestParams, planned: Planned) -> str:
    """All that was in force for one response, its seed included, and what became of its history."""
    shown = {
        **asdict(params.sampling),
        "logit_bias": {str(token_id): bias for token_id, bias in params.sampling.logit_bias},
        "max_tokens": planned.max_tokens,
        "stop": params.stop,
        "ignore_eos": params.ignore_eos,
        "truncation": params.truncation,
        "dropped_turns": planned.prompt.dropped_turns,
        "miss": planned.prompt.miss,
    }
    return msgspec.json.encode(shown).decode()
