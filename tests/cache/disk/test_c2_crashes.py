"""C2: the process, or the machine, dies at any call that changes the disk; then the folder is opened again.

A script takes a small tier through all that it does: new segments, slots used again, removals, pins,
TTLs, moves out of sparse segments, cuts, saving. It is run once whole, and then once for each point.
"""

import contextlib
import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chatd.cache.block_tier import ReadOutcome
from chatd.cache.disk.reclaim import Reclaimer
from chatd.cache.disk.tier import DiskTier
from tests.cache.disk.faults import Crash, FaultyFiles, PowerFiles
from tests.cache.disk.lab import (
    ALICE,
    BOB,
    Clock,
    abandon,
    check,
    fetch,
    open_tier,
    path_of,
    put,
    visible,
)

Step = Callable[[DiskTier], None]
PATHS = [(1, 6, ALICE), (2, 3, BOB), (3, 4, ALICE), (4, 5, BOB), (5, 2, ALICE), (6, 4, BOB), (7, 1, ALICE)]
PATHS += [(8, 2, BOB), (9, 1, BOB)]


def putting(which: int) -> Step:
    return lambda tier: put(tier, path_of(tier, *PATHS[which]))


def reclaim(tier: DiskTier) -> None:
    reclaimer = Reclaimer(tier._store)
    while reclaimer.step():
        pass


def forget(which: int) -> Step:
    return lambda tier: _forget(tier, which)


def _forget(tier: DiskTier, which: int) -> None:
    tier._store.forget([path_of(tier, *PATHS[which])])


def pin(tier: DiskTier) -> None:
    tier.pin("greeting", path_of(tier, 1, 2))


def clear_bob(tier: DiskTier) -> None:
    tier._store.clear(BOB)


def finish(tier: DiskTier) -> None:
    tier._keeping.finish()


SCRIPT: list[Step] = [
    putting(0),
    pin,
    putting(1),
    putting(2),
    putting(3),  # from here on the quota is felt
    finish,
    lambda tier: tier.set_ttl(BOB, 1000.0),
    putting(4),
    forget(2),
    reclaim,
    putting(5),
    forget(0),
    reclaim,
    lambda tier: tier.pin("greeting", path_of(tier, 1, 1)),
    lambda tier: tier.unpin("greeting"),
    putting(6),
    clear_bob,
    reclaim,
    putting(1),
    forget(6),
    reclaim,  # moves
    putting(7),
    putting(8),
    forget(8),
    reclaim,  # cuts
    finish,
]
LEAST_POINTS = 200


@dataclass(frozen=True)
class State:
    """What a tier showed after a step."""

    keys: frozenset[bytes]
    pins: tuple[tuple[str, int], ...]


def state(tier: DiskTier) -> State:
    return State(frozenset(visible(tier)), tuple((one.name, one.blocks) for one in tier.pins()))


