"""The thread that loads a model is gone before the engine computes."""

import threading

import pytest

from chatd.cli.own_thread import in_own_thread


async def test_the_thread_ends_with_its_call() -> None:
    thread = await in_own_thread(threading.current_thread, "test-load")
    assert thread.name.startswith("test-load")
    thread.join(10)
    assert not thread.is_alive()


async def test_what_it_raises_is_raised_here() -> None:
    def fail() -> None:
        raise LookupError("no model")

    with pytest.raises(LookupError, match="no model"):
        await in_own_thread(fail, "test-load")
