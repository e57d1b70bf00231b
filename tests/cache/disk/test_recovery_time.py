"""How long a start takes: 2 s for 100,000 records at most, whatever their size."""

import time
from pathlib import Path

import pytest

from chatd.cache.disk.tier import DiskTier
from chatd.cache.radix_node import pack
from chatd.ids import Namespace
from tests.cache.disk.faults import QuickFiles

BODY = 64
START_S = 2.0
RECORDS = 100_000


def fill(folder: Path, records: int) -> list[bytes]:
    """Paths of 100 blocks in 50 namespaces."""
    tier = DiskTier.open(folder, b"model", BODY, 1 << 40, files=QuickFiles())
    keys = []
    for path in range(records // 100):
        for block in tier.chain(pack([path] * 6400), Namespace(f"account-{path % 50}"), 0):
            tier._store.put(block, bytes(BODY))
            keys.append(block.key)
    tier.close()
    return keys


def start_s(folder: Path, keys: list[bytes]) -> float:
    """CPU-seconds, which is what it takes but for the reading of a few MB."""
    began = time.process_time()
    tier = DiskTier.open(folder, b"model", BODY, 1 << 40, files=QuickFiles())
    took = time.process_time() - began
    assert all(map(tier.has, keys))
    tier._store.index.check()
    tier.close()
    return took


def test_a_start_takes_its_share_of_two_seconds(tmp_path: Path) -> None:
    """With 4,000 records: 20 ms measured (2 cores of a Zen 5)."""
    keys = fill(tmp_path / "kv", 4000)
    assert start_s(tmp_path / "kv", keys) < START_S * 2 * 4000 / RECORDS


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_start_with_100_000_records(tmp_path: Path) -> None:
    """0.4 s measured (2 cores of a Zen 5)."""
    keys = fill(tmp_path / "kv", RECORDS)
    assert start_s(tmp_path / "kv", keys) < START_S