def run(tier: DiskTier, clock: Clock) -> Iterator[State]:
    """A state before and after each step."""
    yield state(tier)
    for step in SCRIPT:
        clock.now += 10
        step(tier)
        yield state(tier)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose secret is made: so keys are the same in every run."""
    folder = tmp_path_factory.mktemp("template") / "kv"
    open_tier(folder).close()
    return folder


def die(template: Path, folder: Path, files: FaultyFiles) -> list[State]:
    """Run the script until it dies, or to its end. The states it went through."""
    shutil.copytree(template, folder)
    clock = Clock()
    tier = open_tier(folder, files=files, clock=clock)
    states: list[State] = []
    with contextlib.suppress(Crash):
        states.extend(run(tier, clock))
    abandon(tier)
    return states


def at(point: int, *, in_middle: bool = False, kind: type[FaultyFiles] = FaultyFiles) -> FaultyFiles:
    files = kind(lambda n, name: Crash() if n == point else None)
    files.in_middle = in_middle
    return files


def points(total: int, share: int) -> list[tuple[int, bool]]:
    """Before each call, and in the middle of those that write; every ``share``-th of them."""
    every = [(point, in_middle) for point in range(1, total + 1) for in_middle in (False, True)]
    return every[::share]


@pytest.fixture
def whole(small_segments: None, template: Path, tmp_path: Path) -> tuple[list[State], list[str]]:
    """States of the whole script, and the names of its calls."""
    files = FaultyFiles()
    states = die(template, tmp_path / "whole", files)
    assert len(states) == len(SCRIPT) + 1
    return states, files.names_of_calls


def test_the_script_does_all_that_can_be_cut_short(
    whole: tuple[list[State], list[str]], template: Path, tmp_path: Path
) -> None:
    assert set(whole[1]) == {"create", "write", "truncate", "sync", "sync_folder", "rename", "unlink"}
    shutil.copytree(template, tmp_path / "kv")
    tier = open_tier(tmp_path / "kv")
    for _ in run(tier, Clock()):
        check(tier)
    events = tier.stats().events
    assert all(events[one] for one in ("stored", "evicted", "removed", "moved")), events
    tier.close()


def assert_survives(folder: Path, states: list[State], whole: list[State]) -> None:
    """What was acknowledged is there; what was removed is not; the step it died in went half way at most."""
    done = len(states) - 1
    before, after = whole[done], whole[min(done + 1, len(whole) - 1)]
    assert states == whole[: done + 1]
    tier = open_tier(folder, clock=Clock(Clock().now + 10 * (done + 1)))
    check(tier)
    found = state(tier)
    assert before.keys & after.keys <= found.keys <= before.keys | after.keys
    assert found.pins in (before.pins, after.pins)
    assert_serves(tier)
    assert tier.stats().events["damaged"] <= 1  # the header that it died in the middle of, if it did
    tier.close()


def assert_serves(tier: DiskTier) -> None:
    """What it shows is right or a counted miss, there are no temporary files, and it takes new blocks."""
    folder = tier._store.folder.folder
    for which in PATHS:
        for block in path_of(tier, *which):
            shown, damaged = tier.has(block.key), tier.stats().events["damaged"]
            outcome = fetch(tier, block)
            assert (outcome is ReadOutcome.OK) == (shown and tier.stats().events["damaged"] == damaged)
    assert not list(folder.glob("*.new"))
    block = path_of(tier, 99, 1)[0]
    put(tier, [block])
    assert fetch(tier, block) is ReadOutcome.OK
    check(tier)


def some_points(template: Path, tmp_path: Path, whole: tuple[list[State], list[str]], share: int) -> int:
    chosen = points(len(whole[1]), share)
    for point, in_middle in chosen:
        folder = tmp_path / f"at-{point}-{in_middle}"
        states = die(template, folder, at(point, in_middle=in_middle))
        assert_survives(folder, states, whole[0])
        shutil.rmtree(folder)
    return len(chosen)


def test_c2_the_process_dies(template: Path, tmp_path: Path, whole: tuple[list[State], list[str]]) -> None:
    some_points(template, tmp_path, whole, share=7)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_c2_the_process_dies_anywhere(
    template: Path, tmp_path: Path, whole: tuple[list[State], list[str]]
) -> None:
    assert some_points(template, tmp_path, whole, share=1) >= LEAST_POINTS


def some_power_cuts(
    template: Path, tmp_path: Path, whole: tuple[list[State], list[str]], share: int, draws: int
) -> int:
    chosen = points(len(whole[1]), share)
    for (point, in_middle), seed in itertools.product(chosen, range(draws)):
        folder = tmp_path / f"at-{point}-{in_middle}-{seed}"
        files = at(point, in_middle=in_middle, kind=PowerFiles)
        assert isinstance(files, PowerFiles)
        states = die(template, folder, files)
        files.cut_power(random.Random(point * 100 + seed))
        assert_survives_power_cut(folder, states, whole[0])
        shutil.rmtree(folder)
    return draws * len(chosen)


def assert_survives_power_cut(folder: Path, states: list[State], whole: list[State]) -> None:
    """What was forgotten before does not come back, nor do pins go; the rest is right or a counted miss."""
    done = len(states) - 1
    tier = open_tier(folder, clock=Clock(Clock().now + 10 * (done + 1)))
    reclaim(tier)  # a removed file that came back may be more than the quota allows
    check(tier)
    if forget_done(done):
        assert not visible(tier) & {block.key for block in path_of(tier, *PATHS[2])}
    assert state(tier).pins in (whole[done].pins, whole[min(done + 1, len(whole) - 1)].pins)
    assert_serves(tier)
    tier.close()


def forget_done(done: int) -> bool:
    """Whether the step that forgets the third path is among the first ``done``."""
    return done > 8


def test_c2_the_power_goes(template: Path, tmp_path: Path, whole: tuple[list[State], list[str]]) -> None:
    some_power_cuts(template, tmp_path, whole, share=13, draws=1)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_c2_the_power_goes_anywhere(
    template: Path, tmp_path: Path, whole: tuple[list[State], list[str]]
) -> None:
    assert some_power_cuts(template, tmp_path, whole, share=1, draws=4) >= LEAST_POINTS


def test_c2_the_process_dies_while_it_recovers(
    template: Path, tmp_path: Path, whole: tuple[list[State], list[str]]
) -> None:
    """And again at each call of the start after that."""
    for point in range(3, len(whole[1]), 11):
        folder = tmp_path / f"at-{point}"
        states = die(template, folder, at(point, in_middle=True))
        for again in itertools.count(1):
            if starts(folder, at(again, in_middle=True)):
                break
        assert_survives(folder, states, whole[0])
        shutil.rmtree(folder)


def starts(folder: Path, files: FaultyFiles) -> bool:
    try:
        tier = open_tier(folder, files=files)
    except Crash:
        return False
    abandon(tier)
    return True
