"""``chatd metrics dashboard``: the dashboard, ready for Grafana."""

import json

from click.testing import CliRunner

from chatd.cli.main import cli
from chatd.resources import dashboard


def test_the_dashboard_is_printed_as_it_is() -> None:
    done = CliRunner().invoke(cli, ["metrics", "dashboard"])
    assert (done.exit_code, done.output) == (0, dashboard())
    assert json.loads(done.output)["title"] == "chatd"
