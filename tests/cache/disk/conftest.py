"""What the tests of the disk tier may use."""

import pytest

from chatd.cache.disk import room, tier
from tests.cache.disk.lab import SLOTS


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of three slots, so that a few records make many files."""
    for module in (room, tier):
        monkeypatch.setattr(module, "slots_for", lambda body_len, quota_bytes: SLOTS)
