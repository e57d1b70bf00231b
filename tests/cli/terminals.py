"""Commands as a person runs them: in a pseudo-terminal, or in a pipe."""

import asyncio
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parent.parent.parent
CHATD = (sys.executable, "-m", "chatd")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r")


def environment(**extra: str) -> dict[str, str]:
    """This one without our settings, so that a developer's own do not matter."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CHATD_")}
    # A server waits for no compiler, but in the tests of the CPU's kernels.
    kept |= {"CHATD_KERNELS": "reference", "CHATD_WEIGHTS": "bf16"}
    path = os.pathsep.join([str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")])
    return kept | {"PYTHONPATH": path, "TERM": "xterm-256color", "COLUMNS": "100"} | extra


async def piped(args: Sequence[str], text: str | bytes = "", **extra: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``chatd *args`` fed with ``text``."""
    process = await asyncio.create_subprocess_exec(
        *CHATD,
        *args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**extra),
    )
    try:
        out, err = await process.communicate(text.encode() if isinstance(text, str) else text)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


class Terminal:
    """``chatd *args`` in a pseudo-terminal. ``shown`` is what came out, without escape sequences."""

    def __init__(self, *args: str) -> None:
        self._args = args
        self._read_to = 0
        self._raw = b""
        self.shown = ""

    async def __aenter__(self) -> Self:
        self._fd, inner = os.openpty()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *CHATD,
                *self._args,
                stdin=inner,
                stdout=inner,
                stderr=inner,
                env=environment(),
                start_new_session=True,
                preexec_fn=_own_terminal,
            )
        finally:
            os.close(inner)
        self._more = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._fd, self._take)
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        os.close(self._fd)

    def _take(self) -> None:
        try:
            self._raw += os.read(self._fd, 1 << 16)
        except OSError:  # the other side is closed
            asyncio.get_running_loop().remove_reader(self._fd)
        self.shown = ESCAPES.sub("", self._raw.decode("utf-8", "replace"))
        self._more.set()

    async def until(self, text: str) -> None:
        """Wait for ``text`` after all that was waited for before."""
        while (at := self.shown.find(text, self._read_to)) < 0:
            await self.change()
        self._read_to = at + len(text)

    async def change(self) -> None:
        """Wait for more output."""
        self._more.clear()
        await self._more.wait()

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def press_ctrl_c(self) -> None:
        self.type("\x03")

    async def exit_code(self) -> int:
        return await self._process.wait()


def _own_terminal() -> None:
    """Make standard input the child's controlling terminal, so that Ctrl-C reaches it as a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
