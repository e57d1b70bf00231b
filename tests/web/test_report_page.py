"""The page of a report in a browser: light, dark and on a narrow screen, from a file, with no network."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from chatd.cli.report_html import page_html
from chatd.cli.report_view import Heading
from chatd.server.usage_views import usage_of
from chatd.store.usage import By, UsageReport
from tests.cli.usage_rows import day, session, total

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    days = tuple(day(f"2026-11-{number:02}") for number in range(30, 0, -1))
    sessions = tuple(session(f"Why is the sky blue? {n} " * (n + 1)) for n in range(4))
    main = usage_of(UsageReport(By.SESSION, sessions, (total(),), "more"))
    by_day = usage_of(UsageReport(By.DAY, days, (total(),), None))
    models = usage_of(UsageReport(By.MODEL, (), (total(),), None))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page_html(main, by_day, models, Heading(), 1_700_000_360.0), "utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_it_is_whole_and_readable(browser: Browser, page_file: Path, scheme: str, width: int) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})  # type: ignore[arg-type]
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(page_file.as_uri())
    assert (said, asked) == ([], [page_file.as_uri()])
    assert page.locator("figure svg").count() == 4
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "only tables scroll sideways"
    paper, ink = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    light = paper == "rgb(255, 255, 255)"
    assert (light, paper != ink) == (scheme == "light", True)
    bars = page.locator("figure").first.locator("rect.s1")
    assert bars.count() == 30
    box = bars.first.bounding_box()
    assert box is not None
    assert box["height"] > 10
    context.close()
