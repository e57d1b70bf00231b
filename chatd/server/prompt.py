"""From a place in a tree to the ids the engine gets, and what of them is stored with which message."""

from collections.abc import Sequence
from dataclasses import dataclass

from chatd.errors import ContextTooLong, InvalidRequest, PromptTooLarge, TemplateError
from chatd.ids import Namespace
from chatd.server.params import RequestParams
from chatd.server.turns import Place, chain_keys
from chatd.store.records import ROOT_KEY, NewMessage, StoredMessage
from chatd.text.chat_template import ChatTemplate
from chatd.text.history import PathMessage, PromptPlan, plan_prompt, truncate_path
from chatd.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """``stored_ids`` go with the last new message; None where the ids are no continuation of the path's."""

    ids: tuple[int, ...]
    stored_ids: tuple[int, ...] | None
    dropped_turns: int
    miss: str


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Renders and encodes. ``capacity_len`` is the most tokens the KV pool can hold for one request."""

    tokenizer: Tokenizer
    template: ChatTemplate
    context_length: int
    capacity_len: int

    def make(self, place: Place, params: RequestParams) -> Prompt:
        """The prompt for an answer at ``place``. Takes CPU time in proportion to the history's text.

        Raises ContextTooLong if it leaves no room for a token in the context (with ``truncation: "auto"``:
        even without all older turns), InvalidRequest if the template refuses this history.
        """
        path = [*_known(place.path), *(PathMessage(turn.role, turn.text, None) for turn in place.new)]
        plan = self._plan(path, place)
        dropped = 0
        while len(plan.prompt_ids) >= self.context_length and params.truncation == "auto":
            shorter = truncate_path(path)
            if shorter is None:
                break
            path, dropped = shorter, dropped + 1
            plan = self._plan(path, place)
        self._refuse_too_long(plan)
        return Prompt(plan.prompt_ids, None if dropped else plan.tail_ids, dropped, plan.miss)

    def max_tokens(self, prompt: Prompt, params: RequestParams) -> int:
        """How many tokens may be generated: as asked, as the context has room for.

        Raises PromptTooLarge for what the KV pool could never hold.
        """
        prompt_len = len(prompt.ids)
        room = self.context_length - prompt_len
        if params.max_tokens is None:
            room = min(room, self.capacity_len - prompt_len)
        limit = room if params.max_tokens is None else min(room, params.max_tokens)
        if limit < 1 or prompt_len + limit > self.capacity_len:
            raise PromptTooLarge(
                f"The prompt has {prompt_len} tokens and the answer may have {max(limit, 1)}, but the KV "
                f"pool holds {self.capacity_len} tokens in all. Ask for less, or start the server with more "
                "--kv-bytes."
            )
        return limit

    def _plan(self, path: Sequence[PathMessage], place: Place) -> PromptPlan:
        try:
            return plan_prompt(self.template, self.tokenizer, path, continue_last=place.continues)
        except TemplateError as error:
            raise InvalidRequest(
                f"The model's chat template refuses this history: {error.message}"
            ) from error

    def _refuse_too_long(self, plan: PromptPlan) -> None:
        if len(plan.prompt_ids) >= self.context_length:
            raise ContextTooLong(
                f"The prompt has {len(plan.prompt_ids)} tokens; the model's context holds "
                f"{self.context_length} and needs one for the answer. Shorten it, start a new "
                'conversation, or send truncation: "auto" to leave out the oldest turns.'
            )


def _known(path: Sequence[StoredMessage]) -> list[PathMessage]:
    """Stored ids as far as they are, joined, exactly what the engine saw: up to the last answer of ours.

    The ids of an answer that came as text (None) are in the tail of a later message, so they count as
    empty when that one is kept. A prompt message without ids is where the exact history ends.
    """
    broken = (i for i, m in enumerate(path) if m.token_ids is None and m.role != "assistant")
    end = next(broken, len(path))
    ours = (
        i for i in range(end - 1, -1, -1) if path[i].role == "assistant" and path[i].token_ids is not None
    )
    last = next(ours, -1)
    return [
        PathMessage(m.role, m.text, (m.token_ids or ()) if i <= last else None) for i, m in enumerate(path)
    ]


def new_messages(namespace: Namespace, place: Place, prompt: Prompt) -> tuple[NewMessage, ...]:
    """The messages that the answer brings with it, as the store wants them."""
    parent_key = place.path[-1].chain_key if place.path else ROOT_KEY
    if not place.new or parent_key is None:
        return ()
    keys = chain_keys(namespace, parent_key, place.new)
    ids: list[tuple[int, ...] | None] = [None if turn.role == "assistant" else () for turn in place.new]
    ids[-1] = prompt.stored_ids
    return tuple(
        NewMessage(turn.role, turn.text, token_ids, key)
        for turn, token_ids, key in zip(place.new, ids, keys, strict=True)
    )
