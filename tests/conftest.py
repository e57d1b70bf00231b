"""What every test may use, and the rules that hold for every test.

A coroutine test that starts no process has 20 s, and none may keep the event loop from turning.
"""

import asyncio
import fcntl
import gc
import inspect
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ASYNC_TIMEOUT_S = 20
PROCESSES = {Path(__file__).parent / folder for folder in ("cli", "e2e")}
"""Folders whose tests start processes, each with seconds of imports: their time is any other test's."""
BLOCKED_CPU_S = 0.5
"""CPU time one callback of the loop may take: wall time would also count what other processes take."""

# Time says nothing on a machine that does other work too; and the project's check must not depend on luck.
settings.register_profile(
    "chatd", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("chatd")

# Servers that tests start wait for no compiler. Tests of the CPU's kernels, and of a server on them, ask
# for them.
os.environ.setdefault("CHATD_KERNELS", "reference")
os.environ.setdefault("CHATD_WEIGHTS", "bf16")

# Two workers, each with servers of its own: threads that wait for one another would make both slower.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function) or not inspect.iscoroutinefunction(item.function):
            continue
        if item.path.parent in PROCESSES:
            continue
        if item.get_closest_marker("timeout") is None and item.get_closest_marker("full") is None:
            item.add_marker(pytest.mark.timeout(ASYNC_TIMEOUT_S))


@pytest.fixture(scope="module")
def small_heap() -> Iterator[None]:
    """Keeps the collector away from what other tests left: walking it takes half a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def blocked_loop(small_heap: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Fails the test if a callback kept the event loop busy. Asked for by whole folders."""
    blocked: list[str] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        spent = time.thread_time() - began
        if spent > BLOCKED_CPU_S:
            blocked.append(f"{handle!r} kept the event loop busy for {spent:.2f} s")

    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    yield blocked
    assert not blocked


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """An empty data folder as the server makes it (0700)."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct as a GGUF file: `CHATD_TEST_MODEL`, or the user's cache (fetched once)."""
    given = os.environ.get("CHATD_TEST_MODEL")
    if given:
        return Path(given)
    from chatd.model.fetch import default_model

    with (tmp_path_factory.getbasetemp().parent / "fetching").open("w") as fetching:
        fcntl.flock(fetching, fcntl.LOCK_EX)  # the other worker's fetch is this one's too
        return default_model()
