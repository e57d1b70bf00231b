"""The filters a chat template may use, at their price (`Budget`)."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context

from chatd.text.budget import Budget
from chatd.text.marked import joined

BUDGET = "budget!"
"""Where a rendering's budget is found among its variables. No template can spell it."""


def budget_of(context: Context) -> Budget:
    budget = context.parent[BUDGET]
    assert isinstance(budget, Budget)
    return budget


# A filter that takes the context is never folded into a constant while the template is compiled.


@pass_context
def _each(context: Context, values: Any) -> Iterator[Any]:
    return budget_of(context).each(values)


@pass_context
def _looked(context: Context, value: Any) -> Any:
    budget_of(context).look(value)
    return value


@pass_context
def _walked(context: Context, value: Any) -> Any:
    if isinstance(value, list | tuple | dict):
        budget_of(context).walk(value)
    else:
        budget_of(context).look(value)
    return value


@pass_context
def _show(context: Context, value: Any) -> str:
    budget_of(context).walk(value)
    return str(value)


@pass_context
def _concat(context: Context, values: list[Any]) -> str:
    return joined([_show(context, value) for value in values])


@pass_context
def _join(context: Context, value: Any, d: str = "", attribute: Any = None) -> str:
    budget = budget_of(context)
    get: Callable[[Any], Any] = _same
    if attribute is not None:
        get = make_attrgetter(context.environment, attribute)
    texts: list[str] = []
    for one in budget.each(value):
        if texts and d:
            texts.append(_show(context, d))
        texts.append(_show(context, get(one)))
    return joined(texts)


@pass_context
def _replace(context: Context, s: Any, old: str, new: str, count: int = -1) -> str:
    text = _show(context, s)
    times = text.count(old) if count < 0 else min(text.count(old), count)
    budget_of(context).spend(1 + (len(text) + times * len(new) >> 4))
    return text.replace(old, new, count)


@pass_context
def _indent(context: Context, s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = _show(context, s)
    if (width if isinstance(width, int) else len(width)) > 64:
        raise SecurityError("chat templates may indent by 64 characters at most")
    budget_of(context).spend(1 + 4 * text.count("\n"))
    indent = width if isinstance(width, str) else " " * width
    lines = enumerate(text.splitlines(keepends=True))
    return "".join(
        [indent + one if (number or first) and (blank or one.strip("\r\n")) else one for number, one in lines]
    )


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    budget = budget_of(context)
    budget.walk(value)
    budget.walk(value)
    if indent is not None and (not isinstance(indent, int) or indent > 16):
        raise SecurityError("chat templates may indent JSON by 16 characters at most")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _same(value: Any) -> Any:
    return value


PLAIN = frozenset(
    {"abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "int", "items", "last"}
    | {"length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "select"}
    | {"selectattr", "sort", "title", "trim", "unique", "upper"}
)
"""Jinja's own, whose cost and result are bounded by what they are given (`looked!`)."""

REWRITTEN: dict[str, Callable[..., Any]] = {
    "each!": _each,
    "looked!": _looked,
    "walked!": _walked,
    "show!": _show,
    "concat!": _concat,
}
PRICED: dict[str, Callable[..., Any]] = {
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "safe": _same,
    "string": _show,
    "tojson": _tojson,
}
METHODS: dict[str, Callable[..., Any]] = {
    "replace": _replace,
    "join": lambda context, sep, values: _join(context, values, sep),
}
"""Methods of strings, called as (context, string, arguments)."""
