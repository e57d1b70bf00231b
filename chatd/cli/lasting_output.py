"""Output that outlives its reader: a server goes on when its terminal or pipe is closed."""

import os
from typing import TextIO


class LastingOutput:
    """As much of ``TextIO`` as ``print`` and rich ask for. What nobody can read any more goes nowhere."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.encoding = out.encoding

    def write(self, text: str) -> int:
        try:
            return self._out.write(text)
        except OSError:
            self._to_nowhere()
            return len(text)

    def flush(self) -> None:
        try:
            self._out.flush()
        except OSError:
            self._to_nowhere()

    def isatty(self) -> bool:
        return self._out.isatty()

    def fileno(self) -> int:
        return self._out.fileno()

    def _to_nowhere(self) -> None:
        """The null device takes the file's own number, so that what is buffered can be flushed at exit."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._out.fileno())
        os.close(nowhere)
