"""``chatd serve``: from settings to a running server, and to its orderly end."""

import asyncio
import os
import sys
from pathlib import Path

import click

from chatd.cli.cores import wait_briefly
from chatd.cli.options import common_options, setting_options, settings_from
from chatd.config import settings_table
from chatd.logs import configure_logs

SERVER_SETTINGS = [name for name in settings_table() if name != "data_dir"]


@click.command()
@setting_options(SERVER_SETTINGS)
@common_options
def serve(config_file: Path | None, as_json: bool, **flags: object) -> int:
    """Run the server: the page, the WebSocket, the OpenAI endpoint.

    Every option can also be set in the configuration file and, with CHATD_ in front, in the environment.
    """
    settings = settings_from(flags, config_file)
    configure_logs(as_json=as_json or not sys.stderr.isatty(), level=settings.log_level)
    wait_briefly(os.environ)
    # torch takes a second to import: the other commands, and wrong settings, do without it.
    from chatd.cli.loading import check
    from chatd.cli.running import run
    from chatd.cli.serve_screen import screen_for

    check(settings)
    screen = screen_for(as_json=as_json)
    asyncio.run(run(settings, screen))
    screen.stopped()
    return 0
