"""The page of reports: its figures are those of `chatd report --json`, at all prices."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import Locator, expect

from chatd.cli.main import cli
from tests.web.chat_page import ChatPage
from tests.web.conftest import OpenPage
from tests.web.history import fill_history
from tests.web.page_server import PageServer, replying

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("used")


@pytest.fixture(scope="module")
def used(data_folder: Path) -> Iterator[PageServer]:
    """Weeks of use, which the tests leave as they are."""
    fill_history(data_folder)
    with PageServer(data_folder, replying(str.upper)) as running:
        yield running


@pytest.fixture
def page(used: PageServer, open_page: OpenPage) -> ChatPage:
    opened = open_page(f"{used.url}#/reports")
    expect(opened.page.locator("figure canvas")).to_have_count(4)
    return opened


def told(data_dir: Path, *args: str) -> dict[str, Any]:
    """What the command says, while the server runs."""
    done = CliRunner().invoke(cli, ["report", "--data-dir", str(data_dir), "--json", *args])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check_totals(page: ChatPage, total: dict[str, Any]) -> None:
    for name, figure in (
        ("cost", "cost_nano"),
        ("saved", "saved_nano"),
        ("saved-time", "saved_s"),
        ("reused", "hit_rate"),
        ("ttft", "ttft_hit_p50_ms"),
        ("turns", "turns"),
    ):
        card = page.page.locator(f"[data-card={name}]")
        expect(card).to_have_attribute(
            "data-value", f"{total[figure]:g}" if name == "x" else str(total[figure])
        )


def check_rows(page: ChatPage, rows: list[dict[str, Any]], name: str) -> None:
    shown = page.page.locator("tbody tr")
    expect(shown).to_have_count(len(rows))
    for row, line in zip(rows, shown.all(), strict=True):
        expect(line).to_have_attribute("data-row", row[name])
        expect(line).to_have_attribute("data-cost", str(row["cost_nano"]))
        expect(line).to_have_attribute("data-saved", str(row["saved_nano"]))
        assert _cell(line, "turns") == f"{row['turns']:,}"
        assert _cell(line, "prompt") == f"{row['prompt_tokens']:,}"
        assert _cell(line, "output") == f"{row['output_tokens']:,}"
        assert (
            _cell(line, "reused")
            == f"{int(100 * (row['gpu_hit'] + row['disk_hit']) / row['prompt_tokens'])}%"
        )


def _cell(line: Locator, name: str) -> str:
    return line.locator(f"[data-cell={name}]").inner_text()


def test_the_figures_are_those_of_the_command(page: ChatPage, data_folder: Path) -> None:
    report = told(data_folder)
    [total] = report["totals"]
    check_totals(page, total)
    check_rows(page, report["rows"], "session_id")
    page.page.get_by_label("Days", exact=True).check()
    check_rows(page, told(data_folder, "--by", "day")["rows"], "day")
    page.page.get_by_label("Models", exact=True).check()
    check_rows(page, told(data_folder, "--by", "model")["rows"], "model")


def test_other_prices_are_a_view_and_the_bill_stays(page: ChatPage, data_folder: Path) -> None:
    [billed] = told(data_folder)["totals"]
    page.page.get_by_text("What if prices were different?").click()
    page.page.get_by_label("Computed prompt").fill("3")
    expect(page.page.locator("[data-card=cost]")).to_contain_text("as billed")
    report = told(data_folder, "--what-if", "computed=3")
    [total] = report["totals"]
    check_totals(page, total)
    check_rows(page, report["rows"], "session_id")
    assert total["cost_nano"] > billed["cost_nano"]
    page.page.get_by_role("button", name="Back to the prices that hold").click()
    check_totals(page, billed)


def test_kept_kv_is_beside_the_turns_at_any_price(page: ChatPage, data_folder: Path) -> None:
    def check(*args: str) -> None:
        for at, kept in enumerate(told(data_folder, *args)["storage"]):
            card = page.page.locator(f"[data-card=kept-{kept['tier']}{at}]")
            expect(card).to_have_attribute("data-value", str(kept["byte_seconds"]))
            price = f"{kept['cost_nano'] / 1e9:.4g}" if kept["cost_nano"] else "no price"
            expect(card.locator("span")).to_contain_text(price)
            expect(card.locator("strong")).to_contain_text("GiB·h")

    assert [kept["tier"] for kept in told(data_folder)["storage"]] == ["disk", "pinned"]
    check()
    page.page.get_by_text("What if prices were different?").click()
    page.page.get_by_label("Kept KV").fill("0.02")
    check("--what-if", "storage=0.02")
    check_totals(page, told(data_folder)["totals"][0])
    with page.page.expect_download() as download:
        page.page.get_by_role("region", name="KV kept").get_by_role("link", name="CSV").click()
    lines = list(csv.DictReader(io.StringIO(download.value.path().read_text("utf-8-sig"))))
    sums = sum(int(line["byte_seconds"]) for line in lines)
    assert sums == sum(kept["byte_seconds"] for kept in told(data_folder)["storage"])
    page.page.locator("tbody tr button").first.click()
    expect(page.page.get_by_role("region", name="KV kept")).to_have_count(0)


def test_one_chat_alone_and_back(page: ChatPage, data_folder: Path) -> None:
    row = told(data_folder)["rows"][2]
    page.page.locator(f"tr[data-row='{row['session_id']}'] button").click()
    check_rows(page, [row], "session_id")
    [total] = told(data_folder, "--session", row["session_id"])["totals"]
    check_totals(page, total)
    page.page.get_by_role("button", name="Only").click()
    check_totals(page, told(data_folder)["totals"][0])


def test_the_way_to_a_chat_is_there_however_long_its_title(page: ChatPage) -> None:
    name = page.page.locator("tbody th").first
    name.locator("button").evaluate("button => { button.textContent = 'Long '.repeat(40) }")
    link, room = name.locator("a").bounding_box(), name.bounding_box()
    assert link
    assert room
    assert link["x"] + link["width"] <= room["x"] + room["width"]


def test_csv_is_that_of_the_command(page: ChatPage, data_folder: Path) -> None:
    page.page.get_by_label("All", exact=True).check()
    with page.page.expect_download() as download:
        page.page.get_by_role("link", name="CSV").last.click()
    saved = download.value.path().read_text("utf-8-sig")
    done = CliRunner().invoke(cli, ["report", "--data-dir", str(data_folder), "--csv"])
    assert list(csv.reader(io.StringIO(saved))) == list(csv.reader(io.StringIO(done.stdout)))
    assert download.value.suggested_filename == "chatd-sessions.csv"


def test_a_chart_says_what_is_under_the_pointer(page: ChatPage, data_folder: Path) -> None:
    chart = page.page.locator("figure").filter(has_text="Reuse over the turns of a chat")
    box = chart.locator(".u-over").bounding_box()
    assert box
    page.page.mouse.move(box["x"] + 2, box["y"] + 20)
    expect(chart.locator("strong")).to_have_text("0%")  # first turns
    turns = page.api("reports/turns")["rows"]
    assert turns[0]["hit_rate"] == 0
    page.page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 20)
    expect(chart.locator("strong")).to_have_text(f"{round(100 * turns[-1]['hit_rate'])}%")
    assert sum(row["turns"] for row in turns) == told(data_folder)["totals"][0]["turns"]


def test_before_the_first_answer_and_after_it(chat: ChatPage) -> None:
    names = "performance.getEntriesByType('resource').map((entry) => entry.name).join(' ')"
    assert "/Reports" not in chat.page.evaluate(names), "charts are fetched only when they are wanted"
    chat.sidebar.get_by_role("link", name="Reports").click()
    expect(chat.page.get_by_text("Nothing was asked in this time.")).to_be_visible()
    assert "/Reports" in chat.page.evaluate(names)
    chat.page.get_by_label("All", exact=True).check()
    expect(chat.page.get_by_text("Figures come with the first answer.")).to_be_visible()
    chat.sidebar.get_by_role("link", name="New chat").click()
    chat.ask("hello")
    chat.page.route("**/api/v1/reports/**", lambda route: route.abort())
    chat.sidebar.get_by_role("link", name="Reports").click()
    expect(chat.page.get_by_role("alert")).to_contain_text("The server cannot be reached.")
    chat.page.unroute("**/api/v1/reports/**")
    chat.page.get_by_role("button", name="Retry now").click()
    expect(chat.page.locator("[data-card=turns]")).to_have_attribute("data-value", "1")
