"""A server that died: what it showed is there, what it stored is billed, nothing stays open."""

import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from chatd.ids import MessageId, ResponseId
from chatd.store.records import ResponseStatus
from tests.store.scribe import NS, Scribe, asked, ids_of, keep_ids, opened, said
from tests.store.victim import piece_text

R = ResponseId


async def test_open_rows_are_settled_for_what_was_stored(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        ended = await scribe.answer(asked("ended", *said(("user", "q"))), "whole", reason="length")
        for rid in ("waiting", "admitted", "running"):
            await scribe.ask(asked(rid, *said(("user", rid))))
        on = asked("continuing", conversation_id=ended.conversation_id, continues=ended.message_id)
        await scribe.ask(on)
        for rid in ("admitted", "running", "continuing"):
            scribe.admit(R(rid), gpu_hit=4)
        scribe.say(R("running"), "half an ", "answ", held=2)
        scribe.say(R("continuing"), " and more")
        await scribe.flush()
        scribe.say(R("running"), "never stored")

    seen: list[tuple[str, tuple[int, ...]]] = []

    def reencode(text: str, ids: Sequence[int]) -> Sequence[int]:
        seen.append((text, tuple(ids)))
        return keep_ids(text, ids)

    async with opened(data_dir, prefix="later") as store:
        before = await store.verify()
        assert (before.findings, before.unsettled) == ((), 4)
        assert await store.settle(reencode) == 4
        assert await store.settle(reencode) == 0
        assert seen == [
            ("half an answ", ids_of("half an answ")),
            (" and more", ids_of(" and more")),
        ]
        tokens = {"waiting": (0, 0), "admitted": (10, 0), "running": (10, 14), "continuing": (10, 9)}
        for rid, (prompt, output) in tokens.items():
            row = await store.response(NS, R(rid))
            assert (row.status, row.error_code) == (ResponseStatus.FAILED, "server_died")
            assert (row.prompt_tokens, row.output_tokens) == (prompt, output)
            assert row.cost.total_nano == (4 * 100 + 6 * 1000 if prompt else 0) + output * 2000
        half = await store.message(NS, (await store.response(NS, R("running"))).message_id)
        assert (half.text, half.token_ids, half.status) == ("half an answ", ids_of("half an answ"), "failed")
        grown = await store.message(NS, ended.message_id)
        assert (grown.text, grown.token_ids) == ("whole and more", ids_of("whole and more"))
        report = await store.verify()
        assert report.ok, report.findings
        assert report.unsettled is None


async def test_without_a_tokenizer_the_ids_stay_unknown(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        for rid in ("waiting", "running"):
            await scribe.ask(asked(rid, *said(("user", rid))))
        scribe.admit(R("running"), gpu_hit=4)
        scribe.say(R("running"), "half an answ")
        await scribe.flush()
    async with opened(data_dir, prefix="later") as store:
        assert await store.settle() == 2
        half = await store.message(NS, (await store.response(NS, R("running"))).message_id)
        assert (half.text, half.token_ids, half.status) == ("half an answ", None, "failed")
        never = await store.message(NS, (await store.response(NS, R("waiting"))).message_id)
        assert (never.text, never.token_ids) == ("", ())
        report = await store.verify()
        assert (report.ok, report.unsettled) == (True, None)
        assert await store.settle(keep_ids) == 0


async def test_settling_leaves_the_live_run_alone(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        await scribe.ask(asked("dead", *said(("user", "q"))))
    async with opened(data_dir, prefix="later") as store:
        scribe = await Scribe.begin(store)
        await scribe.ask(asked("alive", *said(("user", "q"))))
        assert await store.settle(keep_ids) == 1
        assert (await store.response(NS, R("alive"))).status is ResponseStatus.OPEN
        scribe.admit(R("alive"))
        scribe.end(R("alive"))
        await scribe.flush()
        assert (await store.verify()).ok


async def test_kill_9_while_writing(data_dir: Path) -> None:
    await _kill_and_settle(data_dir, kills=4)


@pytest.mark.full
@pytest.mark.timeout(1200)
async def test_kill_9_while_writing_a_hundred_times(data_dir: Path) -> None:
    await _kill_and_settle(data_dir, kills=100)


async def _kill_and_settle(data_dir: Path, *, kills: int) -> None:
    """One data folder that is killed again and again, each time settled and verified."""
    dice = random.Random(9)
    for n in range(kills):
        shown = _run_and_kill(data_dir, f"p{n}-", dice)
        async with opened(data_dir, prefix=f"s{n}-") as store:
            settled = await store.settle(keep_ids)
            assert settled <= 9
            report = await store.verify()
            assert report.ok, report.findings[:5]
            assert report.runs == n + 1
            for rid, seq in shown.items():
                row = await store.response(NS, rid)
                assert row.last_seq >= seq, f"{rid} showed piece {seq}"
                assert row.status is not ResponseStatus.OPEN
                message = await store.message(NS, MessageId(row.message_id))
                said_text = "".join(piece_text(rid, one) for one in range(1, row.last_seq + 1))
                assert message.text == said_text


def _run_and_kill(data_dir: Path, prefix: str, dice: random.Random) -> dict[ResponseId, int]:
    """The last piece of each response that the process showed before it was killed."""
    command = [sys.executable, "-m", "tests.store.victim", str(data_dir), prefix, str(dice.randrange(10**6))]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        shown: dict[ResponseId, int] = {}
        for _ in range(dice.randrange(1, 1500)):
            _note(shown, victim.stdout.readline())
        victim.send_signal(signal.SIGKILL)
        for line in victim.stdout:
            _note(shown, line)
    assert victim.returncode == -signal.SIGKILL
    return shown


def _note(shown: dict[ResponseId, int], line: str) -> None:
    """A line that the kill cut short says nothing."""
    words = line.split()
    if line.endswith("\n") and len(words) == 2:
        shown[R(words[0])] = int(words[1])
