"""Two weeks of use in a data folder, made before a server opens it: for list, search and reports."""

import asyncio
import random
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from chatd.ids import ConversationId, Namespace, ResponseId
from chatd.store.conversations import insert_conversation
from chatd.store.flush_batch import EndedRow
from chatd.store.records import ROOT_KEY, Timings, chain_key, micros
from chatd.store.usage import StorageUse
from tests.store.scribe import Scribe, asked, opened, said

LOCAL = Namespace("local")
DAY_S = 86_400
DAYS = 14
GIB_HOUR = 2**30 * 3600

TALKS = {
    False: [
        ("Planning the spring garden", "When should I sow tomatoes?", "Six weeks before the last frost."),
        (
            "A letter to the landlord",
            "The heating is broken again.",
            "Write what broke, and since when.",
        ),
        ("Regular expressions for dates", "Match ISO dates.", "Use four digits, two digits, two digits."),
        ("Frost and early potatoes", "Do potatoes survive frost?", "A light frost costs them their leaves."),
        ("A week of suppers", "What can I cook with leeks?", "A tart, a soup, or leeks with potatoes."),
    ],
    True: [
        ("春季花园规划", "番茄应该什么时候播种？", "在最后一次霜冻之前六周播种。"),
        ("写给房东的一封信", "暖气又坏了。", "写明哪里坏了、从什么时候开始，并给出期限。"),
        ("用正则表达式匹配日期", "匹配 ISO 日期。", "四位数字、两位数字、两位数字。"),
        ("霜冻与早土豆", "土豆能经受霜冻吗？", "轻微的霜冻会损失叶子。"),
        ("一周的晚餐", "韭葱可以做什么？", "可以做馅饼、汤，或者配土豆。"),
    ],
}


class _Clock:
    """Unix seconds that a test moves."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def fill_history(data_dir: Path, *, chinese: bool = False) -> None:
    """Talks over two weeks up to yesterday, in which later turns reuse the earlier ones."""
    _run(_fill(data_dir, TALKS[chinese], "zh" if chinese else "en"))


def fill_list(data_dir: Path, count: int) -> None:
    """``count`` conversations with nothing in them, an hour apart; the newest is number 0."""
    _run(_fill_list(data_dir, count))


def _run(coroutine: Coroutine[Any, Any, None]) -> None:
    """On a thread of its own: the browser's event loop runs in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, coroutine).result()


async def _fill(data_dir: Path, talks: list[tuple[str, str, str]], prefix: str) -> None:
    dice, clock = random.Random(7), _Clock(time.time() - DAYS * DAY_S)
    made = 0
    async with opened(data_dir, clock=clock, prefix=prefix) as store:
        scribe = await Scribe.begin(store)
        for day in range(DAYS):
            clock.now = time.time() - (DAYS - day) * DAY_S
            for _ in range(dice.randrange(0, 3)):
                title, question, answer = talks[made % len(talks)]
                made += 1
                home = (await store.create_conversation(LOCAL, title)).id
                await _talk(scribe, home, question, answer, dice.randrange(2, 7), dice)
            await store.add_storage(
                [StorageUse(LOCAL, "disk", day * GIB_HOUR // 7), StorageUse(LOCAL, "pinned", GIB_HOUR // 400)]
            )
        await store.end_run()


async def _talk(
    scribe: Scribe, home: ConversationId, question: str, answer: str, turns: int, dice: random.Random
) -> None:
    key, parent, prompt_len = ROOT_KEY, None, dice.randrange(200, 900)
    for turn in range(turns):
        asks = question if turn == 0 else f"{question} ({turn + 1})"
        messages = said(("user", asks), under=key, ns=LOCAL)
        hit = 0 if turn == 0 else prompt_len
        prompt_len += dice.randrange(40, 200) if turn else 0
        new = asked(
            ResponseId(f"{home}-{turn}"),
            *messages,
            ns=LOCAL,
            conversation_id=home,
            parent_id=parent,
            prompt_len=prompt_len,
        )
        begun = await scribe.ask(replace(new, model="SmolLM2-135M-Instruct"))
        disk = hit // 2 if dice.random() < 0.2 else 0
        scribe.admit(new.response_id, gpu_hit=hit - disk, disk_hit=disk)
        scribe.say(new.response_id, answer)
        scribe.end(new.response_id)
        scribe._ended[-1] = _timed(scribe._ended[-1], prompt_len - hit, dice)
        await scribe.flush()
        key = chain_key(LOCAL, messages[-1].chain_key, "assistant", answer)
        parent = begun.message_id


def _timed(row: EndedRow, computed: int, dice: random.Random) -> EndedRow:
    ttft = 14 + 0.7 * computed + dice.uniform(0, 6)
    return replace(row, timings=Timings(2.0, ttft, 18.0, 55.0, ttft + row.generated * 18))


async def _fill_list(data_dir: Path, count: int) -> None:
    def insert(conn: Connection) -> None:
        for number in reversed(range(count)):
            at = micros(time.time() - 60 - number * 3600)
            insert_conversation(conn, LOCAL, f"listed{number}", title=f"number {number}", now=at)

    async with opened(data_dir) as store:
        await store._write(insert)
