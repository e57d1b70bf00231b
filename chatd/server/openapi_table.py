"""What each route takes and gives, for `openapi`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chatd.server import (
    admin_api,
    health,
    keys_api,
    login_api,
    metrics,
    native_api,
    openai_api,
    openai_completions,
    openai_responses,
    reports_api,
    views,
)
from chatd.server import openai_completions as completions
from chatd.server import openai_response_types as responses
from chatd.server import openai_types as chat
from chatd.server import openapi_answers as answers
from chatd.store.reports import MAX_PAGE

Errors = Mapping[str, str]

REFUSED: Errors = {"4XX": "Refused; the error says why."}
NEEDS_MODEL: Errors = {
    **REFUSED,
    "503": "The model is loading, too much is waiting, or the server stops: try again after `Retry-After`.",
}
ANSWERS: Errors = {**NEEDS_MODEL, "500": "The engine could not go on with this request."}


@dataclass(frozen=True, slots=True)
class Query:
    name: str
    schema: Mapping[str, Any]
    words: str


@dataclass(frozen=True, slots=True)
class Operation:
    """Types of the body, of the answer in JSON, and of the events of a stream.

    ``done``: the stream's last event is ``[DONE]``. ``media``: what else than JSON it may answer.
    """

    takes: Any = None
    gives: Any = None
    events: Any = None
    done: bool = False
    media: str = "application/json"
    statuses: tuple[str, ...] = ("200",)
    errors: Errors = field(default_factory=lambda: NEEDS_MODEL)
    query: tuple[Query, ...] = ()


UNKNOWN = Operation(statuses=("2XX",))
"""A route that nobody has described here."""


def _whole(name: str, low: int, high: int, words: str) -> Query:
    return Query(name, {"type": "integer", "minimum": low, "maximum": high}, words)


def _text(name: str, words: str) -> Query:
    return Query(name, {"type": "string"}, words)


_SCOPE = (
    Query("since", {"type": "string", "format": "date"}, "The first day, in UTC."),
    Query("until", {"type": "string", "format": "date"}, "The last day, inside."),
    _text("model", "Of this model only."),
    _text("session", "Of this conversation only."),
)
_PRICES = (
    _text("reprice", "At the prices of a book that comes with chatd."),
    _text("what_if", "As if a price were another, such as `disk_hit=0.05`."),
)
_FORM = Query("format", {"type": "string", "enum": ["json", "csv"]}, "All lines as a file instead of a page.")
_VIEW = (
    _whole("limit", 1, MAX_PAGE, "Lines a page."),
    _text("after", "The `next` of the page before."),
    *_PRICES,
)
_PAGE = (
    _whole("limit", 1, native_api.MOST_LISTED, "Conversations a page."),
    _text("before", "The `next` of the page before."),
)
_TAKE_UP = (
    Query("stream", {"type": "string", "enum": ["true", "false"]}, "Events instead of the response."),
    _whole("starting_after", 0, 2**53, "The last sequence number that is there already."),
)
_ITEMS = (
    Query("order", {"type": "string", "enum": ["asc", "desc"]}, "The oldest or the newest first."),
    _whole("limit", 1, openai_responses.MAX_ITEMS, "Items a page."),
    _text("after", "The id of the last item of the page before."),
)

ResponseEvents = (
    responses.Created
    | responses.Queued
    | responses.InProgress
    | responses.ItemAdded
    | responses.PartAdded
    | responses.TextDelta
    | responses.TextDone
    | responses.PartDone
    | responses.ItemDone
    | responses.Completed
    | responses.IncompleteEvent
    | responses.Failed
    | responses.Cancelled
)

TABLE: Mapping[Callable[..., Any], Operation] = {
    health.healthz: Operation(gives=answers.Health, errors=REFUSED),
    health.readyz: Operation(gives=answers.Ready, statuses=("200", "503"), errors=REFUSED),
    metrics.metrics: Operation(media="text/plain", errors=REFUSED),
    native_api.list_conversations: Operation(gives=answers.ConversationList, errors=REFUSED, query=_PAGE),
    native_api.create_conversation: Operation(
        takes=native_api.NewConversation, gives=views.ConversationBrief, statuses=("201",), errors=REFUSED
    ),
    native_api.read_conversation: Operation(gives=views.ConversationFull, errors=REFUSED),
    native_api.change_conversation: Operation(
        takes=native_api.ConversationPatch, gives=views.ConversationBrief, errors=REFUSED
    ),
    native_api.delete_conversation: Operation(statuses=("204",)),
    native_api.warm_conversation: Operation(gives=answers.Accepted, statuses=("202",)),
    native_api.estimate: Operation(takes=native_api.EstimateBody, gives=answers.Estimated),
    native_api.read_response: Operation(gives=views.ResponseFull, errors=REFUSED),
    native_api.report: Operation(
        gives=answers.SessionsReport,
        errors=REFUSED,
        query=(_whole("limit", 1, native_api.MOST_LISTED, "Sessions at most."),),
    ),
    native_api.verify: Operation(gives=answers.Verdict, errors=REFUSED),
    native_api.status: Operation(gives=answers.Status, errors=REFUSED),
    reports_api.report: Operation(
        gives=answers.UsageReport, media="text/csv", errors=REFUSED, query=(*_SCOPE, *_VIEW, _FORM)
    ),
    reports_api.storage: Operation(
        gives=answers.StorageReport, media="text/csv", errors=REFUSED, query=(*_SCOPE, *_PRICES, _FORM)
    ),
    login_api.log_in: Operation(takes=login_api.LoginBody, gives=answers.Session, errors=REFUSED),
    login_api.log_out: Operation(statuses=("204",), errors=REFUSED),
    login_api.session: Operation(gives=answers.Session, errors=REFUSED),
    login_api.ticket: Operation(
        takes=login_api.TicketBody, gives=answers.Ticket, statuses=("201",), errors=REFUSED
    ),
    keys_api.listing: Operation(gives=answers.KeyList, errors=REFUSED),
    keys_api.create: Operation(takes=keys_api.KeyBody, gives=answers.Key, statuses=("201",), errors=REFUSED),
    keys_api.revoke: Operation(gives=answers.Key, errors=REFUSED),
    keys_api.login: Operation(
        takes=keys_api.LoginBody, gives=answers.LoginToken, statuses=("201",), errors=REFUSED
    ),
    admin_api.stats: Operation(gives=dict[str, Any]),
    admin_api.listing: Operation(
        gives=dict[str, Any], query=(_whole("limit", 1, admin_api.MOST_LISTED, "Paths at most."),)
    ),
    admin_api.pins: Operation(gives=dict[str, Any]),
    admin_api.clear: Operation(takes=admin_api.ClearBody, gives=dict[str, int]),
    admin_api.pin: Operation(takes=admin_api.PinBody, gives=dict[str, Any], statuses=("201",)),
    admin_api.unpin: Operation(statuses=("204",)),
    admin_api.verify: Operation(media="application/x-ndjson"),
    openai_api.chat_completions: Operation(
        takes=chat.ChatRequest, gives=chat.Completion, events=chat.Chunk, done=True, errors=ANSWERS
    ),
    openai_api.count_chat_tokens: Operation(takes=chat.ChatRequest, gives=chat.InputTokens),
    openai_api.list_models: Operation(gives=chat.ModelList),
    openai_api.get_model: Operation(gives=chat.Model),
    openai_completions.completions: Operation(
        takes=completions.CompletionRequest,
        gives=completions.TextCompletion,
        events=completions.TextCompletion,
        done=True,
        errors=ANSWERS,
    ),
    openai_responses.create: Operation(
        takes=responses.ResponseRequest, gives=responses.ResponseObject, events=ResponseEvents
    ),
    openai_responses.count_tokens: Operation(takes=responses.ResponseRequest, gives=chat.InputTokens),
    openai_responses.retrieve: Operation(
        gives=responses.ResponseObject, events=ResponseEvents, query=_TAKE_UP
    ),
    openai_responses.delete: Operation(gives=responses.Deleted),
    openai_responses.cancel: Operation(gives=responses.ResponseObject),
    openai_responses.input_items: Operation(gives=responses.ItemList, query=_ITEMS),
}
"""By endpoint."""
