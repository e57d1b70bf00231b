"""C2 with a real `kill -9`: a process that writes dies somewhere, and all it acknowledged is there."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chatd.cache.block_tier import ReadOutcome
from tests.cache.disk.lab import QUOTA, check, closing, fetch, open_tier, path_of, visible

WRITER = """
import sys
from pathlib import Path
from tests.cache.disk.lab import QUOTA, Listener, open_tier, path_of
from chatd.cache.disk.files import Files
from chatd.cache.disk.tier import DiskTier

tier, listener = open_tier(Path(sys.argv[1]), files=Files(), quota=QUOTA * 40), Listener()
tier.start(listener)
for first in range(10**6):
    for block in path_of(tier, first, 8):
        if listener.written(tier, block):
            print(block.key.hex(), flush=True)
    if first % 5 == 4:
        tier.forget(1, [path_of(tier, first, 8)])
        listener.next()
        print("-", *(block.key.hex() for block in path_of(tier, first, 8)), flush=True)
"""


def kill_at(lines: int, folder: Path) -> int:
    """Let a process write, kill it once it has acknowledged so much, and look. How many were there."""
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    said = [child.stdout.readline() for _ in range(lines)]
    child.send_signal(signal.SIGKILL)
    said += child.stdout.readlines()
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    return look(said, folder)


def look(said: list[str], folder: Path) -> int:
    there: dict[str, None] = {}
    for line in said:
        if not line.endswith("\n"):
            break  # it died while it said so
        gone = line.split()[1:]
        for key in gone:
            del there[key]
        if not gone:
            there[line.strip()] = None
    with closing(open_tier(folder, quota=QUOTA * 40)) as tier:
        shown = {key.hex() for key in visible(tier)}
        in_hand = [block for first in range(len(said)) for block in path_of(tier, first, 8)]
        assert set(list(there)[:-8]) <= shown  # of the last path some may be forgotten already
        assert tier.stats().events["damaged"] == 0
        for block in in_hand:
            assert fetch(tier, block) is (ReadOutcome.OK if tier.has(block.key) else ReadOutcome.MISSING)
        assert tier.stats().events["damaged"] == 0
        check(tier)
    return len(shown)


def test_c2_kill_9_while_it_writes(tmp_path: Path) -> None:
    assert kill_at(random.Random(2).randrange(20, 60), tmp_path / "kv") > 10


@pytest.mark.full
@pytest.mark.timeout(300)
def test_c2_kill_9_again_and_again(tmp_path: Path) -> None:
    """Each time in the folder that the one before left."""
    for seed in range(30):
        kill_at(random.Random(seed).randrange(1, 200), tmp_path / "kv")
