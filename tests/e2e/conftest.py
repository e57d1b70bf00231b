"""One toy server for all tests that leave it as it was."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import ToyProcess


@pytest.fixture(scope="package")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyProcess]:
    """Started on an event loop of its own, which rests while tests run theirs."""
    data_dir: Path = tmp_path_factory.mktemp("shared") / "data"
    data_dir.mkdir(mode=0o700)
    with asyncio.Runner() as runner:
        server = runner.run(ToyProcess(data_dir).__aenter__())
        yield server
        runner.run(server.__aexit__())
