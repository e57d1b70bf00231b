"""What a power cut leaves: the log up to some byte, and rubbish after it. That is an earlier state, and a
right one.

The log is not flushed to the disk with each commit, so its end may be lost, though never the middle of what a
transaction wrote: each frame has a checksum that goes on from the one before.
"""

import random
import shutil
from pathlib import Path

import pytest

from chatd.errors import NotFound
from chatd.ids import MessageId, ResponseId
from chatd.store.records import ResponseStatus
from chatd.store.store import DATABASE_NAME
from tests.store.scribe import NS, Scribe, asked, keep_ids, opened, said

STREAMS, ROUNDS = 6, 30
REASONS = ("end", "length", "cancelled", "failed")
CUTS = 8


async def write(scribe: Scribe) -> None:
    """Rounds of one flush each; every fifth ends what is open."""
    for number in range(ROUNDS):
        for stream in range(STREAMS):
            rid = ResponseId(f"r{number // 5}-{stream}")
            if number % 5 == 0:
                await scribe.ask(asked(rid, *said(("user", f"q {rid}"))))
                scribe.admit(rid, gpu_hit=stream)
            scribe.say(rid, f"{rid}:{number} ")
            if number % 5 == 4:
                scribe.end(rid, REASONS[stream % len(REASONS)])
        await scribe.flush()


@pytest.fixture
async def written(data_dir: Path, tmp_path: Path) -> Path:
    """The database and its log as they lie there while the server runs."""
    async with opened(data_dir, idle_s=60) as store:
        await write(await Scribe.begin(store))
        shutil.copytree(data_dir, tmp_path / "copy")
    return tmp_path / "copy"


async def state_after(folder: Path) -> dict[ResponseId, str]:
    """Started again: settled, verified; the text of each answer that is there."""
    texts = {}
    async with opened(folder, prefix="later") as store:
        await store.settle(keep_ids)
        report = await store.verify()
        assert report.ok, report.findings[:3]
        for number in range(ROUNDS // 5):
            for stream in range(STREAMS):
                rid = ResponseId(f"r{number}-{stream}")
                try:
                    row = await store.response(NS, rid)
                except NotFound:
                    continue
                assert row.status is not ResponseStatus.OPEN
                texts[rid] = (await store.message(NS, MessageId(row.message_id))).text
    return texts


async def test_whatever_is_left_of_the_log_is_an_earlier_state(written: Path, tmp_path: Path) -> None:
    dice = random.Random(3)
    log = (written / f"{DATABASE_NAME}-wal").read_bytes()
    whole = await state_after(shutil.copytree(written, tmp_path / "whole"))
    assert len(whole) == STREAMS * ROUNDS // 5
    kept = []
    for cut in sorted(dice.randrange(len(log)) for _ in range(CUTS)):
        folder = shutil.copytree(written, tmp_path / f"cut{cut}")
        (folder / f"{DATABASE_NAME}-shm").unlink(missing_ok=True)
        (folder / f"{DATABASE_NAME}-wal").write_bytes(log[:cut] + dice.randbytes(len(log) - cut))
        found = await state_after(folder)
        for rid, text in found.items():
            assert whole[rid].startswith(text)
        kept.append(sum(map(len, found.values())))
    assert kept == sorted(kept)
    assert 0 < kept[-1] < sum(map(len, whole.values()))
