"""Commands run in this process: as good as another where no terminal and no signal matters, and quick."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from chatd.cli.main import main
from chatd.store.store import Store
from tests.store.scribe import Scribe, opened

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> Run:
    """Exit code, standard output and standard error of ``chatd *args``, in ``data_dir`` or another folder."""
    monkeypatch.setenv("COLUMNS", "140")
    for name in ("CHATD_CONFIG", "CHATD_DATA_DIR", "CHATD_PRICES"):
        monkeypatch.delenv(name, raising=False)

    def run_(*args: str, folder: Path = data_dir) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([*args, "--data-dir", str(folder)])
        assert isinstance(end.value.code, int)
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return run_


def fill(data_dir: Path, write: Callable[[Store, Scribe], Awaitable[None]], prefix: str = "fill") -> None:
    """Writes as a server does that then ends in good order."""

    async def filled() -> None:
        async with opened(data_dir, prefix=prefix) as store:
            await write(store, await Scribe.begin(store))
            await store.end_run()

    asyncio.run(filled())
