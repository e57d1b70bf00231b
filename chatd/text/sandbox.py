"""Jinja for templates nobody has read: no way out, a price on everything, and marks on its literals.

`ImmutableSandboxedEnvironment` keeps a template from attributes it has no business with. It does not
keep it from looping for ever or from building a gigabyte, nor does it say which part of the result
the template wrote: that is `template_rewrite`. Only filters, globals and methods exist whose cost is
bounded by their price.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from jinja2 import TemplateError as JinjaError
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateAssertionError
from jinja2.ext import loopcontrols
from jinja2.filters import FILTERS
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from chatd.text import template_filters
from chatd.text.budget import Budget, NotShowable, OverBudget
from chatd.text.marked import Part, joined, literal, parts_of
from chatd.text.template_filters import BUDGET, budget_of
from chatd.text.template_rewrite import Generation, Rewrite

MAX_SOURCE_LEN = 128 * 1024
_MAX_INT_BITS = 4096
_FAULTS = (JinjaError, ArithmeticError, AttributeError, LookupError, SyntaxError, TypeError, ValueError)

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
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
        self.concat = joined  # type: ignore[method-assign]
        plain = {name: FILTERS[name] for name in template_filters.PLAIN}
        self.filters = {**plain, **template_filters.PRICED, **template_filters.REWRITTEN}
        self.globals = {name: self.globals[name] for name in ("range", "dict", "namespace")}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: now().strftime(form) if len(form) <= 100 else ""
        self._literals = 0
        with _failures():
            self._template = self.from_string(source)

    def render(self, variables: Mapping[str, object], units: int) -> tuple[Part, ...]:
        """The result by who wrote it. Raises `TemplateRefusal` and `TemplateFailure`."""
        context = self._template.new_context({**variables, BUDGET: Budget(units)})
        with _failures():
            return parts_of(joined(self._template.root_render_func(context)))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_SOURCE_LEN:
            raise TemplateAssertionError(f"the template is longer than {MAX_SOURCE_LEN} characters", 1)
        tree: nodes.Template = Rewrite(self._add_literal).visit(super()._parse(source, name, filename))
        return tree

    def _add_literal(self, text: str) -> str:
        name = f"literal_{self._literals}"
        self._literals += 1
        setattr(self, name, literal(text))
        return name

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, LoopContext | Macro | Namespace):
            return bool(super().is_safe_attribute(obj, attr, value))
        return any(isinstance(obj, kind) and attr in methods for kind, methods in _METHODS)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"chat templates may not use {attribute!r} of a {type(obj).__name__}")

    def wrap_str_format(self, value: Any) -> None:
        """Not even the sandboxed ``str.format``: its widths cost nothing to write."""
        return

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """As Jinja's (whose odd names leave every keyword to the template), at a price."""
        budget = budget_of(__context)
        budget.spend(4)
        for value in (*args, *kwargs.values()):
            budget.look(value)
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            budget.look(owner)
            if name in template_filters.METHODS:
                return template_filters.METHODS[name](__context, owner, *args, **kwargs)
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
        budget_of(context).look(value)
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
        budget_of(context).look(value)
        return super().call_test(name, value, args, kwargs, context, eval_ctx)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = budget_of(context)
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
        "messages": [{**one, "role": _role(one["role"])} for one in messages],
        "bos_token": literal(bos),
        "eos_token": literal(eos),
        "add_generation_prompt": add_generation_prompt,
        "tools": None,
        "documents": None,
    }


def _role(name: str) -> str:
    return literal(name) if name in _ROLES else name


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
    except _FAULTS as error:
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


def _raise_exception(message: object = "") -> None:
    raise TemplateRefusal(str(message)[:500])
