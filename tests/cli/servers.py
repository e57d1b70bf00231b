"""A real ``chatd serve`` with the real model, as a process of its own."""

import asyncio
import json
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.cli.terminals import CHATD, environment


class ChatdProcess:
    """Serves ``data_dir`` on a free port. ``lines`` are the JSON lines it printed so far."""

    command: tuple[str, ...] = (*CHATD, "serve")
    extra: Mapping[str, str] = {}
    """Of the environment."""

    def __init__(self, data_dir: Path, model: Path, *options: str) -> None:
        self.data_dir = data_dir
        self.lines: list[dict[str, Any]] = []
        self._errors = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - a pipe would fill
        self._options = ["--model", str(model), "--kv-bytes", "256MiB", "--port", "0", "--json", *options]

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self.command,
            *self._options,
            "--data-dir",
            str(self.data_dir),
            stdout=asyncio.subprocess.PIPE,
            stderr=self._errors,
            env=environment(**self.extra),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()
        self._errors.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return str(self.lines[0]["url"])

    async def until(self, status: str) -> dict[str, Any]:
        """The first line with ``status`` that has not been read yet."""
        assert self._process.stdout
        while line := await self._process.stdout.readline():
            self.lines.append(json.loads(line))
            if self.lines[-1]["status"] == status:
                return self.lines[-1]
        raise AssertionError(f"it ended: {await self.errors()}")

    def stop_reading(self) -> None:
        """Close this end of the pipe: what is written to it fails from now on."""
        transport = self._process._transport.get_pipe_transport(1)  # type: ignore[attr-defined]
        transport.close()

    async def errors(self) -> str:
        """What it has written to standard error."""
        self._errors.seek(0)
        return self._errors.read().decode()

    async def end(self, sig: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the exit code."""
        self._process.send_signal(sig)
        return await self._process.wait()
