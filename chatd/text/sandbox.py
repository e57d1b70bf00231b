"""Jinja for templates nobody has read: no way out, a price on everything, and marks on its literals.

`ImmutableSandboxedEnvironment` keeps a template from attributes it has no business with. It does not
keep it from looping for ever or from building a gigabyte, nor does it say which part of the result
the template wrote. So the syntax tree is rewritten before it is compiled:

    'text' in an expression, or template text    a `Marked` literal
    {% for x in xs %}                            {% for x in xs | each %}       one unit a turn
    {{ x }}                                      {{ x | show }}                 pays for the text
    a ~ b                                        [a, b] | concat                keeps the marks
    [a, b]   {'k': a}                            [a, b] | walked                pays for nesting
    a == b   x | f(y)   x is t(y)   x[1:]        operands | looked (or walked)  pays for reading

What the rewritten names stand for cannot be spelled in a template (`each!`). Only filters, globals and
methods whose cost these prices cover exist.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from jinja2 import TemplateError as JinjaError
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateAssertionError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from chatd.text.budget import Budget, NotShowable, OverBudget
from chatd.text.marked import Part, joined, literal, parts_of

MAX_SOURCE_LEN = 128 * 1024
_MAX_INT_BITS = 4096
_BUDGET = "budget!"

_FILTERS = frozenset(
    {"abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "int", "items", "last"}
    | {"length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "select"}
    | {"selectattr", "sort", "title", "trim", "unique", "upper"}
)
_STR_METHODS = (
    {"capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdecimal"}
    | {"isdigit", "islower", "isnumeric", "isspace", "isupper", "join", "lower", "lstrip", "partition"}
    | {"removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip"}
    | {"split", "splitlines", "startswith", "strip", "swapcase", "title", "upper"}
)
_METHODS: tuple[tuple[type, set[str]], ...] = (
    (str, _STR_METHODS),
    (dict, {"get", "items", "keys", "values"}),
    (list, {"count", "index"}),
)
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class TemplateRefusal(Exception):
    """The template called ``raise_exception``: it will not render these messages."""


class TemplateFailure(Exception):
    """The template is not valid, not allowed, fails, or costs too much. The message says which."""


class Sandbox(ImmutableSandboxedEnvironment):
    """One template's environment. `render` may be called from several threads."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, source: str, *, now: Callable[[], datetime]) -> None:
        """Raises `TemplateFailure`."""
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self.concat = joined  # type: ignore[method-assign]
        allowed = {name: FILTERS[name] for name in _FILTERS}
        self.filters = {**allowed, **_PRICED_FILTERS, **_REWRITTEN}
        self.globals = {name: self.globals[name] for name in ("range", "dict", "namespace")}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: now().strftime(form) if len(form) <= 100 else ""
        with _failures():
            self._template = self.from_string(source)

    def render(self, variables: Mapping[str, object], units: int) -> tuple[Part, ...]:
        """The result by who wrote it. Raises `TemplateRefusal` and `TemplateFailure`."""
        context = self._template.new_context({**variables, _BUDGET: Budget(units)})
        with _failures():
            return parts_of(joined(self._template.root_render_func(context)))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_SOURCE_LEN:
            raise TemplateAssertionError(f"the template is longer than {MAX_SOURCE_LEN} characters", 1)
        tree: nodes.Template = _Rewrite(self).visit(super()._parse(source, name, filename))
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, LoopContext | Macro | Namespace):
            return bool(super().is_safe_attribute(obj, attr, value))
        return any(isinstance(obj, kind) and attr in methods for kind, methods in _METHODS)

    def wrap_str_format(self, value: Any) -> None:
        """Not even the sandboxed ``str.format``: its widths cost nothing to write."""
        return

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """As Jinja's (whose odd names leave every keyword to the template), at a price."""
        budget = _budget(__context)
        for value in (*args, *kwargs.values()):
            budget.look(value)
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            budget.look(owner)
            if name in _PRICED_METHODS:
                return _PRICED_METHODS[name](__context, owner, *args, **kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, list | tuple | dict):
            budget.walk(result)
        return result

    def call_filter(
        self,
        name: str,
        value: Any,
        args: Any = None,
        kwargs: Any = None,
        context: Any = None,
        eval_ctx: Any = None,
    ) -> Any:
        _budget(context).look(value)
        return super().call_filter(name, value, args, kwargs, context, eval_ctx)

    def call_test(
        self,
        name: str,
        value: Any,
        args: Any = None,
        kwargs: Any = None,
        context: Any = None,
        eval_ctx: Any = None,
    ) -> Any:
        _budget(context).look(value)
        return super().call_test(name, value, args, kwargs, context, eval_ctx)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget(context)
        budget.look(left)
        budget.look(right)
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return joined((left, right))
        if operator == "%" and isinstance(left, str | bytes):
            raise SecurityError("chat templates may not format strings with %")
        if operator in ("*", "**"):
            _check_product(budget, operator, left, right)
        return super().call_binop(context, operator, left, right)


def render_variables(
    messages: list[dict[str, str]], bos: str, eos: str, add_generation_prompt: bool
) -> dict[str, object]:
    """What a template sees, under the names that transformers gives it.

    The names of roles are trusted: templates build control strings from them (``'<|' + role + '|>'``).
    """
    return {
        "messages": [
            {**one, "role": literal(one["role"]) if one["role"] in _ROLES else one["role"]}
            for one in messages
        ],
        "bos_token": literal(bos),
        "eos_token": literal(eos),
        "add_generation_prompt": add_generation_prompt,
        "tools": None,
        "documents": None,
    }


