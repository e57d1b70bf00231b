"""Reading values out of JSON that another tool wrote: what is missing or odd is named with its place."""

from collections.abc import Mapping
from typing import Any, TypeVar

from chatd.imports.errors import WrongFile

T = TypeVar("T")

MOST_SECONDS = 253_402_300_799
"""The year 9999. Greater numbers are milliseconds."""


def want(holder: object, name: str, kind: type[T], where: str) -> T:
    """``holder[name]``, which has to be of a kind."""
    value = holder.get(name) if isinstance(holder, Mapping) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise WrongFile(
            f"{where} has no {name}" if value is None else f"{where} has a {name} of a wrong kind"
        )
    return value


def may(holder: Mapping[str, Any], name: str, kind: type[T], where: str) -> T | None:
    """As `want`, but it may be missing or null."""
    return None if holder.get(name) is None else want(holder, name, kind, where)


def moment(holder: Mapping[str, Any], name: str) -> int | None:
    """A time in Unix seconds, milliseconds or nanoseconds as microseconds; None if there is none."""
    value = holder.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e20:
        return None
    seconds = float(value)
    while seconds > MOST_SECONDS:
        seconds /= 1000
    return round(seconds * 1_000_000)
