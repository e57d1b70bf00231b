"""README's tables of the wire, made from the code they describe."""

import inspect
from collections.abc import Iterable
from typing import get_args

from msgspec import NODEFAULT, Struct, structs

from chatd import errors
from chatd.server import protocol, xray
from chatd.store.errors import StoreFailure

NOT_ON_THE_WIRE = errors.SetupError
"""Printed by the command line before there is a wire."""


def error_classes() -> list[type[errors.ChatdError]]:
    """Every error a client can meet, by the order of the code that defines them."""
    found = [*(value for value in vars(errors).values() if inspect.isclass(value)), StoreFailure]
    return [
        error
        for error in found
        if issubclass(error, errors.ChatdError) and not issubclass(error, NOT_ON_THE_WIRE)
    ]


def markdown() -> str:
    """The tables of events, causes, error codes and close codes."""
    return "\n".join(
        [
            "#### Client events",
            "",
            *_events(get_args(protocol.ClientEvent)),
            "",
            "#### Server events",
            "",
            *_events(get_args(protocol.ServerEvent)),
            "",
            "#### Why the first computed token was a miss",
            "",
            *_table(("cause", "that token"), ((f"`{c}`", m) for c, m in xray.MEANINGS.items())),
            "",
            "#### Error codes",
            "",
            *_table(("code", "HTTP", "retry", "meaning"), map(_error_row, error_classes())),
            "",
            "#### Close codes",
            "",
            *_table(("code", "meaning"), ((str(int(c)), m) for c, m in protocol.CLOSE_MEANINGS.items())),
            "",
        ]
    )


def _events(types: Iterable[type[Struct]]) -> list[str]:
    return _table(("type", "fields", "meaning"), map(_event_row, types))


def _event_row(event: type[Struct]) -> tuple[str, str, str]:
    fields = [
        f"{item.encode_name}{'' if item.required else '?'}"
        for item in structs.fields(event)
        if item.default is NODEFAULT or not item.required
    ]
    return f"`{event.__struct_config__.tag}`", ", ".join(f"`{name}`" for name in fields), _first(event)


def _error_row(error: type[errors.ChatdError]) -> tuple[str, str, str, str]:
    return f"`{error.code}`", str(error.http_status), "yes" if error.retryable else "no", _first(error)


def _first(documented: type) -> str:
    """The first paragraph of the docstring, on one line."""
    return " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split()).replace("``", "`")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
