"""A report as one HTML file: no script, nothing loaded, light and dark, and fit to print."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

from chatd.cli.money import short
from chatd.cli.report_charts import Chart, Series
from chatd.cli.report_style import STYLE
from chatd.cli.report_view import HEADINGS, NAMES, Heading, figure, names_of, storage_lines
from chatd.store.days import day_number, day_of
from chatd.store.usage import By

Row = dict[str, Any]
MOST_DAYS = 400
"""The newest days that charts show."""
MOST_COLUMNS = 100
NANO = 10**9


def page_html(main: Row, days: Row, models: Row, heading: Heading, now: float) -> str:
    """``main`` is what was asked for, ``days`` and ``models`` the same turns by day and by model."""
    made = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M UTC")
    about = "".join(f"<p class=note>{escape(line)}</p>" for line in heading.lines())
    by = By(main["by"])
    tables = [(f"By {by}", main)]
    if by is not By.MODEL:
        tables.append(("By model", models))
    body = [
        f"<h1>chatd report</h1><p class=note>Made {made}.</p>{about}",
        *(_cards(total) for total in main["totals"]),
        *_charts(days),
        *(_table(title, report, now) for title, report in tables if report["totals"]),
        *(f"<p class=note>{escape(line)}</p>" for line in storage_lines(main.get("storage", []))),
        f"<footer>{FOOTER}</footer>",
    ]
    if not main["totals"]:
        body[1:] = [f"<p>{escape(heading.nothing())}</p>"]
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>chatd report, {made}</title><style>{STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


FOOTER = (
    "Counts are tokens. A turn is a hit if at least half of its prompt was reused. Times are good within "
    "5 %. Time saved estimates what computing the reused tokens would have taken, from how the time to the "
    "first token grows with the tokens that are computed. "
    "Days are UTC."
)


def _cards(total: Row) -> str:
    money = [
        ("cost", _money(total["cost_nano"], total)),
        ("without the cache", _money(total["without_cache_nano"], total)),
        ("saved", _money(total["saved_nano"], total)),
    ]
    cards = [
        ("turns", f"{total['turns']:,}"),
        ("prompt tokens reused", figure("hit_rate", total)),
        *money,
        ("time saved", figure("saved_s", total)),
        ("first token, hit", figure("ttft_hit_p50_ms", total)),
        ("first token, miss", figure("ttft_miss_p50_ms", total)),
    ]
    inner = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in cards)
    return f"<dl class=cards>{inner}</dl>"


def _money(nano: int | None, row: Row) -> str:
    return "n/a" if nano is None else f"{short(nano)} {row['currency']}"


# --- charts ---


@dataclass(frozen=True, slots=True)
class _Span:
    """Every stretch of ``step`` days that charts show, named by its first day, those without a turn too."""

    step: int
    names: Sequence[str]
    _first: int

    @property
    def unit(self) -> str:
        return "day" if self.step == 1 else "week"

    def sums(self, rows: Sequence[Row], field: str) -> list[float | None]:
        """Over days and currencies; None where nothing has a value."""
        found: list[float | None] = [None] * len(self.names)
        for row in rows:
            at = (day_number(row["day"]) - self._first) // self.step
            if at >= 0 and row[field] is not None:
                found[at] = (found[at] or 0) + row[field]
        return found


def _span(rows: Sequence[Row], *, most_columns: int) -> _Span:
    """Weeks where days would be too many columns."""
    last = day_number(rows[-1]["day"])
    first = max(day_number(rows[0]["day"]), last - MOST_DAYS + 1)
    step = 1 if last - first < most_columns else 7
    return _Span(step, [day_of(day) for day in range(first, last + 1, step)], first)


def _charts(days: Row) -> list[str]:
    rows: list[Row] = list(reversed(days["rows"]))
    if not rows:
        return []
    span = _span(rows, most_columns=MOST_COLUMNS)
    currencies = sorted({row["currency"] for row in rows})
    costs = [_cost(span, [row for row in rows if row["currency"] == one], one) for one in currencies]
    return [_tokens(span, rows), *costs, _share(span, rows), _speed(rows)]


def _tokens(span: _Span, rows: Sequence[Row]) -> str:
    kinds = (("from GPU", "s1", "gpu_hit"), ("from disk", "s2", "disk_hit"), ("computed", "s3", "computed"))
    series = [Series(name, style, span.sums(rows, field)) for name, style, field in kinds]
    chart = Chart(f"Prompt tokens by {span.unit}", span.names, series, _count)
    return _figure_of(chart, chart.stacked_bars())


def _cost(span: _Span, rows: Sequence[Row], currency: str) -> str:
    kinds = (("cost", "s1", "cost_nano"), ("without the cache", "s3", "without_cache_nano"))
    series = [
        Series(name, style, [None if nano is None else nano / NANO for nano in span.sums(rows, field)])
        for name, style, field in kinds
    ]
    chart = Chart(f"Cost by {span.unit}, {currency}", span.names, series, lambda value: f"{value:.4g}")
    return _figure_of(chart, chart.beside_bars())


def _share(span: _Span, rows: Sequence[Row]) -> str:
    prompt, gpu, disk = (span.sums(rows, name) for name in ("prompt_tokens", "gpu_hit", "disk_hit"))
    shares = [
        100 * ((a or 0) + (b or 0)) / whole if whole else None
        for whole, a, b in zip(prompt, gpu, disk, strict=True)
    ]
    series = [Series("reused", "s1", shares)]
    chart = Chart(
        f"Share of prompt tokens reused, by {span.unit}", span.names, series, lambda v: f"{v:.0f} %"
    )
    return _figure_of(chart, chart.lines(most=100))


def _speed(rows: Sequence[Row]) -> str:
    """By day: medians do not add up to a week's."""
    span = _span(rows, most_columns=MOST_DAYS)
    kinds = (("hit", "s1", "ttft_hit_p50_ms"), ("miss", "s3", "ttft_miss_p50_ms"))
    known = {row["day"]: row for row in rows}
    series = [
        Series(name, style, [known[day][field] if day in known else None for day in span.names])
        for name, style, field in kinds
    ]
    chart = Chart("Time to the first token by day, median, ms", span.names, series, _count)
    return _figure_of(chart, chart.lines())


