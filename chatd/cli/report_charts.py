"""Charts as inline SVG: bars and lines over days. Pure: numbers in, text out; the page has the colours."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 960, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 12, 26
NAME_WIDTH = 84
"""Room for the name of a day, with a gap."""
LINES = 4
"""Most lines of the grid, the base left out."""

Written = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Series:
    """``values`` has one for each day, None where there is none. ``style`` is a class: s1, s2, s3."""

    name: str
    style: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """``days`` are labels in their order. ``written`` makes a text of a value, of the axis and of hints."""

    title: str
    days: Sequence[str]
    series: Sequence[Series]
    written: Written

    def stacked_bars(self) -> str:
        """The values of a day on top of each other."""
        sums = [sum(one.values[at] or 0 for one in self.series) for at in range(len(self.days))]
        frame = _Frame(self, max(sums, default=0))
        return frame.svg("".join(self._bar(frame, at, sums[at]) for at in range(len(self.days)) if sums[at]))

    def beside_bars(self) -> str:
        """The values of a day beside each other."""
        frame = _Frame(self, _most(self.series))
        step = frame.step / len(self.series)
        drawn = []
        for at in range(len(self.days)):
            for number, one in enumerate(self.series):
                if value := one.values[at]:
                    x = frame.x(at) + number * step
                    drawn.append(_rect(x, frame.y(value), step * 0.86, frame.height(value), one.style))
            drawn.append(frame.hint(at))
        return frame.svg("".join(drawn))

    def lines(self, most: float | None = None) -> str:
        """A line for each series, broken where a day has no value."""
        frame = _Frame(self, _most(self.series) if most is None else most)
        drawn = [self._line(frame, one) for one in self.series]
        return frame.svg("".join(drawn) + "".join(frame.hint(at) for at in range(len(self.days))))

    def _bar(self, frame: "_Frame", at: int, whole: float) -> str:
        drawn, below = [], 0.0
        for one in self.series:
            value = one.values[at] or 0
            if value:
                top = frame.y(below + value)
                drawn.append(_rect(frame.x(at), top, frame.step * 0.86, frame.height(value), one.style))
            below += value
        return "".join(drawn) + frame.hint(at)

    def _line(self, frame: "_Frame", one: Series) -> str:
        parts, dots, pen = [], [], "M"
        for at, value in enumerate(one.values):
            if value is None:
                pen = "M"
                continue
            x, y = frame.x(at) + frame.step / 2, frame.y(value)
            parts.append(f"{pen}{x:.1f} {y:.1f}")
            dots.append(f'<circle class="{one.style}" cx="{x:.1f}" cy="{y:.1f}" r="{frame.dot}"/>')
            pen = "L"
        return f'<path class="line {one.style}" d="{"".join(parts)}"/>{"".join(dots)}'


class _Frame:
    """Where things are: the axis from 0 to a round number, a column for each day."""

    def __init__(self, chart: Chart, most: float) -> None:
        self._chart = chart
        self._top, self._tick = _round_axis(most)
        self.step = (WIDTH - LEFT - RIGHT) / max(1, len(chart.days))
        self.dot = f"{min(3.0, max(1.2, self.step / 6)):.1f}"

    def x(self, at: int) -> float:
        return LEFT + at * self.step

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - self.height(value)

    def height(self, value: float) -> float:
        return (HEIGHT - TOP - BOTTOM) * value / self._top

    def hint(self, at: int) -> str:
        """What a pointer over the day is told."""
        chart = self._chart
        said = [
            f"{one.name}: {chart.written(value)}"
            for one in chart.series
            if (value := one.values[at]) is not None
        ]
        if not said:
            return ""
        text = escape("\n".join([chart.days[at], *said]))
        area = f'x="{self.x(at):.1f}" y="{TOP}" width="{self.step:.1f}" height="{HEIGHT - TOP - BOTTOM}"'
        return f'<rect class="hint" {area}><title>{text}</title></rect>'

    def svg(self, drawn: str) -> str:
        label = escape(self._chart.title, quote=True)
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
            f"{self._grid()}{self._days()}{drawn}</svg>"
        )

    def _grid(self) -> str:
        lines, value = [], 0.0
        while value <= self._top * 1.0001:
            y, style = self.y(value), "grid" if value else "base"
            lines.append(
                f'<line class="{style}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            words = escape(self._chart.written(value))
            lines.append(
                f'<text class="axis" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{words}</text>'
            )
            value += self._tick
        return "".join(lines)

    def _days(self) -> str:
        """As many days are named as there is room for."""
        days = self._chart.days
        every = max(1, -(-len(days) * NAME_WIDTH // (WIDTH - LEFT - RIGHT)))
        room = WIDTH - NAME_WIDTH
        named = [at for at in range(0, len(days), every) if self.x(at) <= room] or [0]
        return "".join(
            f'<text class="axis" x="{min(self.x(at), room):.1f}" y="{HEIGHT - 8}">{days[at]}</text>'
            for at in named
            if days
        )


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.4):.1f}" height="{max(height, 0.5):.1f}"'
    return f'<rect class="{style}" {place}/>'


def _most(series: Sequence[Series]) -> float:
    return max((value or 0 for one in series for value in one.values), default=0)


def _round_axis(most: float) -> tuple[float, float]:
    """The axis's end and the step of its grid, so that both are easy to read."""
    if most <= 0:
        return 1.0, 1.0
    step = 1.0
    while step * LINES < most:
        step *= 10
    while step * LINES / 10 >= most:
        step /= 10
    tick = next(part * step for part in (0.1, 0.2, 0.25, 0.5, 1.0) if part * step * LINES >= most)
    lines = -(-most // tick)
    return max(1.0, lines) * tick, tick