@contextmanager
def _failures() -> Iterator[None]:
    """Everything a faulty or hostile template can make Jinja or Python raise, as `TemplateFailure`."""
    try:
        yield
    except OverBudget:
        raise TemplateFailure("it runs too long or builds too much") from None
    except MemoryError:
        raise TemplateFailure("it uses too much memory") from None
    except RecursionError:
        raise TemplateFailure("it is nested too deeply") from None
    except NotShowable as error:
        raise TemplateFailure(f"it shows a {error}, which is no text") from None
    except (
        JinjaError,
        ArithmeticError,
        AttributeError,
        LookupError,
        SyntaxError,
        TypeError,
        ValueError,
    ) as error:
        raise TemplateFailure(f"{type(error).__name__}: {error}") from error


def _check_product(budget: Budget, operator: str, left: Any, right: Any) -> None:
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str | list | tuple):
            budget.spend(len(one) * max(other, 0) if isinstance(other, int) else 1)
            return
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MAX_INT_BITS:
            raise SecurityError("a number in the chat template grows too large")


def _budget(context: Context) -> Budget:
    budget = context.parent[_BUDGET]
    assert isinstance(budget, Budget)
    return budget


def _raise_exception(message: object = "") -> None:
    raise TemplateRefusal(str(message)[:500])


class _Generation(Extension):
    """``{% generation %}`` marks the answer in training; in serving it stands for its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Rewrite(NodeTransformer):
    """See the table at the top."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._literals = 0

    def _literal(self, text: str, at: nodes.Node) -> nodes.Expr:
        """A literal as an attribute of the environment: generated code can only spell plain ones."""
        name = f"literal_{self._literals}"
        self._literals += 1
        setattr(self._sandbox, name, literal(text))
        return nodes.EnvironmentAttribute(name, lineno=at.lineno)

    def visit_Const(self, node: nodes.Const) -> nodes.Expr:  # noqa: N802
        return self._literal(node.value, node) if isinstance(node.value, str) else node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Expr:  # noqa: N802
        return self._literal(node.data, node)

    def visit_Output(self, node: nodes.Output) -> nodes.Output:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_through("show!", one) for one in node.nodes]
        return node

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _through("each!", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _through("concat!", nodes.List(node.nodes, lineno=node.lineno))

    def _container(self, node: nodes.List | nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        return _through("walked!", node)

    visit_List = visit_Dict = _container  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _through("walked!", node) if node.ctx == "load" else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = _through("walked!", node.expr)
        for operand in node.ops:
            operand.expr = _through("walked!", operand.expr)
        return node

    def _filter(self, node: nodes.Filter | nodes.Test) -> nodes.Expr:
        self.generic_visit(node)
        if node.node is not None:  # None: the filter of a block
            node.node = _through("looked!", node.node)
        node.args = [_through("looked!", one) for one in node.args]
        return node

    visit_Filter = visit_Test = _filter  # noqa: N815

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:  # noqa: N802
        node.node = self.visit(node.node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _through("looked!", node.node)
        elif not isinstance(node.arg, nodes.Const):
            node.arg = self.visit(node.arg)
        return node

    def _forbidden(self, node: nodes.Node) -> nodes.Node:
        kind = type(node).__name__
        raise TemplateAssertionError(f"chat templates may not use {kind}", node.lineno)

    visit_Include = visit_Import = visit_FromImport = visit_Extends = _forbidden  # noqa: N815
    visit_EvalContextModifier = visit_ScopedEvalContextModifier = _forbidden  # noqa: N815


def _through(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


# A filter that takes the context is never folded into a constant while the template is compiled.


@pass_context
def _each(context: Context, values: Any) -> Iterator[Any]:
    return _budget(context).each(values)


@pass_context
def _looked(context: Context, value: Any) -> Any:
    _budget(context).look(value)
    return value


@pass_context
def _walked(context: Context, value: Any) -> Any:
    if isinstance(value, list | tuple | dict):
        _budget(context).walk(value)
    else:
        _budget(context).look(value)
    return value


@pass_context
def _show(context: Context, value: Any) -> str:
    _budget(context).walk(value)
    return str(value)


@pass_context
def _concat(context: Context, values: list[Any]) -> str:
    return joined([_show(context, value) for value in values])


@pass_context
def _join(context: Context, value: Any, d: str = "", attribute: Any = None) -> str:
    budget = _budget(context)
    get = (lambda one: one) if attribute is None else make_attrgetter(context.environment, attribute)
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
    _budget(context).spend(1 + (len(text) + times * len(new) >> 4))
    return text.replace(old, new, count)


@pass_context
def _indent(context: Context, s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = _show(context, s)
    if (width if isinstance(width, int) else len(width)) > 64:
        raise SecurityError("chat templates may indent by 64 characters at most")
    _budget(context).spend(1 + 4 * text.count("\n"))
    indent: Callable[..., str] = FILTERS["indent"]
    return indent(text, width, first, blank)


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    budget = _budget(context)
    budget.walk(value)
    budget.walk(value)
    if indent is not None and (not isinstance(indent, int) or indent > 16):
        raise SecurityError("chat templates may indent JSON by 16 characters at most")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _same(value: Any) -> Any:
    return value


_REWRITTEN: dict[str, Callable[..., Any]] = {
    "each!": _each,
    "looked!": _looked,
    "walked!": _walked,
    "show!": _show,
    "concat!": _concat,
}
_PRICED_FILTERS: dict[str, Callable[..., Any]] = {
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "safe": _same,
    "string": _show,
    "tojson": _tojson,
}
_PRICED_METHODS: dict[str, Callable[..., Any]] = {
    "replace": _replace,
    "join": lambda context, sep, values: _join(context, values, sep),
}
