"""C3: whatever happens to the files, a damaged record is a counted miss and never a wrong hit."""

import errno
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from chatd.cache.block_tier import Block, ReadOutcome
from chatd.cache.disk.record import HEADER_BYTES
from chatd.cache.disk.segment import bodies_at, header_at
from chatd.cache.disk.tier import DiskTier
from tests.cache.disk.faults import FaultyFiles, os_error
from tests.cache.disk.lab import (
    ALICE,
    BOB,
    BODY,
    SLOTS,
    abandon,
    check,
    closing,
    fetch,
    open_tier,
    path_of,
    put,
    visible,
)

pytestmark = pytest.mark.usefixtures("small_segments")

FIRST_BODY = bodies_at(SLOTS)
RECORD = [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + BODY // 2, HEADER_BYTES + BODY - 1]
"""Where a record is cut: 0, 1, header-1, header, half, len-1."""
HEADER_CUTS = [header_at(1) + at for at in RECORD[:3]]
BODY_CUTS = [FIRST_BODY + BODY + at - HEADER_BYTES for at in RECORD[3:]]

Damage = Callable[[random.Random, Path], None]


def blocks_of(tier: DiskTier) -> list[Block]:
    return [*path_of(tier, 1, 7), *path_of(tier, 2, 5, BOB)]


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A folder with four full segments."""
    folder = tmp_path / "filled"
    with closing(open_tier(folder)) as tier:
        put(tier, blocks_of(tier))
    return folder


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.seg"))


def two(rng: random.Random, folder: Path) -> tuple[Path, Path]:
    first, second = rng.sample(segments(folder), 2)
    return first, second


def flip(rng: random.Random, folder: Path) -> None:
    """One bit of a header in use or a body."""
    path = rng.choice(segments(folder))
    data = bytearray(path.read_bytes())
    at = rng.choice([rng.randrange(header_at(0), header_at(SLOTS)), rng.randrange(FIRST_BODY, len(data))])
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def flip_label(rng: random.Random, folder: Path) -> None:
    path = rng.choice(segments(folder))
    data = bytearray(path.read_bytes())
    data[rng.randrange(HEADER_BYTES)] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def zero(rng: random.Random, folder: Path) -> None:
    """A sector that reads as zeros."""
    path = rng.choice(segments(folder))
    data = bytearray(path.read_bytes())
    at = rng.randrange(FIRST_BODY // HEADER_BYTES, len(data) // HEADER_BYTES) * HEADER_BYTES
    data[at : at + HEADER_BYTES] = bytes(HEADER_BYTES)
    path.write_bytes(data)


def cut(rng: random.Random, folder: Path) -> None:
    path = rng.choice(segments(folder))
    size = rng.choice([0, 1, *HEADER_CUTS, *BODY_CUTS, rng.randrange(path.stat().st_size)])
    path.write_bytes(path.read_bytes()[:size])


def swap_bodies(rng: random.Random, folder: Path) -> None:
    swap(two(rng, folder), FIRST_BODY + rng.randrange(SLOTS) * BODY, BODY)


def swap_headers(rng: random.Random, folder: Path) -> None:
    swap(two(rng, folder), header_at(rng.randrange(SLOTS)), HEADER_BYTES)


def swap(paths: tuple[Path, Path], at: int, size: int) -> None:
    first, second = (bytearray(path.read_bytes()) for path in paths)
    first[at : at + size], second[at : at + size] = second[at : at + size], first[at : at + size]
    paths[0].write_bytes(first)
    paths[1].write_bytes(second)


def swap_files(rng: random.Random, folder: Path) -> None:
    first, second = two(rng, folder)
    aside = folder / "aside"
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def rename(rng: random.Random, folder: Path) -> None:
    rng.choice(segments(folder)).rename(folder / f"{rng.choice([5, 77, 123456789])}.seg".zfill(12))


def copy_over(rng: random.Random, folder: Path) -> None:
    first, second = two(rng, folder)
    shutil.copyfile(first, second)


def duplicate(rng: random.Random, folder: Path) -> None:
    shutil.copyfile(rng.choice(segments(folder)), folder / "00000042.seg")


def remove(rng: random.Random, folder: Path) -> None:
    rng.choice(segments(folder)).unlink()


def damage_a_side_file(rng: random.Random, folder: Path) -> None:
    path = folder / rng.choice(["recency", "rules.json", "secret"])
    data = bytearray(path.read_bytes() if path.exists() else b"?")
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data[: rng.choice([len(data), len(data) // 2])])


COUNTED: list[Damage] = [flip, swap_bodies, zero]
"""What takes single records, all of which the tier can count."""
DAMAGES: list[Damage] = [
    *COUNTED,
    swap_headers,
    flip_label,
    cut,
    swap_files,
    rename,
    copy_over,
    duplicate,
    remove,
    damage_a_side_file,
]


def survey(tier: DiskTier) -> tuple[int, int]:
    """Misses and damages after every block was looked up and read. Those that are read are right."""
    blocks = blocks_of(tier)
    outcomes = [fetch(tier, block) for block in blocks]
    for block, outcome in zip(blocks, outcomes, strict=True):
        assert tier.has(block.key) == (outcome is ReadOutcome.OK)
        assert fetch(tier, block) is (ReadOutcome.OK if tier.has(block.key) else ReadOutcome.MISSING)
    missed = sum(outcome is not ReadOutcome.OK for outcome in outcomes)
    put(tier, blocks)
    assert [fetch(tier, block) for block in blocks] == [ReadOutcome.OK] * len(blocks)
    return missed, tier.stats().events["damaged"]


def damage_at_rest(seed: int, damage: Damage, filled: Path, folder: Path) -> None:
    """The files are damaged while no server runs."""
    shutil.copytree(filled, folder)
    damage(random.Random(seed), folder)
    with closing(open_tier(folder)) as tier:
        missed, counted = survey(tier)
        check(tier)
    if damage in COUNTED:
        assert 0 < missed == counted
    assert missed <= counted * SLOTS or damage in (remove, cut, copy_over, damage_a_side_file)
    shutil.rmtree(folder)


def damage_in_use(seed: int, damage: Damage, filled: Path, folder: Path) -> None:
    """The files are damaged under a running server: every miss of what was stored is counted."""
    shutil.copytree(filled, folder)
    with closing(open_tier(folder)) as tier:
        damage(random.Random(seed), folder)
        missed, counted = survey(tier)
    assert missed == counted
    shutil.rmtree(folder)


@pytest.mark.parametrize("damage", DAMAGES)
def test_c3_damage_at_rest(damage: Damage, filled: Path, tmp_path: Path) -> None:
    for seed in range(4):
        damage_at_rest(seed, damage, filled, tmp_path / "kv")


@pytest.mark.parametrize("damage", [one for one in DAMAGES if one is not damage_a_side_file])
def test_c3_damage_in_use(damage: Damage, filled: Path, tmp_path: Path) -> None:
    for seed in range(2):
        damage_in_use(seed, damage, filled, tmp_path / "kv")


@pytest.mark.full
@pytest.mark.timeout(600)
def test_c3_a_thousand_damages(filled: Path, tmp_path: Path) -> None:
    rng = random.Random(1)
    for seed in range(1000):
        damage = rng.choice(DAMAGES)
        damage_at_rest(seed, damage, filled, tmp_path / "kv")
        if damage is not damage_a_side_file:
            damage_in_use(seed, damage, filled, tmp_path / "kv")


@pytest.mark.parametrize("size", [0, 1, *HEADER_CUTS, *BODY_CUTS])
def test_c3_every_cut(size: int, filled: Path) -> None:
    path = segments(filled)[0]
    path.write_bytes(path.read_bytes()[:size])
    with closing(open_tier(filled)) as tier:
        shown = visible(tier)
        assert len(shown) == (9 + 1 if size in BODY_CUTS else 9)
        missed, _ = survey(tier)
        assert missed == 12 - len(shown)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_c3_a_record_survives_that_it_cannot_be_read(number: int, filled: Path) -> None:
    files = FaultyFiles()
    with closing(open_tier(filled, files=files)) as tier:
        blocks = blocks_of(tier)
        files.read_fault = lambda: os_error(number)
        assert [fetch(tier, block) for block in blocks] == [ReadOutcome.FAILED] * 12
        assert all(tier.has(block.key) for block in blocks)
        files.read_fault = lambda: None
        assert survey(tier) == (0, 0)
        assert tier.stats().failures == {f"read {errno.errorcode[number]}": 12}


def test_c3_files_that_cannot_be_read_at_start_are_left_alone(filled: Path) -> None:
    files = FaultyFiles()
    files.read_fault = lambda: os_error(errno.EIO) if files.last_opened.endswith("2.seg") else None
    tier = open_tier(filled, files=files)
    assert len(visible(tier)) == 9
    assert tier.stats().failures == {"start EIO": 1}
    put(tier, path_of(tier, 9, 3, ALICE))  # goes to a file of its own
    abandon(tier)
    with closing(open_tier(filled)) as tier:
        assert len(visible(tier)) == 15
