"""`chatd serve` with a toy model: all of the real process but the tensors.

``python -m tests.support.toy_serve`` takes the flags of ``chatd serve`` and these from the environment:

- ``TOY_STEP_S``: seconds that each engine step takes;
- ``TOY_HOLD``: the engine holds its step while this file exists;
- ``TOY_PAGES``: pages of KV.

A message that begins with ``ids:`` is answered with the ids it lists, one with ``say:`` with the bytes after
it, one with ``count:`` with so many digits. All others get the checksum of the KV pages: see `engines`.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from chatd.cache.disk.tier import DiskTier
from chatd.cli.disk_settings import disk_folder
from chatd.cli.loading import Loaded, Progress
from chatd.cli.running import run
from chatd.cli.serve_screen import screen_for
from chatd.config import Settings, load_settings
from chatd.config_kinds import AUTO
from chatd.engine.messages import StepOutput
from chatd.engine.plan import StepPlan, StepRow
from chatd.ids import Rid
from chatd.logs import configure_logs
from chatd.model.kv_pool import KVPlan
from chatd.server.backend import Backend
from tests.support.chat_lab import toy_template
from tests.support.engines import (
    TURN_END,
    TURN_START,
    VOCAB_SIZE,
    ChecksumRunner,
    toy_engine,
    toy_tokenizer,
)

CONTEXT_LENGTH = 8192
BYTES_PER_TOKEN = 8


def scripted(prompt: Sequence[int]) -> list[int] | None:
    """The ids that the last user message asks for, if there is one and it does."""
    start = max((i for i, token in enumerate(prompt[:-11]) if token == TURN_START), default=-1)
    if start < 0 or TURN_END not in prompt[start:]:  # text without a template, or ids of any kind
        return None
    end = list(prompt).index(TURN_END, start)
    order, _, what = bytes(prompt[start + len("?user\n") : end]).partition(b":")
    match order:
        case b"ids":
            return [int(number) for number in what.split(b",")]
        case b"say":
            return list(what)
        case b"count":
            return [0x30 + i % 10 for i in range(int(what))]
    return None


class ToyRunner(ChecksumRunner):
    def __init__(self, num_pages: int, page_size: int, step_s: float, hold: Path) -> None:
        super().__init__(num_pages, page_size)
        self._scripts: dict[Rid, list[int] | None] = {}
        self._step_s, self._hold = step_s, hold
        self.before_step = self._wait

    def _wait(self, plan: StepPlan) -> None:
        time.sleep(self._step_s)
        while self._hold.exists():
            time.sleep(0.005)

    def _next(self, row: StepRow) -> int:
        if row.rid not in self._scripts:
            self._scripts[row.rid] = scripted(row.ids[: row.prompt_len])
        script = self._scripts[row.rid]
        if script is None:
            return super()._next(row)
        done = row.start + row.extend_len - row.prompt_len
        return script[done] if done < len(script) else TURN_END


def toy_load(settings: Settings, post: Callable[[StepOutput], None], progress: Progress) -> Loaded:
    """As `chatd.cli.loading.load`, in no time."""
    progress(0.5, "making a toy")
    pages = int(os.environ.get("TOY_PAGES", "4096"))
    context = CONTEXT_LENGTH if settings.context_length == AUTO else settings.context_length
    step_s, hold = float(os.environ.get("TOY_STEP_S", "0")), Path(os.environ.get("TOY_HOLD", "/nowhere"))
    runner = ToyRunner(pages, settings.page_size, step_s, hold)
    disk = _disk(settings, runner.block_bytes)
    engine = toy_engine(
        post,
        runner,
        tier=disk,
        num_pages=pages,
        page_size=settings.page_size,
        step_tokens=512 if settings.step_tokens == AUTO else settings.step_tokens,
        max_running=settings.max_running,
        context_length=context,
    )
    backend = Backend(toy_tokenizer(), toy_template(), engine, "toy", context, VOCAB_SIZE)
    plan = KVPlan(pages, settings.page_size, BYTES_PER_TOKEN, context)
    return Loaded(backend, engine, plan, "cpu", "int64", disk=disk)


def _disk(settings: Settings, block_bytes: int) -> DiskTier | None:
    if settings.disk == "off":
        return None
    folder = disk_folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    return DiskTier.open(folder, b"toy", block_bytes, 1 << 26)


def main(flags: Sequence[str]) -> None:
    """As the command does it: ``--name value`` pairs, JSON lines on standard output."""
    names = [flag.removeprefix("--").replace("-", "_") for flag in flags[::2]]
    settings = load_settings(dict(zip(names, flags[1::2], strict=True)), {}, None)
    configure_logs(as_json=True, level=settings.log_level)
    screen = screen_for(as_json=True)
    asyncio.run(run(settings, screen, toy_load))
    screen.stopped()


if __name__ == "__main__":
    main(sys.argv[1:])
