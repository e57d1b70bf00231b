"""The page of a report: whole, by itself, and harmless."""

import re
from html.parser import HTMLParser

import pytest

from chatd.cli.report_charts import Chart, Series
from chatd.cli.report_html import page_html
from chatd.cli.report_view import Heading
from chatd.server.usage_views import usage_of
from chatd.store.prices import PriceBook
from chatd.store.usage import By, UsageReport, UsageRow
from tests.cli.usage_rows import day, session, total

NOW = 1_700_000_360.0
VOID = {"meta", "br", "line", "rect", "circle", "path"}


class Outline(HTMLParser):
    """Holds the page to its own grammar: every element that is opened is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        # <small> ends with its cell, as HTML lets it.
        while self.open[-1] == "small" != tag:
            self.open.pop()
        assert self.open.pop() == tag


def page(*sessions: UsageRow, days: tuple[UsageRow, ...] = (), heading: Heading | None = None) -> str:
    totals = (total(),) if sessions else ()
    main = usage_of(UsageReport(By.SESSION, sessions, totals, None))
    by_day = usage_of(UsageReport(By.DAY, days, totals, None))
    models = usage_of(UsageReport(By.MODEL, (), totals, None))
    return page_html(main, by_day, models, heading or Heading(), NOW)


def test_it_needs_nothing_else_and_runs_nothing() -> None:
    outline = Outline(page(session("Bread"), days=(day("2026-11-02"), day("2026-11-01"))))
    assert {"html", "style", "svg", "table"} <= set(outline.seen)
    assert not {"script", "link", "img", "iframe", "object"} & set(outline.seen)
    assert not [name for name, _ in outline.attributes if name.startswith("on") or name in ("src", "href")]
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in outline.attributes
    assert "url(" not in page(session("Bread"))


def test_a_title_is_text_whatever_it_says() -> None:
    shown = page(session("<script>alert(1)</script><img src=x onerror=alert(1)>"))
    Outline(shown)
    assert "<script" not in shown
    assert "&lt;script&gt;alert(1)" in shown


def test_it_says_what_was_used_and_what_a_view_is() -> None:
    book = PriceBook(version="theirs", currency="USD", note="Rules & prices of theirs.")
    shown = page(session("Bread"), days=(day("2026-11-01"),), heading=Heading(book))
    for words in ("Bread", "75 %", "0.000518", "0.00052 CNY", "47 ms", "Rules &amp; prices of theirs."):
        assert words in shown


def test_no_price_shows_as_na_and_draws_nothing() -> None:
    shown = page(
        session("Bread"), days=(day("2026-11-01", cost_nano=None, without_cache_nano=None, unpriced=3),)
    )
    cost = shown[shown.index("Cost by day") :]
    assert "<rect" not in cost[: cost.index("</figure>")]


def test_a_day_without_a_turn_is_a_gap() -> None:
    shown = page(session("Bread"), days=(day("2026-11-04"), day("2026-11-01")))
    tokens = shown[shown.index("Prompt tokens by day") :]
    hints = re.findall(r"<title>([0-9-]+)", tokens[: tokens.index("</figure>")])
    assert hints == ["2026-11-01", "2026-11-04"]


def test_many_days_are_shown_as_weeks() -> None:
    names = [f"2026-{month:02}-{number:02}" for month in range(1, 7) for number in range(1, 29)]
    days = tuple(day(name) for name in reversed(names))
    shown = page(session("Bread"), days=days)
    tokens = shown[shown.index("Prompt tokens by week") :]
    hints = re.findall(r"<title>(\S+)\nfrom GPU: (\S+)", tokens[: tokens.index("</figure>")])
    assert hints[0] == ("2026-01-01", "6.3k")
    assert len(hints) == 26


def test_nothing_yet() -> None:
    outline = Outline(page())
    assert "table" not in outline.seen


@pytest.mark.parametrize("most", [0, 0.00042, 1, 7, 99, 100, 101, 2_500_000])
def test_the_axis_holds_every_value(most: float) -> None:
    chart = Chart("x", ["2026-11-01"], [Series("a", "s1", [most])], lambda value: f"{value:g}")
    for svg in (chart.stacked_bars(), chart.beside_bars(), chart.lines()):
        tops = [float(y) for y in re.findall(r' y="(-?[0-9.]+)"', svg)]
        assert min(tops) >= 0
        marks = [float(text) for text in re.findall(r'text-anchor="end">([0-9.e+-]+)<', svg)]
        assert marks[0] == 0
        assert max(marks) >= most
        assert 2 <= len(marks) <= 6
