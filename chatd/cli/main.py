"""The ``chatd`` command: its group, and what a failed command prints."""

import os
import sys
from collections.abc import Sequence

import click

from chatd import __version__
from chatd.cli.bench import bench
from chatd.cli.cache import cache
from chatd.cli.chat import chat
from chatd.cli.db import db
from chatd.cli.doctor import doctor
from chatd.cli.export import export, import_
from chatd.cli.groups import CommandGroup
from chatd.cli.keys import keys
from chatd.cli.metrics import metrics
from chatd.cli.report import report
from chatd.cli.serve import serve
from chatd.errors import ChatdError

EXIT_SETUP = 2
"""A wrong setting or a server that cannot start; click uses the same for wrong usage."""
EXIT_INTERRUPTED = 128 + 2
EXIT_PIPE = 128 + 13


@click.group(
    cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="chatd")
def cli() -> None:
    """A self-hosted chat server whose later turns are nearly free.

    Start with `chatd serve`, then open the page it names, or `chatd chat` in another terminal.
    """


cli.add_command(serve)
cli.add_command(chat)
cli.add_command(report)
cli.add_command(export)
cli.add_command(import_)
cli.add_command(db)
cli.add_command(keys)
cli.add_command(cache)
cli.add_command(metrics)
cli.add_command(bench)
cli.add_command(doctor)


def main(args: Sequence[str] | None = None) -> None:
    """Run a command. Errors meant for people become one message, without a traceback."""
    try:
        code = cli.main(args, prog_name="chatd", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        code = EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_PIPE
    except ChatdError as error:
        click.secho(f"chatd: {error.message}", err=True, fg="red" if sys.stderr.isatty() else None)
        code = EXIT_SETUP
    sys.exit(code if isinstance(code, int) else 0)
