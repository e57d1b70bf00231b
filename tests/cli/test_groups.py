"""The lists of commands."""

import click
import pytest
from click.testing import CliRunner

from chatd.cli.main import cli

GROUPS = [(), *((name,) for name, each in cli.commands.items() if isinstance(each, click.Group))]


@pytest.mark.parametrize("path", GROUPS, ids=" ".join)
def test_what_a_command_is_for_is_said_to_the_end(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80).output
    commands = shown.partition("Commands:\n")[2]
    assert commands
    assert "..." not in commands
    assert max(map(len, commands.splitlines())) <= 80
