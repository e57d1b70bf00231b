from pathlib import Path

import pytest

from chatd import resources
from chatd.errors import SetupError


def test_migrations_are_found_in_the_checkout_or_the_wheel() -> None:
    assert (resources.migrations_dir() / "versions").is_dir()


def test_a_wheel_has_them_inside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "chatd"
    for folder, marker in (("_migrations", "env.py"), ("_web", "index.html")):
        (package / folder).mkdir(parents=True)
        (package / folder / marker).touch()
    monkeypatch.setattr(resources, "_PACKAGE", package)
    assert resources.migrations_dir() == package / "_migrations"
    assert resources.web_dir() == package / "_web"


def test_a_checkout_has_them_beside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations" / "env.py").touch()
    (tmp_path / "web" / "dist").mkdir(parents=True)
    (tmp_path / "web" / "dist" / "index.html").touch()
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "chatd")
    assert resources.migrations_dir() == tmp_path / "migrations"
    assert resources.web_dir() == tmp_path / "web" / "dist"


def test_what_is_missing_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "chatd")
    with pytest.raises(SetupError, match="install chatd again"):
        resources.migrations_dir()
    with pytest.raises(SetupError, match="not built"):
        resources.web_dir()
