"""The hook that builds the page: when it builds, what it says when it cannot, and what a wheel holds."""

import json
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from tests.web.conftest import ROOT, BuildHook


@pytest.fixture
def checkout(tmp_path: Path, built_page: Path) -> Path:
    """A copy of what is built from, with a page that was built."""
    copy = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("node_modules", "__pycache__")
    for folder in ("web", "migrations", "chatd", "kernels"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def test_a_wheel_carries_the_page_and_the_migrations(checkout: Path, tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(checkout)).build(directory=str(tmp_path), versions=["standard"])
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"chatd/_web/index.html", "chatd/_migrations/env.py", "chatd_kernels/ops.py"} <= names
    assert any(re.fullmatch(r"chatd/_web/assets/index-.*\.js", name) for name in names)
    assert not any(name.startswith(("tests/", "web/")) for name in names)


def test_an_editable_install_uses_the_checkouts_own(checkout: Path, tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(checkout)).build(directory=str(tmp_path), versions=["editable"])
    assert not any(name.startswith("chatd/") for name in zipfile.ZipFile(wheel).namelist())


def test_a_source_archive_brings_its_page_and_needs_no_node(
    checkout: Path, tmp_path: Path, build_hook: BuildHook
) -> None:
    (archive,) = SdistBuilder(str(checkout)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(archive) as packed:
        # The first releases of Python 3.11 know no filters, and later ones warn without.
        if hasattr(tarfile, "data_filter"):
            packed.extraction_filter = tarfile.data_filter
        packed.extractall(tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert build_hook.Page(unpacked / "web").is_fresh()
    assert WheelBuilder(str(unpacked)).config.dependencies == []


def test_it_builds_again_only_when_a_source_changed(checkout: Path, build_hook: BuildHook) -> None:
    page = build_hook.Page(checkout / "web")
    assert page.is_fresh()
    (checkout / "web" / "src" / "core" / "tree.test.ts").write_text("// no part of the page")
    assert page.is_fresh()
    (checkout / "web" / "src" / "main.ts").write_text("// changed")
    assert not page.is_fresh()
    assert WheelBuilder(str(checkout)).config.dependencies == [build_hook.NODE_REQUIREMENT]


def test_a_removed_or_unfinished_page_is_built_again(checkout: Path, build_hook: BuildHook) -> None:
    page = build_hook.Page(checkout / "web")
    (page.dist / ".stamp").unlink()
    assert not page.is_fresh()
    shutil.rmtree(page.dist)
    assert not page.is_fresh()


def test_a_failed_build_fails_the_install_and_says_what_to_do(
    checkout: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    manifest = checkout / "web" / "package.json"
    broken = json.loads(manifest.read_text())
    broken["devDependencies"]["no-such-thing"] = "file:./nowhere"  # not in the lock file: npm ci must refuse
    manifest.write_text(json.dumps(broken))
    with pytest.raises(SystemExit) as ended:
        list(WheelBuilder(str(checkout)).build(directory=str(tmp_path), versions=["standard"]))
    assert ended.value.code == 1
    said = capfd.readouterr().err
    assert "chatd was not installed: its web page could not be built." in said
    assert "`npm ci` ended with code 1" in said
    assert "in sync" in said
    assert "~/.npmrc" in said
    assert not (checkout / "web" / "dist").exists()


def test_the_lock_file_names_no_host_to_download_from() -> None:
    packages = json.loads((ROOT / "web" / "package-lock.json").read_text())["packages"]
    assert all("resolved" not in package for package in packages.values())
    assert all("integrity" in package for name, package in packages.items() if name)
