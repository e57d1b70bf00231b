"""``chatd chat``: talk to the running server from a terminal or a pipe."""

import asyncio
import contextlib
import io
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from chatd.cli.chat_client import AnswerClient, Heard, hello
from chatd.cli.chat_screen import Screen, harmless, screen_for
from chatd.cli.connect import server_at, wait_ready
from chatd.cli.find import find_view, path_of
from chatd.cli.ids import new_id
from chatd.cli.options import common_options, settings_from
from chatd.data_dir import ServerAddress, live_server
from chatd.errors import ChatdError, NotFound, SetupError
from chatd.server.protocol import (
    AnyEnding,
    ResponseCancelled,
    ResponseCreate,
    ResponseCreated,
    ResponseFailed,
    SessionCreated,
)

EXIT_FAILED, EXIT_INTERRUPTED = 1, 130

HELP = """\
/new       start a new conversation
/retry     answer the last message once more
/continue  go on with an answer that was cut off
/help      this list
/quit      leave (Ctrl-D does, too)
Ctrl-C stops an answer. A line that ends in \\ goes on in the next."""


@dataclass
class Talk:
    """The conversation so far, as far as the next request has to name it.

    ``look`` finds the server anew, which may have restarted with another address and token. ``unheard`` is a
    request whose answer was not heard to its end because the server could not be reached.
    """

    server: ServerAddress
    params: dict[str, Any]
    look: Callable[[], ServerAddress | None] = lambda: None
    conversation_id: str | None = None
    last_answer_id: str | None = None
    unheard: ResponseCreate | None = None

    def resume(self, view: dict[str, Any]) -> None:
        """Go on with a conversation as the server shows it; an empty ``view`` is a new one."""
        answers = [message["id"] for message in path_of(view) if message["role"] == "assistant"]
        self.conversation_id = view.get("id")
        self.last_answer_id = answers[-1] if answers else None
        self.unheard = None

    def message(self, text: str) -> ResponseCreate:
        return ResponseCreate(new_id(), input=text, conversation_id=self.conversation_id, params=self.params)

    def retry(self) -> ResponseCreate:
        """The unheard request as it was: its key makes sure that it is answered only once."""
        if self.unheard is not None:
            return self.unheard
        return ResponseCreate(new_id(), regenerate=self._answer(), params=self.params)

    def go_on(self) -> ResponseCreate:
        return ResponseCreate(new_id(), continues=self._answer(), params=self.params)

    def _answer(self) -> str:
        if self.last_answer_id is None:
            raise NotFound("There is no answer in this conversation yet.")
        return self.last_answer_id


@click.command()
@click.option("--conversation", metavar="ID", help="Go on with this one; the beginning of its id will do.")
@click.option("--last", is_flag=True, help="Go on with the conversation that was used last.")
@click.option("--temperature", type=float, metavar="T", help="0 always takes the likeliest token.")
@click.option("--max-tokens", type=int, metavar="N", help="The longest answer.")
@click.option("--seed", type=int, metavar="N", help="The same seed draws the same answer.")
@click.option("--truncate", is_flag=True, help="Leave out the oldest turns when all do not fit.")
@click.option("--url", metavar="URL", help="A server elsewhere.  [default: the one that has the data folder]")
@common_options
def chat(
    conversation: str | None,
    last: bool,
    temperature: float | None,
    max_tokens: int | None,
    seed: int | None,
    truncate: bool,
    url: str | None,
    config_file: Path | None,
    as_json: bool,
    data_dir: str | None,
) -> int:
    """Talk to the running server.

    On a terminal: a conversation with streamed answers; Ctrl-C stops an answer, Ctrl-D leaves. With text
    piped in: one message and its answer, as in `echo "Why is the sky blue?" | chatd chat`.
    """
    if conversation and last:
        raise click.UsageError("--conversation and --last exclude each other.")
    console = Console(highlight=False)
    truncation = "auto" if truncate else None
    params = {
        "temperature": temperature,
        "max_tokens": max_tokens,
        "seed": seed,
        "truncation": truncation,
    }
    given = {name: value for name, value in params.items() if value is not None}
    settings = settings_from({"data_dir": data_dir}, config_file)
    look = partial(live_server, settings.data_dir) if url is None else lambda: None
    talk = Talk(server_at(settings, url), given, look)
    _wait_ready(talk.server, console)
    view = find_view(talk.server, conversation, last)
    talk.resume(view)
    with asyncio.Runner() as runner:
        if not sys.stdin.isatty():
            return _once(runner, talk, screen_for(as_json=as_json, console=console))
        if not as_json:
            _greet(console, talk.server.url, runner.run(hello(talk.server, talk.conversation_id)), view)
        return _converse(runner, talk, console, as_json=as_json)


