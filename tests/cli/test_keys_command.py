"""``chatd keys`` without a server, and through one."""

import asyncio
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from chatd.cli.serve_screen import JsonScreen, PlainScreen, TerminalScreen
from chatd.data_dir import ServerAddress, hold_data_dir, write_address
from chatd.store.keys import PREFIX_CHARS
from tests.cli.commands import Run, run
from tests.support.live_server import bare_server

__all__ = ["run"]


def test_a_secret_is_shown_once(run: Run) -> None:
    code, out, err = run("keys", "create", "ann", "--budget", "2.5", "--turns", "2", "--scope", "chat")
    assert (code, err) == (0, "")
    assert "asks everybody for a key" in out
    secret = next(line for line in out.splitlines() if line.startswith("chatd-"))
    code, out, _ = run("keys", "list")
    assert secret not in out
    assert f"{secret[:PREFIX_CHARS]}…" in out
    assert "0 of 2 turns at once, 0 spent of 2.50 CNY a month" in out
    code, out, _ = run("keys", "create", "bob", "--account", "ann")
    assert "asks everybody" not in out


def test_json(run: Run) -> None:
    code, out, _ = run(
        "keys", "create", "ann", "--requests-per-min", "3", "--budget", "0.000000001", "--json"
    )
    made = json.loads(out)
    assert (code, made["account"], made["budget"]["nano"], made["requests_per_min"]) == (0, "ann", 1, 3)
    (listed,) = json.loads(run("keys", "list", "--json")[1])["keys"]
    assert "secret" not in listed
    revoked = json.loads(run("keys", "revoke", "ann", "--json")[1])
    assert revoked["revoked_at"] is not None
    assert "revoked 20" in run("keys", "list")[1]


def test_no_keys(run: Run) -> None:
    assert "whoever reaches the server" in run("keys", "list")[1]


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (("create", "a b"), "letters, digits"),
        (("create", "ann", "--account", "../x"), "letters, digits"),
        (("create", "ann", "--budget", "1e9"), "no amount of money"),
        (("create", "ann", "--budget", "-1"), "no amount of money"),
        (("create", "ann", "--scope", "all"), "'all' is not one of"),
        (("create", "ann", "--per", "day"), "the period of a --budget"),
        (("revoke", "nobody"), "There is no key nobody"),
        (("login",), "No server has the data folder"),
    ],
)
def test_mistakes(run: Run, args: tuple[str, ...], wanted: str) -> None:
    code, out, err = run("keys", *args)
    assert (code, out) == (2, "")
    assert wanted in err


def test_a_name_is_used_once(run: Run) -> None:
    assert run("keys", "create", "ann")[0] == 0
    assert run("keys", "revoke", "ann")[0] == 0
    assert "take another name" in run("keys", "create", "ann")[2]


@pytest.fixture
def served(data_dir: Path) -> Iterator[str]:
    """A server on ``data_dir``, on a thread of its own, known by its token."""
    started, done = threading.Event(), threading.Event()
    urls: list[str] = []

    async def serve() -> None:
        async with bare_server(data_dir) as server:
            server.state.admin_token = "the token"
            urls.append(server.url)
            write_address(data_dir, ServerAddress(1, server.url, "1", "the token"))
            started.set()
            await asyncio.to_thread(done.wait, 30)

    with hold_data_dir(data_dir):
        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        assert started.wait(20)
        yield urls[0]
        done.set()
        thread.join()


def test_through_the_server(run: Run, served: str) -> None:
    assert "There are no keys, so nobody has to log in" in run("keys", "login")[2]
    assert run("keys", "create", "ann")[0] == 0
    assert "take another name" in run("keys", "create", "ann")[2]
    code, out, _ = run("keys", "login", "ann")
    assert (code, out.startswith(f"{served}/#login=")) == (0, True)
    assert json.loads(run("keys", "login", "--json")[1])["expires_in"] == 600
    assert "ann" in run("keys", "list")[1]
    assert run("keys", "revoke", "ann")[0] == 0
    assert "not revoked" in run("keys", "login", "ann")[2]


def test_only_a_terminal_shows_a_way_in() -> None:
    """What goes anywhere else is kept, and somebody else may read it."""
    out = io.StringIO()
    TerminalScreen(Console(file=out, width=100)).keys(lambda: "http://x/#login=t")
    assert "http://x/#login=t" in out.getvalue()
    for kind in (PlainScreen, JsonScreen):
        kind(out := io.StringIO()).keys(lambda: pytest.fail("no address is wanted"))
        assert "keys" in out.getvalue()
