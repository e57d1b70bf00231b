"""One browser for the folder; a fresh profile for each page; nothing bad may happen in any of them."""

import importlib.util
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.web.chat_page import ChatPage, Troubles
from tests.web.page_server import PageServer, replying

ROOT = Path(__file__).parent.parent.parent
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")

OpenPage = Callable[..., ChatPage]
BuildHook = Any
"""The module web/hatch_build.py, which no package leads to."""


@pytest.fixture(scope="session")
def build_hook() -> BuildHook:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "web" / "hatch_build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def built_page(build_hook: BuildHook) -> Path:
    """web/dist. Tests of a page that is not the one in web/src would prove nothing."""
    page = build_hook.Page(ROOT / "web")
    assert page.is_fresh(), "web/dist is not built from web/src as it is now: run `pip install -e .`"
    dist: Path = page.dist
    return dist


def first_load(dist: Path) -> list[Path]:
    """Script and style that index.html names: what is fetched before anything shows."""
    named = re.findall(r'(?:src|href)="\./([^"]+\.(?:js|css))"', (dist / "index.html").read_text())
    assert len(named) >= 3, "look.js, the page's script and its style"
    return [dist / name for name in named]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Not for the whole session: its event loop must be gone before other folders run theirs."""
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    assert program, "Chromium is missing: install the package `chromium`"
    expect.set_options(timeout=15_000)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser, built_page: Path) -> Iterator[OpenPage]:
    """Opens an address in a fresh profile (or another tab of ``beside``); options are the profile's."""
    opened: list[tuple[Page, Troubles]] = []

    def open_(
        url: str,
        *,
        beside: ChatPage | None = None,
        before: Callable[[Page], None] | None = None,
        **options: Any,
    ) -> ChatPage:
        context = beside.page.context if beside else browser.new_context(**options)
        page = context.new_page()
        troubles = Troubles(urlsplit(url).netloc)
        troubles.watch(page)
        opened.append((page, troubles))
        if before:
            before(page)
        page.goto(url)
        return ChatPage(page, url.split("#")[0], troubles)

    yield open_
    for page, troubles in opened:
        troubles.check()
        page.context.close()


@pytest.fixture
def server(data_dir: Path, built_page: Path) -> Iterator[PageServer]:
    """Answers "hello" with "You said: hello"."""
    with PageServer(data_dir, replying(lambda text: f"You said: {text}")) as running:
        yield running


@pytest.fixture
def chat(server: PageServer, open_page: OpenPage) -> ChatPage:
    """A page that is connected."""
    page = open_page(server.url)
    expect(page.page.get_by_label("Connected")).to_be_visible()
    return page
