"""Logs on standard error: for people on a terminal, JSON lines elsewhere.

Nothing that a user wrote or a model answered, no token ids and no secret ever goes into a log. Code
must not log them; should it try under one of the usual names, the value is replaced here.
"""

import logging
import sys
from asyncio import CancelledError
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO

import structlog

PRIVATE = frozenset(
    {
        *(
            "answer",
            "content",
            "delta",
            "input",
            "message_text",
            "messages",
            "prompt",
            "system",
            "text",
            "title",
        ),
        *("ids", "prompt_ids", "token_ids", "stop", "params", "body", "frame"),
        *("api_key", "authorization", "cookie", "key", "password", "secret", "ticket", "token"),
    }
)
"""Names of values that stay out of logs, on every level of nesting."""

HIDDEN = "[hidden]"

TALKATIVE = ("alembic", "uvicorn", "websockets")
"""Libraries whose every step is news to them: their warnings are enough."""


def hide_private(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace private values. The event's own words and the exception stay."""
    return {
        name: HIDDEN if name.lower() in PRIVATE else _hidden_inside(value) for name, value in event.items()
    }


def _hidden_inside(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: HIDDEN if str(k).lower() in PRIVATE else _hidden_inside(v) for k, v in value.items()}
    return value


def is_news(record: logging.LogRecord) -> bool:
    """False for a task that was cancelled: uvicorn logs what it ends itself at shutdown as a fault."""
    return record.exc_info is None or not isinstance(record.exc_info[1], CancelledError)


def configure_logs(*, as_json: bool, level: str = "info", stream: TextIO | None = None) -> None:
    """Send structlog's and the standard library's records, from ``level`` on, through one handler.

    Call once a process.
    """
    out = stream or sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso" if as_json else "%H:%M:%S", utc=as_json),
        hide_private,
    ]
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=_rendering(as_json, out))
    )
    handler.addFilter(is_news)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _rendering(as_json: bool, out: TextIO) -> list[structlog.typing.Processor]:
    """Tracebacks are plain: the richer ones print local variables, and with them prompts."""
    if as_json:
        last: list[structlog.typing.Processor] = [
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(ensure_ascii=False),
        ]
    else:
        last = [
            structlog.dev.ConsoleRenderer(
                colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
            )
        ]
    return [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
