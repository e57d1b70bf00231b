"""Conversations whose KV outlives the server: ended, killed, and with a disk that was tampered with."""

import asyncio
import random
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chatd.server import protocol as wire
from chatd.store.store import DATABASE_NAME
from tests.cli.servers import ChatdProcess
from tests.e2e.processes import ToyProcess, client_of, counts, engine_of, verify

WORDS = ("server", "memory", "page", "token", "river", "mountain", "light", "brown", "stone", "paper")


def words(count: int, seed: int) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(count))


async def ask(
    server: ChatdProcess, text: str, **fields: Any
) -> tuple[wire.ResponseCreated, wire.AnyEnding, str]:
    async with client_of(server) as client:
        params = {"max_tokens": 12, "temperature": 0}
        created = await client.start(text, params=params, **fields)
        ending = await client.ending(created.response_id)
        return created, ending, client.text.get(created.response_id, "")


async def until_written(server: ChatdProcess, tokens: int) -> None:
    """Until the whole blocks of so many tokens are on disk."""
    async with asyncio.timeout(20):
        while (await engine_of(server))["counters"]["spilled_blocks"] < tokens // 64:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.model
@pytest.mark.parametrize(("length", "timed"), counts((700, False), (2900, True), seconds=(300, 300)))
async def test_the_next_turn_after_a_restart_is_cheap(
    data_dir: Path, model_path: Path, length: int, timed: bool
) -> None:
    """SIGTERM at once after a turn, then ``kill -9`` two seconds after one.

    Times are compared in the full run only: they say nothing on a machine that does other work too.
    """
    async with ChatdProcess(data_dir, model_path) as server:
        await server.until("ready")
        await ask(server, words(40, 2))  # the first step of a process takes longer
        created, cold, _ = await ask(server, words(length, 1))
        assert cold.usage.computed > length
        assert await server.end(signal.SIGTERM) == 0
    here = {"conversation_id": created.conversation_id}
    for ended_by in (signal.SIGTERM, signal.SIGKILL):
        async with ChatdProcess(data_dir, model_path) as server:
            await server.until("ready")
            _, warm, _ = await ask(server, "Go on.", **here)
            before = cold.usage.prompt_tokens + cold.usage.output_tokens
            assert warm.usage.gpu_hit == 0
            assert warm.usage.disk_hit >= before // 64 * 64 - 64
            assert warm.usage.computed * 5 <= cold.usage.computed
            assert warm.timings.ttft_ms is not None
            assert cold.timings.ttft_ms is not None
            assert not timed or warm.timings.ttft_ms * 5 <= cold.timings.ttft_ms
            engine = (await engine_of(server))["counters"]
            assert engine["restored_bytes"] == warm.usage.disk_hit * 23040
            if ended_by is signal.SIGKILL:
                await asyncio.sleep(2)
            await server.end(ended_by)
    async with ChatdProcess(data_dir, model_path) as server:
        await server.until("ready")
        _, again, _ = await ask(server, "And then?", **here)
        assert again.usage.disk_hit >= warm.usage.prompt_tokens // 64 * 64 - 64
        assert await server.end() == 0
    await verify(data_dir)


async def test_c2_what_is_cold_and_what_comes_from_disk_say_the_same(data_dir: Path, tmp_path: Path) -> None:
    """The checksum engine: its text is made of the very pages it was handed."""
    texts = []
    for on_disk in ("write-behind", "off"):
        folder = tmp_path / on_disk
        async with ToyProcess(folder, "--disk", on_disk) as server:
            created, _, first = await ask(server, words(300, 3))
            if on_disk != "off":
                await until_written(server, 1500)
            await server.end(signal.SIGKILL)
        async with ToyProcess(folder, "--disk", on_disk) as server:
            _, ending, second = await ask(server, "more", conversation_id=created.conversation_id)
            assert (ending.usage.disk_hit > 1000) == (on_disk != "off")
            texts.append((first, second))
            assert await server.end() == 0
        assert metered(folder) == ([("disk", 1)] if on_disk != "off" else [])
    assert texts[0] == texts[1]


def metered(folder: Path) -> list[tuple[str, int]]:
    """Of which tiers bytes were kept for some time."""
    with closing(sqlite3.connect(folder / DATABASE_NAME)) as connection:
        query = "SELECT tier, sum(byte_seconds) > 0 FROM storage_days GROUP BY tier"
        return connection.execute(query).fetchall()


async def test_c3_a_damaged_folder_costs_time_not_truth(data_dir: Path, tmp_path: Path) -> None:
    draw = random.Random(4)
    async with ToyProcess(data_dir) as server:
        created, _, _ = await ask(server, words(300, 3))
        await until_written(server, 1500)
        assert await server.end() == 0
    for segment in (data_dir / "kv").rglob("*"):
        if segment.is_file() and segment.stat().st_size > 10_000:
            raw = bytearray(segment.read_bytes())
            for _ in range(40):
                raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
            segment.write_bytes(raw)
    async with ToyProcess(data_dir) as server, ToyProcess(tmp_path / "cold", "--disk", "off") as cold:
        _, ending, text = await ask(server, "more", conversation_id=created.conversation_id)
        assert ending.usage.computed > 64
        there, _, _ = await ask(cold, words(300, 3))
        _, _, expected = await ask(cold, "more", conversation_id=there.conversation_id)
        assert text == expected
        assert await server.end() == 0


async def test_a_second_server_does_not_get_the_folder(data_dir: Path, tmp_path: Path) -> None:
    shared = ["--disk-dir", str(tmp_path / "kv")]
    async with ToyProcess(data_dir, *shared):
        other = ToyProcess(tmp_path / "other", *shared)
        try:
            with pytest.raises(AssertionError, match="already using the disk tier"):
                await other.__aenter__()
        finally:
            await other.__aexit__()
