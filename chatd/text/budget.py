"""What one rendering may cost, in units of about a microsecond.

Every loop turn, call, operator, filter and literal spends at least one; text one for 16 characters, a
list one for 4 entries. What walks into nested values pays for everything below them, every time: an
exponential nest of one list costs as much as if it were written out.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from jinja2 import Undefined

T = TypeVar("T")
_PLAIN = (str, int, float, type(None), Undefined)


class OverBudget(Exception):
    """The template wanted more than its budget."""


class NotShowable(Exception):
    """A value that has no business in a prompt (a function, a namespace)."""


class Budget:
    def __init__(self, units: int) -> None:
        self._left = units

    def spend(self, units: int) -> None:
        self._left -= units
        if self._left < 0:
            raise OverBudget

    def look(self, value: object) -> None:
        """Pay for an operation that reads this value but not what its entries hold."""
        if isinstance(value, str):
            self.spend(1 + (len(value) >> 4))
        elif isinstance(value, list | tuple | dict | range):
            self.spend(1 + (len(value) >> 2))
        else:
            self.spend(1)

    def walk(self, value: object) -> None:
        """Pay for an operation that reads all of this value. Raises `NotShowable` for odd ones."""
        rest = [value]
        while rest:
            one = rest.pop()
            self.look(one)
            if isinstance(one, dict):
                rest.extend(one)
                rest.extend(one.values())
            elif isinstance(one, list | tuple):
                rest.extend(one)
            elif not isinstance(one, _PLAIN):
                raise NotShowable(type(one).__name__)

    def each(self, values: Iterable[T]) -> Iterator[T]:
        for value in values:
            self.spend(1)
            yield value
