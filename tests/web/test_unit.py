"""The page's own unit tests and its type check, run by Node from PyPI."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.web.conftest import ROOT, BuildHook

WEB = ROOT / "web"


@pytest.mark.parametrize(
    "program",
    [("vitest/vitest.mjs", "run"), ("svelte-check/bin/svelte-check", "--fail-on-warnings")],
    ids=["vitest", "svelte-check"],
)
def test_npm(program: tuple[str, str], build_hook: BuildHook) -> None:
    script, argument = program
    modules = WEB / "node_modules"
    assert modules.is_dir(), "web/node_modules is missing: remove web/dist and run `pip install -e .`"
    node, _ = build_hook.node_and_npm()
    done = subprocess.run(
        [node, Path("node_modules") / script, argument],
        cwd=WEB,
        env={**os.environ, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
