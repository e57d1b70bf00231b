"""`chatd serve` as a process of its own, which can die and come back at the same address."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.cli.terminals import CHATD, environment

TOY = (sys.executable, "-m", "tests.support.toy_serve")


class Serving:
    """``port`` stays the same over a restart. ``flags`` are those of ``chatd serve``."""

    def __init__(self, command: Sequence[str], data_dir: Path, *flags: str) -> None:
        self.url = ""
        self._command = [*command, "--data-dir", str(data_dir), *flags]
        self._process: subprocess.Popen[str]

    @classmethod
    def of_model(cls, data_dir: Path, model: Path) -> "Serving":
        flags = ("--model", str(model), "--kv-bytes", "256MiB", "--json")
        return cls([*CHATD, "serve"], data_dir, *flags)

    @classmethod
    def of_toy(cls, data_dir: Path) -> "Serving":
        return cls(TOY, data_dir)

    def start(self) -> None:
        """Until it is ready."""
        port = str(urlsplit(self.url).port) if self.url else "0"
        self._process = subprocess.Popen(
            [*self._command, "--port", port],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            text=True,
        )
        assert self._process.stdout
        for line in self._process.stdout:
            said = json.loads(line)
            if said["status"] == "ready":
                self.url = f"{said['url']}/"
                return
        raise AssertionError("it ended before it was ready")

    def end(self, sig: signal.Signals) -> None:
        self._process.send_signal(sig)
        self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()

    def restart(self, sig: signal.Signals) -> None:
        self.end(sig)
        self.start()
