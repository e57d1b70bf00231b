"""C4: records of another model, layout or format are never hits; they make room first."""

from pathlib import Path

import pytest

from chatd.cache.block_tier import ReadOutcome
from chatd.cache.disk import record, segment
from chatd.cache.disk.segment import bodies_at
from chatd.cache.disk.tier import DiskTier
from tests.cache.disk.faults import QuickFiles
from tests.cache.disk.lab import (
    ALICE,
    BOB,
    BODY,
    QUOTA,
    SLOTS,
    Clock,
    check,
    closing,
    fetch,
    open_tier,
    path_of,
    put,
    visible,
)

pytestmark = pytest.mark.usefixtures("small_segments")


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    folder = tmp_path / "kv"
    with closing(open_tier(folder)) as tier:
        put(tier, path_of(tier, 1, 6))
    return folder


def test_c4_another_fingerprint_has_no_hits(filled: Path) -> None:
    with closing(open_tier(filled, model=b"another")) as tier:
        blocks = path_of(tier, 1, 6)
        assert [fetch(tier, block) for block in blocks] == [ReadOutcome.MISSING] * 6
        assert not any(tier.has(block.key) for block in blocks)
        assert (tier.stats().blocks, tier.stats().foreign_blocks) == (0, 6)
    with closing(open_tier(filled)) as tier:  # and the first one's are still there
        assert [fetch(tier, block) for block in path_of(tier, 1, 6)] == [ReadOutcome.OK] * 6


def test_c4_even_under_equal_keys(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record found under a right key is checked for its own fingerprint, too."""
    with closing(open_tier(filled)) as tier:
        blocks = path_of(tier, 1, 6)
        tier._store.keys.fingerprint = bytes(16)
        for segment_ in tier._store.folder.segments.values():
            monkeypatch.setattr(segment_, "label", segment_.label._replace(fingerprint=bytes(16)))
        assert [fetch(tier, block) for block in blocks] == [ReadOutcome.DAMAGED] * 6


def test_c4_another_size_of_bodies_has_no_hits(filled: Path) -> None:
    """The fingerprint covers the layout; this is for when it should not."""
    from tests.cache.disk.lab import MODEL

    with closing(
        DiskTier.open(filled, MODEL, BODY * 2, QUOTA, files=QuickFiles(), clock=Clock(), timer=Clock())
    ) as tier:
        block = path_of(tier, 1, 1)[0]
        assert tier._store.fetch(block, memoryview(bytearray(BODY * 2))) is ReadOutcome.DAMAGED
        assert tier.stats().blocks == 0


def test_c4_another_format_is_removed(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (record, segment):
        monkeypatch.setattr(module, "FORMAT_VERSION", record.FORMAT_VERSION + 1)
    with closing(open_tier(filled)) as tier:
        assert not visible(tier)
        assert not list(filled.glob("*.seg"))
        assert tier.stats().events["damaged"] == 0


def test_c4_another_secret_removes_everything(filled: Path) -> None:
    """Nobody could find these records again, nor forget them."""
    (filled / "secret").unlink()
    with closing(open_tier(filled)) as tier:
        assert not tier._store.index.entries()
        assert not list(filled.glob("*.seg"))
        put(tier, path_of(tier, 1, 2))
        assert len(visible(tier)) == 2


def test_c4_others_make_room_first(filled: Path) -> None:
    with closing(open_tier(filled, model=b"another", clock=Clock(Clock().now + 100))) as tier:
        put(tier, path_of(tier, 2, 9))
        assert tier.stats().foreign_blocks == 6
        put(tier, path_of(tier, 3, 1))  # the quota is five segments
        assert (tier.stats().blocks, tier.stats().foreign_blocks) == (10, 3)
        put(tier, path_of(tier, 4, 5))
        assert (tier.stats().blocks, tier.stats().foreign_blocks) == (15, 0)
        assert tier.stats().events["evicted"] == 6
        check(tier)


def test_a_smaller_quota_drops_others_and_then_the_oldest(filled: Path) -> None:
    with closing(open_tier(filled, model=b"another")) as tier:
        put(tier, path_of(tier, 2, 9))
    two_segments = 2 * (bodies_at(SLOTS) + SLOTS * BODY)
    with closing(open_tier(filled, model=b"another", quota=two_segments)) as tier:
        while tier._keeping.step() == 0.0:
            pass
        assert tier.stats().foreign_blocks == 0
        assert [tier.has(block.key) for block in path_of(tier, 2, 9)] == [True] * 6 + [False] * 3
        check(tier)


def test_what_is_forgotten_is_forgotten_for_all_models(filled: Path) -> None:
    with closing(open_tier(filled, model=b"another")) as tier:
        put(tier, path_of(tier, 1, 3))
        assert tier._store.forget([path_of(tier, 1, 6)]) == 3 + 6
        assert not tier._store.index.entries()


def test_clearing_a_namespace_clears_it_for_all_models(filled: Path) -> None:
    with closing(open_tier(filled, model=b"another")) as tier:
        put(tier, path_of(tier, 2, 3, BOB))
        assert tier._store.clear(ALICE) == 6
        assert tier.stats().blocks == 3


def test_looking_shows_all_and_changes_nothing(filled: Path) -> None:
    with closing(DiskTier.look(filled)) as tier:
        (alice,) = tier.ls()
        assert (alice.namespace, alice.blocks, alice.current) == (ALICE, 6, False)
        assert [step.damage for step in tier.verify()] == [None] * 6
    with closing(open_tier(filled)) as tier:
        assert len(visible(tier)) == 6
