"""How one answer looks: in a terminal, as plain text, as JSON lines."""

import re
import sys
from typing import Protocol, TextIO

from rich.console import Console
from rich.status import Status

from chatd.cli.chat_client import Heard, Waiting
from chatd.cli.money import short
from chatd.server.protocol import (
    AnyEnding,
    ResponseCancelled,
    ResponseCreated,
    ResponseDelta,
    ResponseFailed,
    ResponseIncomplete,
    ResponsePrefill,
    ResponseQueued,
    ResponseRestoring,
    ServerDraining,
    Usage,
    encode,
)

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""A model's text must not steer the terminal: everything but tab and newline is shown as U+FFFD."""


def harmless(text: str) -> str:
    return CONTROLS.sub("\ufffd", text.replace("\r\n", "\n"))


SHUT_DOWN = "The server shut down in the middle of this answer"


class Screen(Protocol):
    def heard(self, event: Heard) -> None: ...

    def note(self, text: str) -> None:
        """Something for the person, outside the answer."""
        ...

    def close(self) -> None:
        """The answer is over, or given up. Idempotent."""
        ...


class PlainScreen:
    """The answer's text and nothing else; notes go to standard error."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err, self._at_start = out, err, True
        self._waits = False
        self._server_stops = False

    def heard(self, event: Heard) -> None:
        if isinstance(event, Waiting):
            if not self._waits:
                self.note(f"Waiting: {event.reason}.")
            self._waits = True
            return
        self._waits = False
        if isinstance(event, ResponseDelta):
            self._out.write(event.delta)
            self._out.flush()
            self._at_start = event.delta.endswith("\n")
        elif isinstance(event, ResponseFailed):
            self.note(failure(event))
        elif isinstance(event, ResponseIncomplete):
            self.note("The answer was cut off at the length limit.")
        elif isinstance(event, ResponseCreated) and event.dropped_turns:
            self.note(shortened(event))
        elif isinstance(event, ServerDraining):
            self._server_stops = True
        elif isinstance(event, ResponseCancelled) and self._server_stops:
            self.note(f"{SHUT_DOWN}; what there is of it is in conversation {event.conversation_id}.")

    def note(self, text: str) -> None:
        self.close()
        print(text, file=self._err)

    def close(self) -> None:
        if not self._at_start:
            self._out.write("\n")
            self._out.flush()
            self._at_start = True


class JsonScreen:
    """Each event of the server as one line of JSON."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err

    def heard(self, event: Heard) -> None:
        if not isinstance(event, Waiting):
            self._out.write(encode(event).decode() + "\n")
            self._out.flush()

    def note(self, text: str) -> None:
        print(text, file=self._err)

    def close(self) -> None:
        """Nothing is ever left open."""


class TerminalScreen:
    """A spinner that says what the server is doing, then the text, then what it took."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._at_start = True
        self._server_stops = False
        self._say("waiting for the server")

    def heard(self, event: Heard) -> None:
        match event:
            case ResponseCreated() if event.dropped_turns:
                self.note(shortened(event))
            case ResponseQueued(position=position):
                self._say(f"waiting: number {position} in the queue")
            case ResponseRestoring(done=done, total=total):
                self._say(f"bringing back {done:,} of {total:,} tokens from disk")
            case ResponsePrefill() if event.done < event.total:
                reused = event.gpu_hit + event.disk_hit
                self._say(f"reading {event.done:,} of {event.total:,} tokens ({reused:,} reused)")
            case ResponseDelta(delta=delta):
                self._stop_status()
                text = harmless(delta)
                self._console.file.write(text)
                self._console.file.flush()
                self._at_start = text.endswith("\n") if text else self._at_start
            case Waiting(reason=reason, pause_s=pause):
                self._say(f"{reason}; trying again in {pause:.1f} s" if pause >= 1 else reason)
            case ServerDraining():
                self._server_stops = True
            case _ if isinstance(event, AnyEnding):
                self._end(event)

    def note(self, text: str) -> None:
        self.close()
        self._console.print(text, style="yellow", markup=False, highlight=False)

    def close(self) -> None:
        self._stop_status()
        if not self._at_start:
            self._console.print()
            self._at_start = True

    def _say(self, text: str) -> None:
        if not self._at_start:
            return self.note(text)
        if self._status is None:
            self._status = self._console.status("", spinner="dots")
            self._status.start()
        self._status.update(f"[dim]{text}[/dim]")
        return None

    def _stop_status(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _end(self, event: AnyEnding) -> None:
        self.close()
        if isinstance(event, ResponseFailed):
            self._console.print(failure(event), style="red", markup=False, highlight=False)
            if event.last_seq:
                self._console.print("/continue goes on from there, /retry starts again.", style="dim")
        elif isinstance(event, ResponseIncomplete):
            self._console.print("Cut off at the length limit; /continue goes on.", style="yellow")
        elif isinstance(event, ResponseCancelled) and self._server_stops:
            self._console.print(f"{SHUT_DOWN}; once it runs again, /continue goes on.", style="yellow")
        elif isinstance(event, ResponseCancelled):
            self._console.print("Stopped; /continue goes on.", style="dim")
        self._console.print(bill(event) + "\n", style="dim", markup=False, highlight=False)


def shortened(event: ResponseCreated) -> str:
    turns = "turn" if event.dropped_turns == 1 else f"{event.dropped_turns:,} turns"
    return f"The oldest {turns} of this conversation no longer fit: the model does not see them."


def failure(event: ResponseFailed) -> str:
    return f"The answer failed: {event.error.message}" if event.error else "The answer failed."


def bill(event: AnyEnding) -> str:
    """One line: tokens, reused tokens, time to first token, speed, cost."""
    usage, timings, cost = event.usage, event.timings, event.cost
    parts = [
        f"{usage.prompt_tokens:,} in ({_reused(usage)})",
        f"{usage.output_tokens:,} out",
        "" if timings.ttft_ms is None else f"first token {timings.ttft_ms / 1000:.2f} s",
        "" if timings.tokens_per_s is None else f"{timings.tokens_per_s:.1f} tokens/s",
        f"{short(cost.total_nano)} {cost.currency}",
        f"{round(100 * cost.saved_nano / cost.without_cache_nano)} % saved" if cost.saved_nano > 0 else "",
    ]
    return " · ".join(part for part in parts if part)


def _reused(usage: Usage) -> str:
    reused = f"{usage.gpu_hit + usage.disk_hit:,} reused"
    return f"{reused}, {usage.disk_hit:,} of them from disk" if usage.disk_hit else reused


def screen_for(*, as_json: bool, console: Console) -> Screen:
    """JSON if asked for, the full screen on a terminal, plain text elsewhere."""
    if as_json:
        return JsonScreen(sys.stdout, sys.stderr)
    return TerminalScreen(console) if console.is_terminal else PlainScreen(sys.stdout, sys.stderr)
