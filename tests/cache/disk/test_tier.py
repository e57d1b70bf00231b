"""The tier through its door: jobs in, completions out, the worker's order, and the end."""

import errno
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chatd.cache.block_tier import BlockRead, BlocksGone, BlockTier, BlockWritten, ReadOutcome
from chatd.cache.disk import housekeeping
from chatd.cache.disk.files import Bytes
from chatd.cache.disk.tier import MOST_QUEUED_WRITES
from chatd.cache.radix_node import SHARED, pack
from chatd.errors import SetupError
from chatd.ids import Namespace
from tests.cache.disk.faults import FaultyFiles, QuickFiles, os_error
from tests.cache.disk.lab import (
    ALICE,
    BOB,
    BODY,
    Buffer,
    Clock,
    Listener,
    body_of,
    closing,
    fetch,
    open_tier,
    path_of,
    put,
    visible,
)

pytestmark = pytest.mark.usefixtures("small_segments")


class Gate(QuickFiles):
    """Holds every write of a body until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.waiting = threading.Event()

    def write(self, fd: int, data: Bytes, at: int) -> None:
        if len(data) == BODY:
            self.waiting.set()
            assert self.opened.wait(20)
        super().write(fd, data, at)


def test_blocks_come_back_as_they_were_written(tmp_path: Path) -> None:
    listener = Listener()
    with closing(open_tier(tmp_path / "kv")) as tier:
        as_seen_by_the_engine: BlockTier = tier
        as_seen_by_the_engine.start(listener)
        blocks = path_of(tier, 1, 5)
        for block in blocks:
            assert not tier.has(block.key)
            assert listener.written(tier, block)
            assert tier.has(block.key)
        for ticket, block in enumerate(blocks):
            buffer = Buffer(bytes(BODY))
            tier.read(ticket, block, buffer)
            assert isinstance(read := listener.next(), BlockRead)
            assert (read.ticket, read.outcome) == (ticket, ReadOutcome.OK)
            assert buffer.view == body_of(block)
            assert buffer.released == 0  # that is the engine's to do
        stats = tier.stats()
        assert (stats.blocks, stats.read.jobs, stats.write.jobs) == (5, 5, 5)
        assert (stats.queued_reads, stats.queued_writes) == (0, 0)


def test_reads_go_before_writes_and_removals_after_what_came_before(tmp_path: Path) -> None:
    gate, listener = Gate(), Listener()
    with closing(open_tier(tmp_path / "kv", files=gate)) as tier:
        gate.opened.set()
        first, *others = path_of(tier, 1, 4)
        put(tier, [first])
        gate.opened.clear()
        gate.waiting.clear()
        tier.start(listener)
        for ticket, block in enumerate(others):
            tier.write(ticket, block, Buffer(body_of(block)))
        assert gate.waiting.wait(20)
        tier.forget(8, [[first, *others]])
        tier.read(9, first, Buffer(bytes(BODY)))
        assert tier.has(first.key)  # no look-up waits for the disk
        gate.opened.set()
        assert [listener.next().ticket for _ in range(5)] == [0, 9, 1, 2, 8]
        assert not visible(tier)


def test_t1_nobody_else_hits_it(tmp_path: Path) -> None:
    with closing(open_tier(tmp_path / "kv")) as tier:
        put(tier, path_of(tier, 1, 3, ALICE))
        assert not any(tier.has(block.key) for block in path_of(tier, 1, 3, BOB))
        assert not any(tier.has(block.key) for block in path_of(tier, 1, 3, SHARED))


def test_t1_what_is_shared_is_hit_by_all_and_private_chains_part(tmp_path: Path) -> None:
    with closing(open_tier(tmp_path / "kv")) as tier:
        ids = pack(range(4 * 64 + 63))
        alice, bob = tier.chain(ids, ALICE, 128), tier.chain(ids, BOB, 128)
        assert [block.namespace for block in alice] == [SHARED, SHARED, ALICE, ALICE]
        assert alice[:2] == bob[:2]
        assert not {block.key for block in alice[2:]} & {block.key for block in bob[2:]}
        assert [block.parent for block in alice] == [b"", *(block.key for block in alice[:3])]
        assert b"".join(block.ids for block in alice) == ids[: 4 * 64 * 4]
        assert tier.chain(ids, ALICE, 127)[1].namespace == ALICE  # a block is shared whole or not


def test_keys_of_two_folders_differ(tmp_path: Path) -> None:
    with closing(open_tier(tmp_path / "a")) as a, closing(open_tier(tmp_path / "b")) as b:
        assert path_of(a, 1, 1)[0].key != path_of(b, 1, 1)[0].key
    assert (tmp_path / "a" / "secret").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


def test_namespaces_of_any_length(tmp_path: Path) -> None:
    long = [Namespace("n" * 500), Namespace("n" * 499 + "m"), Namespace("名" * 60)]
    with closing(open_tier(tmp_path / "kv")) as tier:
        for name in long:
            put(tier, path_of(tier, 1, 2, name))
    with closing(open_tier(tmp_path / "kv")) as tier:
        for name in long:
            assert [fetch(tier, block) for block in path_of(tier, 1, 2, name)] == [ReadOutcome.OK] * 2
        assert tier._store.clear(long[0]) == 2
        assert len(visible(tier)) == 4


def test_no_more_writes_than_the_queue_holds(tmp_path: Path) -> None:
    gate, listener = Gate(), Listener()
    with closing(open_tier(tmp_path / "kv", files=gate)) as tier:
        tier.start(listener)
        block = path_of(tier, 1, 1)[0]
        buffers = [Buffer(body_of(block)) for _ in range(MOST_QUEUED_WRITES + 2)]
        tier.write(0, block, buffers[0])
        assert gate.waiting.wait(20)
        for ticket, buffer in enumerate(buffers[1:], 1):
            assert tier.accepts == (ticket <= MOST_QUEUED_WRITES)
            tier.write(ticket, block, buffer)
        gate.opened.set()
        ended = [listener.next() for _ in buffers]
        assert [one.ok for one in ended if isinstance(one, BlockWritten)] == [True] * 65 + [False]
        assert all(buffer.released == 1 for buffer in buffers)


def test_closing_finishes_writes_within_the_budget(tmp_path: Path) -> None:
    listener = Listener()
    tier = open_tier(tmp_path / "kv")
    tier.start(listener)
    blocks = path_of(tier, 1, 10)
    for ticket, block in enumerate(blocks):
        tier.write(ticket, block, Buffer(body_of(block)))
    assert tier.close(10.0)
    assert tier.close()  # again does nothing
    with closing(open_tier(tmp_path / "kv")) as again:
        assert len(visible(again)) == 10


def test_closing_drops_writes_beyond_the_budget(tmp_path: Path) -> None:
    gate, listener, clock = Gate(), Listener(), Clock()
    tier = open_tier(tmp_path / "kv", files=gate, clock=clock)
    tier.start(listener)
    buffers = [Buffer(body_of(block)) for block in path_of(tier, 1, 3)]
    for ticket, block in enumerate(path_of(tier, 1, 3)):
        tier.write(ticket, block, buffers[ticket])
    assert gate.waiting.wait(20)
    tier._worker.stop(1.0)  # what `close` does before it waits
    clock.now += 5
    gate.opened.set()
    assert tier.close()
    ended = [listener.next() for _ in buffers]
    assert [one.ok for one in ended if isinstance(one, BlockWritten)] == [True, False, False]
    assert all(buffer.released == 1 for buffer in buffers)


def test_after_the_end_every_job_fails_at_once(tmp_path: Path) -> None:
    listener = Listener()
    tier = open_tier(tmp_path / "kv")
    tier.start(listener)
    tier.close()
    block, buffer = path_of(tier, 1, 1)[0], Buffer(bytes(BODY))
    assert not tier.accepts
    tier.write(1, block, buffer)
    tier.read(2, block, buffer)
    tier.forget(3, [[block]])
    tier.clear(4, None)
    tier.use([block])
    ended = [listener.next() for _ in range(4)]
    assert ended == [
        BlockWritten(1, False, 0.0),
        BlockRead(2, ReadOutcome.FAILED, 0.0),
        BlocksGone(3, 0),
        BlocksGone(4, 0),
    ]


def test_forgetting_keeps_what_others_hang_under(tmp_path: Path) -> None:
    listener = Listener()
    with closing(open_tier(tmp_path / "kv")) as tier:
        tier.start(listener)
        ids = range(64 * 3)
        first = tier.chain(pack([*ids, *([1] * 64)]), ALICE, 0)
        second = tier.chain(pack([*ids, *([2] * 64)]), ALICE, 0)
        put(tier, [*first, second[-1]])
        tier.forget(1, [first])
        assert listener.next() == BlocksGone(1, 1)
        assert visible(tier) == {block.key for block in second}
        tier.forget(2, [first, second])
        assert listener.next() == BlocksGone(2, 4)
    assert not (tmp_path / "kv" / "00000001.seg").exists() or not visible_again(tmp_path / "kv")


def visible_again(folder: Path) -> set[bytes]:
    with closing(open_tier(folder)) as tier:
        return visible(tier)


def test_what_was_forgotten_is_gone_from_the_file(tmp_path: Path) -> None:
    with closing(open_tier(tmp_path / "kv")) as tier:
        kept, gone = path_of(tier, 1, 1), path_of(tier, 2, 2)
        put(tier, [*kept, *gone])
        segment = tmp_path / "kv" / "00000001.seg"
        assert all(block.ids in segment.read_bytes() for block in gone)
        tier._store.forget([gone])
        assert not any(block.ids in segment.read_bytes() for block in gone)
        assert kept[0].ids in segment.read_bytes()


def test_pins_outlive_pressure_clearing_and_restarts(tmp_path: Path) -> None:
    with closing(open_tier(tmp_path / "kv")) as tier:
        pinned = path_of(tier, 1, 3)
        tier.pin("greeting", pinned[:2])
        tier.pin("greeting", pinned)
        put(tier, pinned)
    with closing(open_tier(tmp_path / "kv")) as tier:
        for first in range(2, 9):
            put(tier, path_of(tier, first, 5))
        assert all(tier.has(block.key) for block in pinned)
        assert tier._store.clear(None) == 12
        assert tier._store.forget([pinned]) == 0
        (pin,) = tier.pins()
        assert (pin.name, pin.blocks, pin.stored) == ("greeting", 3, 3)
        assert tier.stats().pinned_blocks == 3
        tier.unpin("greeting")
        tier.unpin("no such")
        assert tier._store.clear(None) == 3


def test_ttls_count_from_the_last_use_and_survive_restarts(tmp_path: Path) -> None:
    clock = Clock()
    with closing(open_tier(tmp_path / "kv", clock=clock)) as tier:
        tier.set_ttl(None, 100)
        tier.set_ttl(BOB, 1000)
        put(tier, [*path_of(tier, 1, 2), *path_of(tier, 2, 2, BOB)])
        clock.now += 90
        assert fetch(tier, path_of(tier, 1, 2)[1]) is ReadOutcome.OK
    with closing(open_tier(tmp_path / "kv", clock=clock)) as tier:
        clock.now += 100
        assert len(visible(tier)) == 4
        clock.now += 1
        assert visible(tier) == {block.key for block in path_of(tier, 2, 2, BOB)}
        assert fetch(tier, path_of(tier, 1, 2)[0]) is ReadOutcome.MISSING
        assert tier.stats().events["expired"] == 2
        tier.set_ttl(BOB, None)
        assert not visible(tier)
    with closing(open_tier(tmp_path / "kv", clock=clock, ttl_s=10_000)) as tier:
        assert len(visible(tier)) == 2


def test_listing(tmp_path: Path) -> None:
    clock = Clock()
    with closing(open_tier(tmp_path / "kv", clock=clock)) as tier:
        put(tier, path_of(tier, 1, 2))
        clock.now += 10
        put(tier, [*path_of(tier, 2, 1), *path_of(tier, 3, 3, BOB)])
        alice, bob = tier.ls()
        assert (alice.namespace, alice.blocks, alice.newest - alice.oldest) == (ALICE, 3, 10)
        assert (bob.namespace, bob.blocks, bob.nbytes) == (BOB, 3, 3 * (BODY + 512))
        assert tier.kept_bytes() == {ALICE: 3 * (BODY + 512), BOB: 3 * (BODY + 512)}
        heads = {one.key: one for one in tier.paths()}
        head = path_of(tier, 3, 3, BOB)[0]
        assert (heads[head.key].blocks, heads[head.key].depth, len(heads)) == (3, 3, 3)
        assert tier.ids_of(head.key) == head.ids
        assert tier.ids_of(b"?" * 16) is None


@pytest.mark.parametrize("started", [False, True])
def test_verify_finds_and_removes_damage(tmp_path: Path, started: bool) -> None:
    with closing(open_tier(tmp_path / "kv")) as tier:
        blocks = path_of(tier, 1, 6)
        put(tier, blocks)
        if started:
            tier.start(Listener())
        path = tmp_path / "kv" / "00000002.seg"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        steps = list(tier.verify())
        assert [step.done for step in steps] == [1, 2, 3, 4, 5, 6]
        (damage,) = [step.damage for step in steps if step.damage]
        assert (damage.key, damage.file, damage.slot) == (blocks[5].key, "00000002.seg", 2)
        assert damage.removed
        assert not tier.has(blocks[5].key)
        assert [step.damage for step in tier.verify()] == [None] * 5


def test_verify_finds_records_in_each_other_s_place(tmp_path: Path) -> None:
    with closing(open_tier(tmp_path / "kv")) as tier:
        put(tier, path_of(tier, 1, 6))
    first, second = tmp_path / "kv" / "00000001.seg", tmp_path / "kv" / "00000002.seg"
    with closing(open_tier(tmp_path / "kv")) as tier:
        one, other = first.read_bytes(), second.read_bytes()
        first.write_bytes(other)
        second.write_bytes(one)
        assert [step.damage is not None for step in tier.verify()] == [True] * 6


def test_a_second_server_is_refused(tmp_path: Path) -> None:
    """Also from another process; and the folder is free again once the first has ended."""
    with closing(open_tier(tmp_path / "kv")):
        with pytest.raises(SetupError, match="already using the disk tier"):
            open_tier(tmp_path / "kv")
        script = (
            "from pathlib import Path; from chatd.cache.disk.lock import FolderLock;"
            f"FolderLock(Path({str(tmp_path / 'kv')!r}))"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert "already using the disk tier" in done.stderr
    open_tier(tmp_path / "kv").close()


def test_setups_that_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="--disk-bytes is 100, but"):
        open_tier(tmp_path / "kv", quota=100)
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="cannot be used"):
        open_tier(tmp_path / "file")

    class Unreadable(QuickFiles):
        def names(self, folder: Path) -> list[str]:
            raise os_error(errno.EIO)

    with pytest.raises(SetupError, match="cannot be read"):
        open_tier(tmp_path / "kv", files=Unreadable())
    open_tier(tmp_path / "kv").close()


def test_a_fault_of_ours_fails_jobs_but_leaves_nobody_waiting(tmp_path: Path) -> None:
    listener = Listener()
    with closing(open_tier(tmp_path / "kv")) as tier:
        tier.start(listener)
        block = path_of(tier, 1, 1)[0]
        tier.write(1, block, Buffer(body_of(block)))
        listener.next()
        broken = Buffer(b"too short")
        tier.read(2, path_of(tier, 1, 1)[0], broken)
        assert isinstance(ended := listener.next(), BlockRead)
        assert ended.outcome is ReadOutcome.DAMAGED
        odd = path_of(tier, 1, 1)[0]
        tier.write(3, type(odd)(b"short key", odd.parent, odd.namespace, odd.ids), Buffer(body_of(odd)))
        assert listener.next() == BlockWritten(3, False, 0.0)
        assert "ValueError" in tier.stats().fault
        with pytest.raises(SetupError, match="has failed"):
            tier.pins()
        assert not tier.accepts
        tier.read(4, block, Buffer(bytes(BODY)))
        assert listener.next() == BlockRead(4, ReadOutcome.FAILED, 0.0)


def test_open_files_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chatd.cache.disk import segment_folder

    monkeypatch.setattr(segment_folder, "MOST_OPEN", 2)
    with closing(open_tier(tmp_path / "kv")) as tier:
        blocks = path_of(tier, 1, 12)
        put(tier, blocks)
        assert [fetch(tier, block) for block in blocks] == [ReadOutcome.OK] * 12
        assert len(tier._store.folder._open) == 2


def test_what_is_written_is_synced_when_idle_and_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "SYNC_BYTES", 4 * BODY)
    files, clock, listener = FaultyFiles(), Clock(), Listener()
    with closing(open_tier(tmp_path / "kv", files=files, clock=clock)) as tier:
        tier.start(listener)
        made = files.names_of_calls.count("sync")  # of the secret
        blocks = path_of(tier, 1, 11)
        assert all(listener.written(tier, block) for block in blocks)
        tier.pins()  # so that the worker is done with the last write
        assert files.names_of_calls.count("sync") - made == 4  # two segments each time
        assert not tier._store.folder.synced
    with closing(open_tier(tmp_path / "kv", files=files, clock=clock)) as tier:
        put(tier, path_of(tier, 2, 1))
        clock.now += 1
        while tier._keeping.step() == 0:
            pass
        assert tier._store.folder.synced
