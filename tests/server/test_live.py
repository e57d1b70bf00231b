"""What the loop knows of one running response."""

from pathlib import Path

from chatd.ids import Rid
from tests.support.chat_lab import chat_lab


async def test_time_in_the_queue_is_what_the_engine_says(data_dir: Path) -> None:
    async with chat_lab(data_dir, by_hand=True) as lab:
        lab.hand.queue_s = 1.5
        started = await lab.create("hi")
        rid = Rid(started.response_id)
        lab.hand.say(rid, "a")
        lab.hand.finish(rid)
        assert (await lab.read(started)).record.timings.queue_ms == 1500.0
