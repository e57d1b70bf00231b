"""A long ledger: any report in under 2 s and 200 MiB, measured in a process that does nothing else."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chatd.store.store import DATABASE_NAME
from chatd.store.upgrade import reading
from chatd.store.verify_rollups import verify_rollups
from tests.store.long_ledger import make_long_ledger

MEASURE = """
import json, resource, sys, time
from pathlib import Path
from chatd.price_file import changed, find_book, parse_changes
from chatd.store import latencies
from chatd.store.pricing import View
from chatd.store.reports import usage_report
from chatd.store.upgrade import reading
from chatd.store.usage import Asked, By, Scope
import numpy

peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
views = {
    "billed": View(),
    "repriced": View(find_book("openai-like")),
    "changed": View(change=lambda book: changed(book, parse_changes(["disk_hit=0.05"]))),
}
found = {}
with reading(Path(sys.argv[1])) as connection:
    usage_report(connection, Asked(By.MODEL, limit=1))
    before = peak()
    for name, view in views.items():
        for by in By:
            for scope in (Scope(), Scope(first_day=20_500, last_day=20_530)):
                began = time.process_time()
                usage_report(connection, Asked(by, scope, view, limit=1000))
                spent = time.process_time() - began
                found[f"{name} {by} {scope.first_day or 'all'}"] = spent
print(json.dumps({"seconds": found, "bytes": (peak() - before) * 1024}))
"""


def measured(folder: Path) -> tuple[dict[str, float], int]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder / DATABASE_NAME)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["seconds"], found["bytes"]


def check(folder: Path, *, most_s: float, most_bytes: int) -> None:
    seconds, size = measured(folder)
    slow = {name: spent for name, spent in seconds.items() if spent >= most_s}
    assert slow == {}
    assert size < most_bytes


def test_any_report_of_20_thousand_turns(data_dir: Path) -> None:
    """CPU time, as other work on the machine says nothing; a fiftieth of the ledger, a tenth of the time,
    because days and models are as many.
    """
    folder = make_long_ledger(data_dir, 20_000)
    check(folder, most_s=0.4, most_bytes=60 << 20)
    findings: list[str] = []
    with reading(folder / DATABASE_NAME) as connection:
        verify_rollups(connection, lambda holds, *words: None if holds else findings.append(str(words)))
    assert findings == []


@pytest.mark.full
@pytest.mark.timeout(900)
def test_any_report_of_a_million_turns(data_dir: Path) -> None:
    began = time.monotonic()
    folder = make_long_ledger(data_dir, 1_000_000)
    print(f"made in {time.monotonic() - began:.0f} s")
    check(folder, most_s=2.0, most_bytes=200 << 20)
