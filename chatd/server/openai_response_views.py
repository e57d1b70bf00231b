"""A response of the ledger as OpenAI's Responses show it, whole or event by event. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, Struct

from chatd.engine.stream import PrefillEvent
from chatd.server import openai_response_types as wire
from chatd.server.openai_answer import Heard, dropped_turns_of, timings_of
from chatd.store.records import ResponseRecord, ResponseStatus, StoredMessage

_STATUS: dict[ResponseStatus, wire.Status] = {
    ResponseStatus.COMPLETED: "completed",
    ResponseStatus.INCOMPLETE: "incomplete",
    ResponseStatus.CANCELLED: "cancelled",
    ResponseStatus.FAILED: "failed",
}
_LAST: dict[ResponseStatus, type[wire.Lifecycle]] = {
    ResponseStatus.COMPLETED: wire.Completed,
    ResponseStatus.INCOMPLETE: wire.IncompleteEvent,
    ResponseStatus.CANCELLED: wire.Cancelled,
    ResponseStatus.FAILED: wire.Failed,
}
SECOND = 1_000_000


class _Params(Struct, frozen=True):
    """What was in force, as the ledger has it."""

    temperature: float = 1.0
    top_p: float = 1.0
    truncation: str = "disabled"


@dataclass(frozen=True, slots=True)
class Shown:
    """A response with what is known of it besides its row."""

    record: ResponseRecord
    note: wire.Note
    instructions: str | None
    text: str = ""

    def at(self, record: ResponseRecord, text: str) -> "Shown":
        """The same at a later moment."""
        return Shown(record, self.note, self.instructions, text)


def object_of(shown: Shown) -> wire.ResponseObject:
    record, note = shown.record, shown.note
    params = msgspec.json.decode(record.params_json, type=_Params)
    is_open = record.status is ResponseStatus.OPEN
    failed = record.status is ResponseStatus.FAILED
    return wire.ResponseObject(
        id=record.id,
        created_at=record.opened_at / SECOND,
        model=record.model,
        status=_status_of(shown),
        output=_output_of(shown),
        error=wire.Fault(record.error_code, record.error) if failed else None,
        incomplete_details=(
            wire.Incomplete("max_output_tokens") if record.status is ResponseStatus.INCOMPLETE else None
        ),
        instructions=shown.instructions,
        previous_response_id=note.previous_response_id,
        conversation=wire.ConversationRef(record.conversation_id) if note.conversation else None,
        metadata=note.metadata,
        max_output_tokens=note.max_output_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        truncation=params.truncation,
        background=note.background,
        store=note.store,
        usage=None if is_open else _usage_of(record),
        completed_at=(
            record.ended_at / SECOND
            if record.ended_at and record.status is ResponseStatus.COMPLETED
            else None
        ),
        timings=UNSET if is_open else timings_of(record),
        dropped_turns=dropped_turns_of(record),
    )


def _status_of(shown: Shown) -> wire.Status:
    """The text may have been read a moment after the row."""
    record = shown.record
    if record.status is ResponseStatus.OPEN:
        return "queued" if record.admitted_at is None and not shown.text else "in_progress"
    return _STATUS[record.status]


def _output_of(shown: Shown) -> tuple[wire.OutputMessage, ...]:
    """The one message; none before it has text, unless it ended well without any."""
    if not shown.text and shown.record.status is not ResponseStatus.COMPLETED:
        return ()
    return (_message_of(shown),)


def _message_of(shown: Shown) -> wire.OutputMessage:
    match shown.record.status:
        case ResponseStatus.OPEN:
            return wire.OutputMessage(
                shown.record.message_id, "in_progress", (wire.TextPart(shown.text),) if shown.text else ()
            )
        case ResponseStatus.COMPLETED:
            return wire.OutputMessage(shown.record.message_id, "completed", (wire.TextPart(shown.text),))
        case _:
            return wire.OutputMessage(shown.record.message_id, "incomplete", (wire.TextPart(shown.text),))


def _usage_of(record: ResponseRecord) -> wire.ResponseUsage:
    return wire.ResponseUsage(
        input_tokens=record.prompt_tokens,
        input_tokens_details=wire.InputTokensDetails(record.gpu_hit + record.disk_hit),
        output_tokens=record.output_tokens,
        total_tokens=record.prompt_tokens + record.output_tokens,
    )


def item_of(message: StoredMessage) -> wire.Item:
    """An earlier message, as the input of a response."""
    if message.role == "assistant":
        part = wire.ItemPart(message.text, "output_text", ())
    else:
        part = wire.ItemPart(message.text, "input_text")
    return wire.Item(message.id, message.role, (part,))


def instructions_of(path: Sequence[StoredMessage], note: wire.Note) -> str | None:
    return path[0].text if note.instructions and path and path[0].role == "system" else None


class ResponseVoice:
    """A stream of one response. Nothing is said up to ``starting_after``; ``shown`` has the text of then."""

    def __init__(self, shown: Shown, starting_after: int = -1) -> None:
        self._shown = shown
        self._after = starting_after
        self._parts = [shown.text]
        self._item = shown.record.message_id

    def opening(self) -> Iterator[bytes]:
        new = object_of(self._shown.at(self._shown.record, ""))
        second = wire.Queued if new.status == "queued" and self._shown.note.background else wire.InProgress
        yield from self._said(wire.Created(sequence_number=0, response=new))
        yield from self._said(second(sequence_number=1, response=new))
        yield from self._said(
            wire.ItemAdded(sequence_number=2, item=wire.OutputMessage(self._item, "in_progress", ()))
        )
        yield from self._said(wire.PartAdded(sequence_number=3, item_id=self._item, part=wire.TextPart("")))

    def hear(self, event: Heard) -> Iterator[bytes]:
        if isinstance(event, PrefillEvent):
            return
        self._parts.append(event.text)
        number = wire.FIRST_DELTA + event.seq - 1
        yield from self._said(wire.TextDelta(sequence_number=number, item_id=self._item, delta=event.text))

    def ending(self, record: ResponseRecord) -> Iterator[bytes]:
        shown = self._shown.at(record, "".join(self._parts))
        at, part = wire.FIRST_DELTA + record.last_seq, wire.TextPart(shown.text)
        yield from self._said(wire.TextDone(sequence_number=at, item_id=self._item, text=shown.text))
        yield from self._said(wire.PartDone(sequence_number=at + 1, item_id=self._item, part=part))
        yield from self._said(wire.ItemDone(sequence_number=at + 2, item=_message_of(shown)))
        last = _LAST[record.status]
        yield from self._said(last(sequence_number=at + 3, response=object_of(shown)))

    def _said(self, event: wire.Event) -> Iterator[bytes]:
        if event.sequence_number > self._after:
            yield event.encode()
