"""What the disk tier costs and brings, on the real model.

``python -m tests.bench.disk_tier MODEL [--pairs N]``
Two loads, each with the tier on and off in turns, on servers of their own:

- *nothing to hit*: every prompt is new; processor seconds of the server for each token that it generated;
- *ten times the pool*: 64 conversations whose KV is ten times what the pages hold, turn after turn; the share
  of prompt tokens that were hits, beside the best that whole blocks on disk allow, and the time to the first
  token of later turns.
"""

import argparse
import asyncio
import functools
import json
import os
import random
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chatd.server import protocol as wire
from tests.cli.servers import ChatdProcess
from tests.e2e.processes import client_of
from tests.support.live_server import Client

WORDS = ("server", "memory", "page", "token", "river", "mountain", "light", "brown", "stone", "paper")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def words(count: int, seed: int) -> str:
    draw = random.Random(seed)
    return " ".join(f"{draw.choice(WORDS)} {draw.randrange(1000)}" for _ in range(count))


@dataclass
class Talk:
    """One conversation and what its turns said."""

    number: int
    conversation_id: str | None = None
    known: int = 0

    async def turn(self, client: Client, text: str, max_tokens: int) -> wire.AnyEnding:
        params = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        created = await client.start(text, conversation_id=self.conversation_id, params=params)
        self.conversation_id = created.conversation_id
        return await client.ending(created.response_id)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


async def nothing_to_hit(server: ChatdProcess, seed: int) -> float:
    """Processor seconds for each generated token."""
    async with client_of(server) as client:
        await Talk(0).turn(client, words(40, seed), 8)
        before, made = cpu_seconds(server.pid), 0
        for i in range(6):
            ending = await Talk(i).turn(client, words(100, seed + i + 1), 64)
            made += ending.usage.output_tokens
        await asyncio.sleep(2)  # what is written behind belongs to it
        return (cpu_seconds(server.pid) - before) / made


@dataclass
class Tally:
    """Of all turns but the first of each conversation."""

    prompts: int = 0
    hits: int = 0
    best: int = 0
    ttft_ms: list[float] = field(default_factory=list)

    def take(self, talk: Talk, ending: wire.AnyEnding) -> None:
        assert ending.timings.ttft_ms is not None
        self.prompts += ending.usage.prompt_tokens
        self.hits += ending.usage.gpu_hit + ending.usage.disk_hit
        self.best += talk.known // 64 * 64
        self.ttft_ms.append(ending.timings.ttft_ms)


async def ten_pools(server: ChatdProcess, sessions: int, turns: int) -> dict[str, float]:
    talks, tally = [Talk(i) for i in range(sessions)], Tally()
    for turn in range(turns):
        queue = iter(talks)
        await asyncio.gather(*(take_turns(server, queue, turn, tally) for _ in range(2)))
    return {
        "hit_share": tally.hits / tally.prompts,
        "best_share": tally.best / tally.prompts,
        "later_ttft_p50_ms": statistics.median(tally.ttft_ms),
    }


async def take_turns(server: ChatdProcess, queue: Iterator[Talk], turn: int, tally: Tally) -> None:
    async with client_of(server) as client:
        for talk in queue:
            text = words(200 if turn == 0 else 12, 100 * turn + talk.number)
            ending = await talk.turn(client, text, 8)
            if turn:
                tally.take(talk, ending)
            talk.known = ending.usage.total_tokens - 1


async def served(model: Path, disk: str, kv: str, load: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        options = ("--disk", disk, "--disk-bytes", "4GiB", "--kv-bytes", kv)
        async with ChatdProcess(Path(folder), model, *options) as server:
            await server.until("ready")
            result = await load(server)
            await server.end()
            return result


async def main(model: Path, pairs: int) -> None:
    result: dict[str, Any] = {}
    costs: dict[str, list[float]] = {"off": [], "write-behind": []}
    for pair in range(pairs):
        for disk, seen in costs.items():
            load = functools.partial(nothing_to_hit, seed=1000 * pair)
            seen.append(await served(model, disk, "1GiB", load))
            print(f"nothing to hit, {disk}: {seen[-1] * 1e3:.2f} ms of processor a token", flush=True)
    ratio = statistics.median(costs["write-behind"]) / statistics.median(costs["off"])
    result["nothing_to_hit"] = {**costs, "ratio": ratio}
    # 64 conversations of about 1,100 tokens are 70,000 tokens; a tenth of that is 150 MiB.
    for disk in ("off", "write-behind"):
        result[f"ten_pools_{disk}"] = await served(
            model, disk, "150MiB", functools.partial(ten_pools, sessions=64, turns=3)
        )
        print(disk, result[f"ten_pools_{disk}"], flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    chosen = parser.parse_args()
    asyncio.run(main(chosen.model, chosen.pairs))
