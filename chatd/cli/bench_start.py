"""A server for one benchmark: a process of its own, a folder that goes with it, a free port."""

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from chatd.config import settings_table
from chatd.config_kinds import Switch
from chatd.data_dir import ServerAddress, live_server
from chatd.errors import SetupError

COMMAND = (sys.executable, "-P", "-m", "chatd", "serve", "--json")
STOP_S = 15.0
"""More than a server takes to end in order."""


def flags_of(options: Mapping[str, object]) -> list[str]:
    """Settings as they were given, as flags of ``chatd serve``."""
    flags = []
    for name, value in options.items():
        info = settings_table()[name]
        if isinstance(info.kind, Switch):
            flags += [info.flag] if value else []
        elif value is not None and value != ():
            flags += [info.flag, str(value)]
    return flags


@contextlib.contextmanager
def temporary_server(
    flags: Sequence[str], progress: Callable[[str], None], command: Sequence[str] = COMMAND
) -> Iterator[ServerAddress]:
    """Ready to answer; stopped and forgotten in the end. `SetupError` with what it said if it does not start.

    Ctrl-C does not reach it: it is stopped when the benchmark is.
    """
    with tempfile.TemporaryDirectory(prefix="chatd-bench-") as folder, tempfile.TemporaryFile() as errors:
        fixed = ["--data-dir", folder, "--host", "127.0.0.1", "--port", "0", "--log-level", "warning"]
        process = subprocess.Popen(
            [*command, *flags, *fixed],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        with _ended(process), _ending_too():
            assert process.stdout
            if not _is_ready(process.stdout, progress):
                process.wait()
                raise SetupError(f"The server did not start: {_last_words(errors)}")
            server = live_server(Path(folder))
            assert server is not None
            yield server


def _is_ready(lines: IO[bytes], progress: Callable[[str], None]) -> bool:
    """False if it ended instead."""
    for raw in lines:
        line = json.loads(raw)
        if line["status"] == "ready":
            return True
        if line["status"] == "loading":
            progress(f"{line['what']} {round(100 * line['progress'])} %")
    return False


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def _ending_too() -> Iterator[None]:
    """SIGTERM, and a terminal that is closed, end the benchmark in order: its server must not outlive it."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _last_words(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1].removeprefix("chatd: ") if lines else "it said nothing."
