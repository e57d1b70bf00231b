"""Charts out of characters, for figures on a terminal. Pure."""

from collections.abc import Sequence
from itertools import pairwise

LEVELS = " ▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉"


def sparkline(values: Sequence[float], width: int) -> str:
    """A column for each value, or for several if there are more than ``width``; 0 is at the bottom."""
    columns = averaged(values, width)
    most = max(columns, default=0.0)
    if most <= 0:
        return " " * len(columns)
    top = len(LEVELS) - 1
    return "".join(LEVELS[min(top, max(int(value > 0), round(top * value / most)))] for value in columns)


def averaged(values: Sequence[float], width: int) -> list[float]:
    """At most ``width`` values: each the mean of its part."""
    if len(values) <= width:
        return list(values)
    edges = [round(at * len(values) / width) for at in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def bar(value: float, most: float, width: int) -> str:
    """``width`` columns for ``most``, to the eighth of a column; at least the thinnest for what is not 0."""
    if most <= 0 or value <= 0:
        return ""
    eighths = max(1, round(8 * width * min(1.0, value / most)))
    return "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")