def _figure_of(chart: Chart, svg: str) -> str:
    legend = "".join(f"<span class={one.style}>{escape(one.name)}</span>" for one in chart.series)
    return f"<figure><figcaption>{escape(chart.title)}<small>{legend}</small></figcaption>{svg}</figure>"


def _count(value: float) -> str:
    """1234567 -> '1.23M'."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


# --- tables ---


def _table(title: str, report: Row, now: float) -> str:
    by, rows, totals = By(report["by"]), report["rows"], report["totals"]
    headings = {**HEADINGS, "saved_nano": "saved"}
    if len(totals) > 1:
        headings["currency"] = "currency"
    else:
        headings["cost_nano"] += f"\n{totals[0]['currency']}"
    heads = "".join(f"<th>{escape(words)}</th>" for words in headings.values())
    names = [escape(str(name)).replace("\n", "<br><small>") for name in names_of(by, rows, now)]
    lines = [_line(name, row, headings, "") for name, row in zip(names, rows, strict=True)]
    lines += [_line(f"total ({total['sessions']:,})", total, headings, " class=total") for total in totals]
    more = "<p class=note>There are more; the totals count them.</p>" if report["next"] else ""
    return (
        f"<h2>{escape(title)}</h2><div class=wide><table><thead><tr><th>{escape(NAMES[by])}</th>{heads}"
        f"</tr></thead><tbody>{''.join(lines)}</tbody></table></div>{more}"
    )


def _line(name: str, row: Row, fields: Iterable[str], style: str) -> str:
    cells = "".join(f"<td>{escape(_cell(field, row))}</td>" for field in fields)
    return f"<tr{style}><th>{name}</th>{cells}</tr>"


def _cell(field: str, row: Row) -> str:
    return str(row["currency"]) if field == "currency" else figure(field, row)
