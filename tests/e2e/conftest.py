"""Toy servers for all tests that leave them as they were."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import ToyProcess


def _served(data_dir: Path, *options: str, step_s: float = 0) -> Iterator[ToyProcess]:
    """Started on an event loop of its own, which rests while tests run theirs."""
    data_dir.mkdir(mode=0o700)
    with asyncio.Runner() as runner:
        server = runner.run(ToyProcess(data_dir, *options, step_s=step_s).__aenter__())
        yield server
        runner.run(server.__aexit__())


@pytest.fixture(scope="package")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyProcess]:
    """As fast as it can."""
    yield from _served(tmp_path_factory.mktemp("toy") / "data")


@pytest.fixture(scope="module")
def paced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyProcess]:
    """Some 300 tokens a second for each answer, which go on for a minute without a reader."""
    yield from _served(tmp_path_factory.mktemp("paced") / "data", "--grace", "60", step_s=0.003)