def _wait_ready(server: ServerAddress, console: Console) -> None:
    if not console.is_terminal:
        return wait_ready(server, lambda _: None)
    with console.status("") as status:
        return wait_ready(server, lambda text: status.update(f"[dim]the server is starting: {text}[/dim]"))


def _greet(console: Console, url: str, session: SessionCreated, view: dict[str, Any]) -> None:
    context = f"{session.context_length:,} tokens of context" if session.context_length else ""
    console.print(f"[bold]chatd[/bold] · {escape(session.model or '')} · {context} · {escape(url)}")
    console.print("/help lists commands · Ctrl-C stops an answer · Ctrl-D leaves", style="dim")
    if view:
        console.print(f"\nGoing on with [bold]{escape(harmless(view['title']))}[/bold] ({view['id']})")
    for message in path_of(view)[-2:]:
        mark = "> " if message["role"] == "user" else ""
        console.print(mark + harmless(message["text"]), style="dim", markup=False)
    console.print()


def _once(runner: asyncio.Runner, talk: Talk, screen: Screen) -> int:
    """One message from standard input."""
    text = piped_text(sys.stdin.buffer.read())
    ending = _answer(runner, talk, talk.message(text), screen)
    if ending is None or isinstance(ending, ResponseCancelled):
        return EXIT_INTERRUPTED
    return EXIT_FAILED if isinstance(ending, ResponseFailed) else 0


def piped_text(raw: bytes) -> str:
    """UTF-8, whatever the locale. `UsageError` for anything else, and for nothing."""
    try:
        text = raw.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"standard input is not UTF-8 text: byte {error.start:,} is 0x{raw[error.start]:02x}."
        ) from None
    if not text:
        raise click.UsageError("there is no message: standard input is empty.")
    return text


def _converse(runner: asyncio.Runner, talk: Talk, console: Console, *, as_json: bool) -> int:
    import readline  # noqa: F401  (gives input() its line editing and history)

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # see `_read_line`
    prompt = "" if as_json else "> "
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while _obey(runner, talk, next_message(prompt, console), console, as_json=as_json):
            pass
    console.print()
    return 0


def next_message(prompt: str, console: Console) -> str:
    """What the person types. The first Ctrl-C clears the line, the second is raised."""
    try:
        return _read_message(prompt)
    except KeyboardInterrupt:
        console.print("\nCtrl-C again, or Ctrl-D, leaves.", style="dim")
        return _read_message(prompt)


def _obey(runner: asyncio.Runner, talk: Talk, line: str, console: Console, *, as_json: bool) -> bool:
    """Do what the line says. False: leave."""
    try:
        match line.strip():
            case "":
                return True
            case "/quit" | "/exit":
                return False
            case "/help":
                console.print(HELP, style="dim", markup=False)
                return True
            case "/new":
                talk.resume({})
                console.print("A new conversation.", style="dim")
                return True
            case "/retry":
                create = talk.retry()
            case "/continue":
                create = talk.go_on()
            case command if re.fullmatch(r"/[a-z]+", command):
                raise NotFound(f"There is no command {command}; /help lists them.")
            case text:
                create = talk.message(text)
        return _answer(runner, talk, create, screen_for(as_json=as_json, console=console)) is not None
    except ChatdError as error:
        console.print(error.message, style="red", markup=False)
        if talk.unheard is not None:
            console.print("Your message is kept: /retry sends it again.", style="dim")
        return True


def _read_message(prompt: str) -> str:
    """One line of a person, or several joined by backslashes. Bytes that are no text come as U+FFFD."""
    lines = [_read_line(prompt)]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(_read_line("  "))
    return "\n".join(lines)


def _read_line(prompt: str) -> str:
    line = input(prompt)
    return line.encode(errors="surrogateescape").decode(errors="replace")


def _answer(runner: asyncio.Runner, talk: Talk, create: ResponseCreate, screen: Screen) -> AnyEnding | None:
    """Have one answer shown. None: the person left in the middle of it."""
    talk.unheard = None
    try:
        client = AnswerClient(talk.server, create, look=talk.look)
        return runner.run(_interruptible(client, talk, screen))
    except asyncio.CancelledError:
        return None
    except SetupError:
        talk.unheard = create
        raise
    finally:
        screen.close()


async def _interruptible(client: AnswerClient, talk: Talk, screen: Screen) -> AnyEnding:
    """The first Ctrl-C asks the server to stop, the second gives up."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task
    asked = False

    def on_interrupt() -> None:
        nonlocal asked
        if asked:
            task.cancel()
        asked = True
        client.cancel()

    def heard(event: Heard) -> None:
        if isinstance(event, ResponseCreated):
            talk.conversation_id, talk.last_answer_id = event.conversation_id, event.message_id
        screen.heard(event)

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    try:
        return await client.run(heard)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
