"""``chatd metrics``: what to look at the metrics with."""

import sys
from pathlib import Path

import click

from chatd.cli.groups import CommandGroup
from chatd.cli.options import common_options
from chatd.resources import dashboard


@click.group(cls=CommandGroup)
def metrics() -> None:
    """The figures that the server has for Prometheus under /metrics."""


@metrics.command(name="dashboard")
@common_options
def show_dashboard(config_file: Path | None, as_json: bool, data_dir: str | None) -> None:
    """Print a dashboard for Grafana, as JSON: `chatd metrics dashboard > chatd.json`, then import that."""
    sys.stdout.write(dashboard())
