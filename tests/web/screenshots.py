"""Pictures of every view: ``python -m tests.web.screenshots OUT [VIEW...]``.

A file for each view and variant, and for each view one sheet with all variants beside each other.
"""

import base64
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.web.conftest import CHROMIUM
from tests.web.views import VARIANTS, VIEWS, prepare, rich_server, visit_in


def main(out: Path, wanted: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    program = next(filter(None, map(shutil.which, CHROMIUM)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name in wanted or list(VIEWS):
            pictures = [_picture(browser, out, name, variant.name) for variant in VARIANTS]
            _sheet(browser, out / f"sheet-{name}.png", pictures)
            print(out / f"sheet-{name}.png", flush=True)
        browser.close()


def _picture(browser: Browser, out: Path, name: str, variant_name: str) -> Path:
    variant = next(each for each in VARIANTS if each.name == variant_name)
    path = out / f"{name}-{variant.name}.png"
    with tempfile.TemporaryDirectory() as data, rich_server(Path(data), name, variant) as server:
        visit = visit_in(browser, server, variant)
        prepare(server, [variant.is_chinese])
        VIEWS[name](visit)
        visit.settle()
        visit.page.screenshot(path=path)
        visit.page.context.close()
    return path


def _sheet(browser: Browser, path: Path, pictures: list[Path]) -> None:
    tiles = "".join(
        f"<figure><img src='data:image/png;base64,{base64.b64encode(each.read_bytes()).decode()}'>"
        f"<figcaption>{each.stem}</figcaption></figure>"
        for each in pictures
    )
    style = "body{margin:16px;display:flex;flex-wrap:wrap;gap:16px;background:#888;font:14px sans-serif}"
    page = browser.new_page(viewport={"width": 2200, "height": 1200})
    page.set_content(f"<style>{style}figure{{margin:0}}img{{height:640px;display:block}}</style>{tiles}")
    page.screenshot(path=path, full_page=True)
    page.close()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
