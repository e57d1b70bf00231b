"""From a place in a tree to the ids the engine gets, and what of them is stored with which message."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from chatd.errors import ContextTooLong, InvalidRequest, PromptTooLarge, TemplateError
from chatd.ids import Namespace
from chatd.server.commands import CreateCommand
from chatd.server.params import RequestParams
from chatd.server.turns import Place, chain_keys
from chatd.store.records import ROOT_KEY, NewMessage
from chatd.text.chat_template import ChatTemplate
from chatd.text.history import PathMessage, PromptPlan, plan_prompt, truncate_path
from chatd.text.tokenizer import Span, Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """``tail_ids`` are stored with the last new message, ``answer_ids`` with the answer that is continued.

    ``dropped_turns`` of the oldest turns are not in it. ``miss``: see `PromptPlan`.
    """

    ids: tuple[int, ...]
    tail_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
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
        path = _path_of(place)
        plan, dropped = self._plan(path, place), 0
        if not self._fits(plan) and params.truncation == "auto":
            plan, dropped = self._plan_shorter(plan, path, place)
        self._check_room(len(plan.prompt_ids))
        answer_ids = plan.prompt_ids[plan.kept_len + len(plan.tail_ids) :]
        return Prompt(plan.prompt_ids, plan.tail_ids, answer_ids, dropped, plan.miss)

    def count(self, place: Place, command: CreateCommand) -> int:
        """Tokens of the whole prompt at ``place``, whether it fits or not."""
        if command.raw is not None:
            return len(self.raw_ids(command.raw))
        return len(self._plan(_path_of(place), place).prompt_ids)

    def raw(self, raw: str | tuple[int, ...]) -> Prompt:
        """The prompt for text that no template shows, or for ids. Raises as `make` does."""
        ids = self.raw_ids(raw)
        self._check_room(len(ids))
        return Prompt(ids, ids, (), 0, "")

    def raw_ids(self, raw: str | tuple[int, ...]) -> tuple[int, ...]:
        """Of text, which never becomes control tokens; ids are taken as they are."""
        if isinstance(raw, tuple):
            return raw
        return tuple(self.tokenizer.encode_prompt([Span(raw, False)]))

    def max_tokens(self, prompt: Prompt, params: RequestParams) -> int:
        """How many tokens may be generated: as asked, as the context has room for.

        Raises PromptTooLarge for what the KV pool could never hold.
        """
        prompt_len = len(prompt.ids)
        room, pool_room = self.context_length - prompt_len, self.capacity_len - prompt_len
        limit = min(room, pool_room) if params.max_tokens is None else min(room, params.max_tokens)
        if limit < 1 or limit > pool_room:
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
                f"The model's chat template cannot show this history: {error.message}", param="messages"
            ) from error

    def _plan_shorter(
        self, whole: PromptPlan, path: Sequence[PathMessage], place: Place
    ) -> tuple[PromptPlan, int]:
        """Without as few of the oldest turns as makes it fit, and how many; ``whole`` if nothing does."""
        plans: dict[int, PromptPlan] = {}

        def is_enough(turns: int) -> bool:
            shorter = truncate_path(path, turns)
            if shorter is None:
                return True
            plans[turns] = self._plan(shorter, place)
            return self._fits(plans[turns])

        fewest = bisect_left(range(1, len(path) + 1), True, key=is_enough) + 1
        return (plans[fewest], fewest) if fewest in plans else (whole, 0)

    def _check_room(self, prompt_len: int) -> None:
        if prompt_len >= self.context_length:
            raise ContextTooLong(
                f"The prompt has {prompt_len} tokens; the model's context holds "
                f"{self.context_length} and needs one for the answer. Shorten it, start a new "
                'conversation, or send truncation: "auto" to leave out the oldest turns.'
            )

    def _fits(self, plan: PromptPlan) -> bool:
        return len(plan.prompt_ids) < self.context_length


def _path_of(place: Place) -> list[PathMessage]:
    return [
        *(PathMessage(message.role, message.text, message.token_ids or ()) for message in place.path),
        *(PathMessage(turn.role, turn.text, None) for turn in place.new),
    ]


def new_messages(namespace: Namespace, place: Place, prompt: Prompt) -> tuple[NewMessage, ...]:
    """The messages that the answer brings with it, as the store wants them.

    The last one holds the ids of all that is new. An answer that came as text is not ours: its ids are
    unknown, so that nothing is ever continued from them.
    """
    parent_key = place.path[-1].chain_key if place.path else ROOT_KEY
    if not place.new or parent_key is None:
        return ()
    keys = chain_keys(namespace, parent_key, place.new)
    ids: list[tuple[int, ...] | None] = [None if turn.role == "assistant" else () for turn in place.new]
    ids[-1] = prompt.tail_ids
    return tuple(
        NewMessage(turn.role, turn.text, token_ids, key)
        for turn, token_ids, key in zip(place.new, ids, keys, strict=True)
    )
