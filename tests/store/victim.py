"""A process that writes until it is killed: ``python -m tests.store.victim DATA_DIR PREFIX SEED``.

Prints a line ``response seq`` for each piece, after the flush that stored it: what was shown.
"""

import asyncio
import random
import sys
import time
from pathlib import Path

from chatd.ids import ResponseId
from chatd.store.records import BegunResponse
from tests.store.scribe import Scribe, asked, opened, said

STREAMS = 8
REASONS = ("end", "stop", "length", "cancelled", "failed")


def piece_text(rid: str, seq: int) -> str:
    return f"{rid}:{seq} "


async def run(data_dir: Path, prefix: str, seed: int) -> None:
    dice = random.Random(seed)
    async with opened(data_dir, prefix=prefix, clock=time.time) as store:
        scribe = await Scribe.begin(store)
        open_seqs: dict[ResponseId, int] = {}
        made = 0
        print("ready", flush=True)
        while True:
            if len(open_seqs) < STREAMS:
                made += 1
                begun = await open_one(scribe, f"{prefix}r{made}", dice)
                open_seqs[begun.response.id] = 0
            shown = say_some(scribe, open_seqs, dice)
            await scribe.flush()
            print("\n".join(shown), flush=True)


async def open_one(scribe: Scribe, rid: str, dice: random.Random) -> BegunResponse:
    begun = await scribe.ask(asked(rid, *said(("user", rid)), key=rid, prompt_len=40))
    if dice.random() < 0.9:
        scribe.admit(begun.response.id, gpu_hit=dice.randrange(20), disk_hit=dice.randrange(20))
    else:
        scribe.end(begun.response.id, "cancelled")
    return begun


def say_some(scribe: Scribe, open_seqs: dict[ResponseId, int], dice: random.Random) -> list[str]:
    shown = []
    for rid in list(open_seqs):
        if not scribe.is_running(rid):
            del open_seqs[rid]
            continue
        seqs = range(open_seqs[rid] + 1, open_seqs[rid] + 1 + dice.randint(1, 3))
        scribe.say(rid, *(piece_text(rid, seq) for seq in seqs), held=dice.randrange(2))
        open_seqs[rid] = seqs[-1]
        shown += [f"{rid} {seq}" for seq in seqs]
        if dice.random() < 0.1:
            scribe.end(rid, dice.choice(REASONS))
    return shown


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
