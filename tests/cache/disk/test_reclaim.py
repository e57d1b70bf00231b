"""Space comes back: whole files, tails, and what is moved together."""

from pathlib import Path

import pytest

from chatd.cache.block_tier import ReadOutcome
from chatd.cache.disk.reclaim import Reclaimer
from chatd.cache.disk.segment import MOST_SLOTS, SEGMENT_BYTES, bodies_at, slots_for
from tests.cache.disk.faults import FaultyFiles, os_error
from tests.cache.disk.lab import BODY, QUOTA, SLOTS, check, closing, fetch, open_tier, path_of, put

pytestmark = pytest.mark.usefixtures("small_segments")
SEGMENT = bodies_at(SLOTS) + SLOTS * BODY


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.seg"))


def test_empty_files_go_and_sparse_ones_are_moved_together(tmp_path: Path) -> None:
    with closing(open_tier(tmp_path / "kv")) as tier:
        paths = [path_of(tier, first, 1) for first in range(12)]
        for path in paths:
            put(tier, path)
        kept = [paths[0], paths[3], paths[9]]  # one in each of three files, none in the second last
        tier._store.forget([path for path in paths if path not in kept])
        reclaimer = Reclaimer(tier._store)
        while reclaimer.step():
            check(tier)
        assert tier.stats().nbytes == SEGMENT
        assert len(names(tmp_path / "kv")) == 1
        assert tier.stats().events["moved"] == 2
        assert [fetch(tier, path[0]) for path in kept] == [ReadOutcome.OK] * 3
    with closing(open_tier(tmp_path / "kv")) as tier:
        assert [fetch(tier, path[0]) for path in kept] == [ReadOutcome.OK] * 3


def test_tails_are_cut_off(tmp_path: Path) -> None:
    with closing(open_tier(tmp_path / "kv")) as tier:
        put(tier, path_of(tier, 1, 2))
        put(tier, path_of(tier, 2, 1))
        tier._store.forget([path_of(tier, 2, 1)])
        assert Reclaimer(tier._store).step()
        assert (tmp_path / "kv" / "00000001.seg").stat().st_size == SEGMENT - BODY == tier.stats().nbytes


def test_a_full_tier_stays_as_it_is(tmp_path: Path) -> None:
    """Each new record takes the slot of an old one: no file is made, moved, or cut."""
    files = FaultyFiles()
    with closing(open_tier(tmp_path / "kv", files=files)) as tier:
        for first in range(40):
            put(tier, path_of(tier, first, 2))
        before = names(tmp_path / "kv")
        made = files.names_of_calls.count("create")
        for first in range(40, 60):
            put(tier, path_of(tier, first, 2))
            assert not Reclaimer(tier._store).step()
        assert names(tmp_path / "kv") == before
        assert files.names_of_calls.count("create") == made
        assert tier.stats().nbytes == QUOTA


def test_a_damaged_record_is_not_moved(tmp_path: Path) -> None:
    with closing(open_tier(tmp_path / "kv")) as tier:
        paths = [path_of(tier, first, 1) for first in range(6)]
        for path in paths:
            put(tier, path)
        tier._store.forget([paths[0], paths[4], paths[5]])
        file = tmp_path / "kv" / "00000002.seg"
        data = bytearray(file.read_bytes())
        data[bodies_at(SLOTS)] ^= 1
        file.write_bytes(data)
        while Reclaimer(tier._store).step():
            check(tier)
        assert tier.stats().events["damaged"] == 1
        assert tier.stats().blocks == 2


def test_a_move_that_cannot_be_synced_leaves_the_original(tmp_path: Path) -> None:
    files = FaultyFiles()
    with closing(open_tier(tmp_path / "kv", files=files)) as tier:
        paths = [path_of(tier, first, 1) for first in range(6)]
        for path in paths:
            put(tier, path)
        tier._store.forget([paths[0], paths[4], paths[5]])
        files.fault = lambda n, name: os_error(5) if name == "sync" else None
        with pytest.raises(OSError):
            Reclaimer(tier._store).step()
        check(tier)
        files.fault = lambda n, name: None
        assert [fetch(tier, path[0]) for path in paths[1:4]] == [ReadOutcome.OK] * 3
        while Reclaimer(tier._store).step():
            check(tier)
        assert len(names(tmp_path / "kv")) == 1


def test_sizes_of_segments() -> None:
    """256 MiB, a sixteenth of a small quota, a table of 1 MiB at most; one slot at least."""
    block = 1_474_560
    assert slots_for(block, 1 << 40) == SEGMENT_BYTES // (block + 512) == 181
    assert slots_for(block, 1 << 30) == 45
    assert slots_for(64, 1 << 40) == MOST_SLOTS
    assert slots_for(block, 2 * block) == 1
