"""Rewrites a template's syntax tree so that everything it does has a price and its literals a mark.

    'text' in an expression, or template text    a `Marked` literal
    {% for x in xs %}                            {% for x in xs | each %}       one unit a turn
    {{ x }}                                      {{ x | show }}                 pays for the text
    a ~ b                                        [a, b] | concat                keeps the marks
    [a, b]   {'k': a}                            [a, b] | walked                pays for nesting
    a == b   x | f(y)   x is t(y)   x[1:]        operands | looked (or walked)  pays for reading

What the rewritten names stand for cannot be spelled in a template (`each!`).
"""

from collections.abc import Callable
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateAssertionError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer


class Generation(Extension):
    """``{% generation %}`` marks the answer in training; in serving it stands for its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Rewrite(NodeTransformer):
    """See the table above."""

    def __init__(self, add_literal: Callable[[str], str]) -> None:
        """``add_literal`` keeps a string as an attribute of the environment and returns its name."""
        self._add_literal = add_literal

    def _literal(self, text: str, at: nodes.Node) -> nodes.Expr:
        return nodes.EnvironmentAttribute(self._add_literal(text), lineno=at.lineno)

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
