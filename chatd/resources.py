"""Where the files are that are not Python: the migration scripts, the built web page, a dashboard.

A wheel carries them inside the package (``chatd/_migrations``, ``chatd/_web``); a checkout, editable
install or not, has them beside it (``migrations``, ``web/dist``).
"""

from pathlib import Path

from chatd.errors import SetupError

_PACKAGE = Path(__file__).resolve().parent


def migrations_dir() -> Path:
    """The folder with alembic's ``env.py``. SetupError if the installation lacks it."""
    return _find(
        (_PACKAGE / "_migrations", _PACKAGE.parent / "migrations"),
        marker="env.py",
        missing="the database migrations are missing from this installation: install chatd again",
    )


def web_dir() -> Path:
    """The folder with the page's ``index.html``. SetupError if it was never built."""
    return _find(
        (_PACKAGE / "_web", _PACKAGE.parent / "web" / "dist"),
        marker="index.html",
        missing="the web page was not built: run `pip install -e .` in the checkout, or install chatd again",
    )


def dashboard() -> str:
    """Grafana's dashboard of chatd's metrics, as JSON."""
    return (_PACKAGE / "grafana.json").read_text("utf-8")


def _find(candidates: tuple[Path, ...], *, marker: str, missing: str) -> Path:
    for folder in candidates:
        if (folder / marker).is_file():
            return folder
    raise SetupError(missing)
