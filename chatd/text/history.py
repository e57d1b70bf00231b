"""From the messages on a path to prompt ids, without encoding again what the engine has seen.

Law: each message stores ids so that, joined from the root up to and including an assistant message, they
are the ids the engine saw. A user message stores the tail rendered since the answer before it, with
the generation prompt; an assistant message what was generated; other messages nothing.

    ids    [ system user1 gen-prompt ][ answer1 ][ \\n user2 gen-prompt ][ answer2 ]
    stored           user1              answer1          user2             answer2

A template may show old answers differently once there is a newer question (it drops their reasoning,
say). Then the tail of that turn begins further back: at the last answer whose text still stands in the
rendering as the engine saw it. So stored ids are followed along the rendering: a tail goes where its text
is found, at the latest place it fits; an answer must come next, but for blanks a template trims.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chatd.text.chat_template import ChatMessage, ChatTemplate
from chatd.text.tokenizer import Span, Tokenizer

_SYSTEM_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class PathMessage:
    """One message on the path from the root. ``token_ids`` None: unknown, the text is encoded."""

    role: str
    text: str
    token_ids: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """``prompt_ids`` for the engine: the first ``kept_len`` are stored ones, ``tail_ids`` come after them.

    ``tail_ids`` belong to the path's last user message; with ``continue_last`` the ids of the answer
    that goes on come after them. ``miss`` says why less was kept than is stored: "" or
    "template_rewrote:3", the index of the first message that the template no longer shows as it was.
    """

    prompt_ids: tuple[int, ...]
    tail_ids: tuple[int, ...]
    kept_len: int
    miss: str


def plan_prompt(
    template: ChatTemplate, tokenizer: Tokenizer, path: Sequence[PathMessage], *, continue_last: bool = False
) -> PromptPlan:
    """The prompt for an answer at the end of ``path``; with ``continue_last``, for more of the last message.

    Raises what `ChatTemplate.render` raises, and `InvalidRequest` for text that is not valid Unicode.
    """
    if continue_last:
        return _plan_continuation(template, tokenizer, path)
    messages = [ChatMessage(one.role, tokenizer.writable(one.text)) for one in path]
    spans = template.render(messages, add_generation_prompt=True)
    walk = _Walk("".join(span.text for span in spans), tokenizer)
    for index, message in enumerate(path):
        if message.token_ids is None:
            break
        walk.take(index, message.role, messages[index].text, message.token_ids)
    kept, at = walk.kept()
    rest = _from(spans, at)
    tail = tokenizer.encode_spans(rest, after=kept[-1]) if kept else tokenizer.encode_prompt(rest)
    return PromptPlan((*kept, *tail), tuple(tail), len(kept), walk.miss)


def _plan_continuation(
    template: ChatTemplate, tokenizer: Tokenizer, path: Sequence[PathMessage]
) -> PromptPlan:
    *before, answer = path
    plan = plan_prompt(template, tokenizer, before)
    ids, text = answer.token_ids or (), tokenizer.writable(answer.text)
    if not tokenizer.knows(ids) or tokenizer.decode(ids) != text:  # of another model, or not known
        ids = tuple(tokenizer.ids_for(text, ids if tokenizer.knows(ids) else ()))
    while ids and ids[-1] in tokenizer.special_ids:  # what goes on has not ended
        ids = ids[:-1]
    return PromptPlan((*plan.prompt_ids, *ids), plan.tail_ids, plan.kept_len, plan.miss)


def truncate_path(path: Sequence[PathMessage], turns: int = 1) -> list[PathMessage] | None:
    """``path`` without its ``turns`` oldest turns (a user message and what answers it), or None.

    System messages at the start and the last turn always stay: None means that there are not so many to
    drop. The ids of what stays do not continue from anything any more, so they become unknown.
    """
    start = 0
    while start < len(path) and path[start].role in _SYSTEM_ROLES:
        start += 1
    turn_starts = [i for i in range(start, len(path)) if i == start or path[i].role == "user"]
    if turns >= len(turn_starts):
        return None
    kept = [*path[:start], *path[turn_starts[turns] :]]
    return [PathMessage(one.role, one.text, None) for one in kept]


class _Place(NamedTuple):
    """``ids_len`` stored ids have brought the text of the rendering up to ``at``."""

    ids_len: int
    at: int


class _Walk:
    """Follows stored ids along a rendering.

    ``_places`` are where a tail may begin: the start, and behind each answer that was found. ``_asked``
    is behind a tail that was found, where its answer must be.
    """

    def __init__(self, rendering: str, tokenizer: Tokenizer) -> None:
        self._text = rendering
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._places = [_Place(0, 0)]
        self._asked: _Place | None = None
        self.miss = ""

    def kept(self) -> tuple[list[int], int]:
        """The ids that hold, up to the last answer found, and where the rendering goes on after them."""
        place = self._places[-1]
        return self._ids[: place.ids_len], place.at

    def take(self, index: int, role: str, text: str, ids: tuple[int, ...]) -> None:
        """The next message of the path. One without ids is in a later message's tail.

        But for an empty answer, which was stopped before its first token: it ends where it began.
        """
        if not ids and (text or role != "assistant" or self._asked is None):
            return
        if not self._tokenizer.knows(ids):
            self._asked = None
            found = False
        else:
            found = self._answer(text, ids) if role == "assistant" else self._tail(ids)
        if found:
            self.miss = ""
        elif not self.miss:
            self.miss = f"template_rewrote:{index}"

    def _tail(self, ids: tuple[int, ...]) -> bool:
        self._asked = None
        for number in range(len(self._places) - 1, -1, -1):
            place = self._places[number]
            text = self._tail_text(ids, place)
            if self._text.startswith(text, place.at):
                del self._places[number + 1 :]
                self._ids[place.ids_len :] = ids
                self._asked = _Place(len(self._ids), place.at + len(text))
                return True
        return False

    def _tail_text(self, ids: tuple[int, ...], place: _Place) -> str:
        after = self._ids[place.ids_len - 1] if place.ids_len else None
        text = self._tokenizer.prompt_text(ids, after=after)
        if after is None and ids[0] == self._tokenizer.bos_id:
            bos = self._tokenizer.prompt_text(ids[:1])
            return text if self._text.startswith(bos) else text.removeprefix(bos)
        return text

    def _answer(self, text: str, ids: tuple[int, ...]) -> bool:
        place, self._asked = self._asked, None
        end = None if place is None else self._after_answer(place.at, text)
        if place is None or end is None:
            return False
        self._ids[place.ids_len :] = ids
        self._places.append(_Place(len(self._ids), self._after_ending(end, ids)))
        return True

    def _after_answer(self, at: int, text: str) -> int | None:
        if self._text.startswith(text, at):
            return at + len(text)
        trimmed = text.strip()
        at = self._skip_blanks(at)
        return at + len(trimmed) if self._text.startswith(trimmed, at) else None

    def _after_ending(self, at: int, ids: tuple[int, ...]) -> int:
        """Behind the closing string that the answer's last ids already stand for."""
        endings: list[int] = []
        for token_id in reversed(ids):
            if token_id not in self._tokenizer.special_ids:
                break
            endings.insert(0, token_id)
        for token_id in endings:
            ending = self._tokenizer.prompt_text((token_id,))
            behind = self._skip_blanks(at)
            if ending and self._text.startswith(ending, behind):
                at = behind + len(ending)
        return at

    def _skip_blanks(self, at: int) -> int:
        while at < len(self._text) and self._text[at].isspace():
            at += 1
        return at


def _from(spans: Sequence[Span], at: int) -> list[Span]:
    """What is left of ``spans`` from character ``at`` on."""
    rest: list[Span] = []
    for text, trusted in spans:
        if at < len(text):
            rest.append(Span(text[at:], trusted))
        at = max(0, at - len(text))
    return rest
