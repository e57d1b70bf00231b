"""C1: the n-th write fails. Its record is not visible, nothing is left lying; writing resumes by itself."""

import errno
from pathlib import Path

import pytest

from chatd.cache.block_tier import Block, BlockRead, ReadOutcome
from chatd.cache.disk.failures import FIRST_PAUSE_S, LONGEST_PAUSE_S
from chatd.cache.disk.tier import DiskTier
from tests.cache.disk.faults import FaultyFiles, os_error
from tests.cache.disk.lab import (
    Buffer,
    Clock,
    Listener,
    body_of,
    check,
    closing,
    fetch,
    open_tier,
    path_of,
    put,
    visible,
)

pytestmark = pytest.mark.usefixtures("small_segments")

ERRORS = [errno.ENOSPC, errno.EIO, errno.EDQUOT]


def blocks_of(tier: DiskTier) -> list[Block]:
    """Two more than the quota holds: so the last ones take the slots of old ones."""
    return [*path_of(tier, 1, 10), *path_of(tier, 2, 7)]


class Disk(FaultyFiles):
    """Fails the n-th write or creation from now on, once `fail_at` is called; ``full``: all from there on."""

    def __init__(self, number: int) -> None:
        super().__init__(self._fault)
        self.full = False
        self._number = number
        self._countdown = 0

    def fail_at(self, n: int) -> None:
        self._countdown = n

    def _fault(self, call: int, name: str) -> OSError | None:
        if not self._countdown or name not in ("create", "write"):
            return None
        if self._countdown > 1:
            self._countdown -= 1
            return None
        self._countdown = int(self.full)
        return os_error(self._number)


def writes_of(tmp_path: Path) -> int:
    """How many calls there are that can fail."""
    disk = Disk(errno.EIO)
    tier = open_tier(tmp_path / "whole", files=disk)
    before = len(disk.names_of_calls)
    put(tier, blocks_of(tier))
    names = disk.names_of_calls[before:]
    tier.close()
    return sum(name in ("create", "write") for name in names)


@pytest.mark.parametrize("number", ERRORS)
@pytest.mark.parametrize("in_middle", [False, True])
def test_c1_one_write_fails(tmp_path: Path, number: int, in_middle: bool) -> None:
    for n in range(1, writes_of(tmp_path) + 1):
        disk, clock, listener = Disk(number), Clock(), Listener()
        disk.in_middle = in_middle
        folder = tmp_path / str(n)
        with closing(open_tier(folder, files=disk, clock=clock)) as tier:
            tier.start(listener)
            disk.fail_at(n)
            outcomes = {}
            for block in blocks_of(tier):
                outcomes[block.key] = listener.written(tier, block)
                if not outcomes[block.key]:
                    check(tier)  # what was appended in part is cut off again
                clock.now += FIRST_PAUSE_S
            assert_failed_once(tier, outcomes, errno.errorcode[number])
        assert not list(folder.glob("*.new"))
        with closing(open_tier(folder)) as tier:
            assert_failed_once(tier, outcomes, "")


def assert_failed_once(tier: DiskTier, outcomes: dict[bytes, bool], cause: str) -> None:
    """One block at most is missing for the failure (it or its room); all others are right."""
    check(tier)
    lost = {key for key, ok in outcomes.items() if not ok}
    assert len(lost) <= 1
    assert not lost & visible(tier)
    for block in blocks_of(tier):
        outcome = fetch(tier, block)
        assert outcome is (ReadOutcome.OK if tier.has(block.key) else ReadOutcome.MISSING)
    if cause:
        assert tier.stats().failures in ({f"write {cause}": 1}, {f"remove {cause}": 1, f"write {cause}": 1})
    assert tier.stats().events["damaged"] == 0


def accepts(tier: DiskTier) -> bool:
    """What it says now; it may say something else the next time."""
    return tier.accepts


@pytest.mark.parametrize("number", ERRORS)
def test_c1_a_full_disk_stops_writing_until_there_is_room(tmp_path: Path, number: int) -> None:
    disk, clock, listener = Disk(number), Clock(), Listener()
    with closing(open_tier(tmp_path / "kv", files=disk, clock=clock)) as tier:
        tier.start(listener)
        blocks = path_of(tier, 1, 12)
        assert all(listener.written(tier, block) for block in blocks[:4])
        disk.full = True
        disk.fail_at(1)
        assert not listener.written(tier, blocks[4])
        assert not accepts(tier)
        assert tier.stats().suspended == errno.errorcode[number]
        tried = disk.calls
        assert not listener.written(tier, blocks[4])  # while it is suspended the disk is left alone
        assert disk.calls == tried
        for pause in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
            clock.now += pause - 0.01
            assert not accepts(tier)
            clock.now += 0.01
            assert accepts(tier)
            assert not listener.written(tier, blocks[4])
        tier.read(2, blocks[0], buffer := Buffer(bytes(640)))
        completion = listener.next()
        assert isinstance(completion, BlockRead)
        assert completion.outcome is ReadOutcome.OK
        assert buffer.view == body_of(blocks[0])

        disk.full = False
        disk.fail_at(0)
        clock.now += LONGEST_PAUSE_S
        assert all(listener.written(tier, block) for block in blocks[4:])
        assert accepts(tier)
        assert tier.stats().suspended == ""
        assert tier.stats().failures[f"write {errno.errorcode[number]}"] == 9
        check(tier)
    with closing(open_tier(tmp_path / "kv")) as tier:
        assert [fetch(tier, block) for block in blocks] == [ReadOutcome.OK] * 12


def test_c1_a_full_tier_on_a_disk_that_may_only_be_read_keeps_what_it_has(tmp_path: Path) -> None:
    disk = Disk(errno.EROFS)
    with closing(open_tier(tmp_path / "kv", files=disk)) as tier:
        put(tier, blocks_of(tier))
        before = visible(tier)
        disk.full = True
        disk.fail_at(1)
        for block in path_of(tier, 3, 3):
            with pytest.raises(OSError, match="EROFS"):
                put(tier, [block])
        assert len(before - visible(tier)) == 3  # one for each try
        tier._store.quota_bytes = 1
        tier._keeping.soon()
        while tier._keeping.step() == 0:
            pass
        assert len(before - visible(tier)) <= 4


def test_c1_rules_that_cannot_be_saved_hold_and_are_saved_later(tmp_path: Path) -> None:
    disk = Disk(errno.ENOSPC)
    clock = Clock()
    tier = open_tier(tmp_path / "kv", files=disk, clock=clock)
    disk.fail_at(1)
    tier.pin("greeting", path_of(tier, 1, 2))
    assert [one.name for one in tier.pins()] == ["greeting"]
    assert tier.stats().failures == {"save ENOSPC": 1}
    assert not list((tmp_path / "kv").glob("*.new"))
    tier.close()
    with closing(open_tier(tmp_path / "kv")) as tier:
        assert [one.name for one in tier.pins()] == ["greeting"]


def test_c1_a_removal_that_the_disk_refuses_is_tried_again(tmp_path: Path) -> None:
    disk = Disk(errno.EIO)
    tier = open_tier(tmp_path / "kv", files=disk)
    blocks = path_of(tier, 1, 2)
    put(tier, blocks)
    disk.fail_at(1)
    assert tier._store.forget([blocks]) == 2
    assert not visible(tier)
    assert tier.stats().failures == {"remove EIO": 1}
    assert tier._store.folder.undead == 1
    tier._keeping.step()
    while tier._store.folder.undead:
        tier._keeping.step()
    tier.close()
    with closing(open_tier(tmp_path / "kv")) as tier:
        assert not visible(tier)
