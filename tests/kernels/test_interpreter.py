"""The Triton kernels under Triton's interpreter, each file of tests in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "triton"
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))
TIMEOUT_S = 900
PYTEST = (sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider")


def interpret(name: str, *options: str) -> None:
    """Run one file of tests; fails with its output."""
    done = subprocess.run(
        [*PYTEST, *options, str(FOLDER / name)],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=FOLDER.parents[2],
        capture_output=True,
        text=True,
        timeout=10 * TIMEOUT_S if options else TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]


@pytest.mark.timeout(TIMEOUT_S + 10)
@pytest.mark.parametrize("name", FILES)
def test_under_the_interpreter(name: str) -> None:
    interpret(name)


@pytest.mark.full
@pytest.mark.timeout(11 * TIMEOUT_S)
@pytest.mark.parametrize("name", FILES)
def test_under_the_interpreter_in_full(name: str) -> None:
    interpret(name, "-m", "full or not full")
