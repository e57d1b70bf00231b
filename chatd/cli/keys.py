"""``chatd keys``: who may talk to the server, as whom, and how much.

Through the running server, which shows out at once whoever may not stay; without one on the files, once
their lock could be had.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from chatd.cli import keys_view
from chatd.cli.connect import ask_operator
from chatd.cli.groups import CommandGroup
from chatd.cli.options import common_options, setting_options, settings_from
from chatd.cli.report_view import write_json
from chatd.data_dir import live_server
from chatd.errors import SetupError

ROUTE = "/api/v1/admin/keys"
LOGINS = "/api/v1/admin/logins"
NANO_PLACES = 9


class Money(click.ParamType):  # type: ignore[type-arg]
    """A decimal, as whole billionths."""

    name = "AMOUNT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(rf"([0-9]{{1,9}})(?:\.([0-9]{{1,{NANO_PLACES}}}))?", value)
        if found is None:
            self.fail(f"{value} is no amount of money such as 5 or 2.50", param, ctx)
        whole, decimals = found.groups(default="")
        nano: int = int(whole) * 10**NANO_PLACES + int(decimals.ljust(NANO_PLACES, "0"))
        return nano


@click.group(cls=CommandGroup)
def keys() -> None:
    """Keys: who may talk to the server, as whom, and how much."""


@keys.command()
@click.argument("name")
@click.option(
    "--account",
    metavar="NAME",
    help="Whose key it is: keys of one account see the same things. "
    "`local` is this machine's own user.  [default: one of its own]",
)
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(["chat", "report", "admin"]),
    multiple=True,
    help="What it is good for; can be given more than once.  [default: chat and report]",
)
@click.option(
    "--requests-per-min", type=click.IntRange(1), metavar="N", help="Answers asked for in a minute."
)
@click.option("--tokens-per-min", type=click.IntRange(1), metavar="N", help="Tokens of prompts and answers.")
@click.option("--turns", type=click.IntRange(1), metavar="N", help="Answers under way at once.")
@click.option("--budget", type=Money(), help="Most that its answers may cost in a period, such as 2.50.")
@click.option(
    "--per",
    type=click.Choice(["day", "month"]),
    help="The budget's period, in UTC.  [default: month]",
)
@setting_options(["prices"])
@common_options
def create(
    name: str,
    account: str | None,
    scopes: tuple[str, ...],
    requests_per_min: int | None,
    tokens_per_min: int | None,
    turns: int | None,
    budget: int | None,
    per: str | None,
    config_file: Path | None,
    as_json: bool,
    **flags: object,
) -> int:
    """Make the key NAME and show its secret, once. With the first key the server asks everybody for one."""
    if per is not None and budget is None:
        raise click.UsageError("--per is the period of a --budget, and there is none.")
    settings = settings_from(flags, config_file)
    body: dict[str, Any] = {
        "name": name,
        "account": account,
        "requests_per_min": requests_per_min,
        "tokens_per_min": tokens_per_min,
        "turns": turns,
        "budget": None if budget is None else {"nano": budget, "period": per or "month"},
    }
    if scopes:
        body["scopes"] = scopes
    if server := live_server(settings.data_dir):
        made = ask_operator(server, "POST", ROUTE, body)
    else:
        from chatd.cli import keys_offline

        made = keys_offline.create(settings, body)
    _show(made, as_json, keys_view.print_made)
    return 0


@keys.command("list")
@common_options
def list_(config_file: Path | None, as_json: bool, **flags: object) -> int:
    """Every key with its limits, and what counts against them now. Never a secret."""
    settings = settings_from(flags, config_file)
    if server := live_server(settings.data_dir):
        found = ask_operator(server, "GET", ROUTE)
    else:
        from chatd.cli import keys_offline

        found = keys_offline.listing(settings)
    _show(found, as_json, keys_view.print_keys)
    return 0


@keys.command()
@click.argument("name")
@common_options
def revoke(name: str, config_file: Path | None, as_json: bool, **flags: object) -> int:
    """Nobody comes in with the key NAME any more: its sockets close, its answers end. The bill stays."""
    settings = settings_from(flags, config_file)
    if server := live_server(settings.data_dir):
        gone = ask_operator(server, "DELETE", f"{ROUTE}/{name}")
    else:
        from chatd.cli import keys_offline

        gone = keys_offline.revoke(settings, name)
    _show(gone, as_json, keys_view.print_revoked)
    return 0


@keys.command()
@click.argument("name", required=False)
@common_options
def login(name: str | None, config_file: Path | None, as_json: bool, **flags: object) -> int:
    """Print an address that logs a browser in as the key NAME, once, within ten minutes.

    Without NAME it is the operator's own page, with the conversations of the account `local`.
    """
    settings = settings_from(flags, config_file)
    server = live_server(settings.data_dir)
    if server is None:
        raise SetupError(
            f"No server has the data folder {settings.data_dir} open. Start one with `chatd serve`."
        )
    made = ask_operator(server, "POST", LOGINS, {"key": name})
    url = f"{server.url}/#login={made['token']}"
    _show({"url": url, "expires_in": made["expires_in"]}, as_json, keys_view.print_login)
    return 0


def _show(found: Any, as_json: bool, pretty: Callable[[Any, Console], None]) -> None:
    if as_json:
        write_json(found, sys.stdout)
    else:
        pretty(found, Console(highlight=False))
