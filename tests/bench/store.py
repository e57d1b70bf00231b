"""What keeping everything costs, on the real model.

``python -m tests.bench.store MODEL [--pairs N] [--tokens N]``
One engine, 16 sessions at a time, in turns with three ends for what it says:

- *nothing*: steps are counted and dropped, on the engine's own thread;
- *null*: the chat service with a reader for each session, over a store that keeps nothing of what is said;
- *store*: the same over a real store.

For each run: processor seconds of the whole process for each generated token, and of the threads that do not
compute, which other work on the machine disturbs less. With the store also how long each commit took, from
the flush to its return.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from chatd.cli.cores import compute_threads
from chatd.cli.loading import load
from chatd.config import Settings
from chatd.engine.messages import Finished, SamplingParams, StepOutput, Submit
from chatd.engine.stream import Ended
from chatd.ids import Namespace, Rid
from chatd.server.backend import Backend
from chatd.server.commands import CreateCommand
from chatd.server.service import ChatService, ServiceSettings
from chatd.store.flush_batch import FlushBatch
from chatd.store.prices import PriceBook
from chatd.store.records import BegunResponse, NewResponse
from chatd.store.store import Store
from chatd.text.chat_template import ChatMessage
from tests.bench.disk_tier import words

ME = Namespace("bench")
SESSIONS = 16
TICK_S = 1 / os.sysconf("SC_CLK_TCK")

Sink = Callable[[StepOutput], None]


def drop(out: StepOutput) -> None:
    """Nobody listens."""


class TimedStore(Store):
    """Notes how long each write took, for whoever waited for it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.flush_ms: list[float] = []
        self.begin_ms: list[float] = []

    async def flush(self, batch: FlushBatch) -> None:
        with timed(self.flush_ms):
            await super().flush(batch)

    async def begin_response(self, new: NewResponse) -> BegunResponse:
        with timed(self.begin_ms):
            return await super().begin_response(new)


class NullStore(TimedStore):
    """Where answers begin, and nothing else is kept."""

    async def flush(self, batch: FlushBatch) -> None:
        """Forget it."""


@contextlib.contextmanager
def timed(into: list[float]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    into.append((time.perf_counter() - began) * 1000)


class Cost:
    """Processor seconds from now on: of the process, and of all its threads that do not compute."""

    def __init__(self, computing: frozenset[int]) -> None:
        self._computing = computing
        self._before = self._now()

    def _now(self) -> tuple[float, float]:
        others = sum(
            seconds for thread_id, seconds in thread_seconds().items() if thread_id not in self._computing
        )
        return time.process_time(), others

    def per_token(self, tokens: int) -> dict[str, float]:
        now = self._now()
        whole, others = (after - before for after, before in zip(now, self._before, strict=True))
        return {"cpu_ms": 1000 * whole / tokens, "other_threads_ms": 1000 * others / tokens}


def thread_seconds() -> dict[int, float]:
    found = {}
    for folder in Path("/proc/self/task").iterdir():
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        found[int(folder.name)] = (int(fields[11]) + int(fields[12])) * TICK_S
    return found


class Bench:
    def __init__(self, backend: Backend, tokens: int) -> None:
        self.sink: Sink = drop
        self.computing: frozenset[int] = frozenset()
        self._backend = backend
        self._tokens = tokens
        self._numbers = itertools.count()

    def texts(self) -> list[str]:
        """New ones, so that nothing is reused."""
        return [words(30, next(self._numbers)) for _ in range(SESSIONS)]

    def drop_everything(self) -> dict[str, float]:
        left, made, done = SESSIONS, 0, threading.Event()

        def count(out: StepOutput) -> None:
            nonlocal left, made
            for update in out.updates:
                if isinstance(update, Finished):
                    left, made = left - 1, made + update.generated
            if not left:
                done.set()

        self.sink = count
        submits = [self._submit(text) for text in self.texts()]
        cost = Cost(self.computing)
        for submit in submits:
            self._backend.engine.submit(submit)
        done.wait()
        return cost.per_token(made)

    def _submit(self, text: str) -> Submit:
        spans = self._backend.template.render([ChatMessage("user", text)], add_generation_prompt=True)
        ids = tuple(self._backend.tokenizer.encode_prompt(spans))
        rid = Rid(f"bench-{next(self._numbers)}")
        return Submit(rid, ME, ids, SamplingParams(temperature=0), self._tokens)

    async def serve(self, kind: type[TimedStore]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            made = itertools.count()
            store = await kind.open(
                Path(folder), prices=PriceBook(), clock=time.time, new_id=lambda: f"id{next(made)}"
            )
            assert isinstance(store, TimedStore)
            try:
                return await self._keep(store, lambda: f"id{next(made)}")
            finally:
                await store.close()

    async def _keep(self, store: TimedStore, new_id: Callable[[], str]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        service = ChatService(
            backend=self._backend, store=store, settings=ServiceSettings(), clock=time.time, new_id=new_id
        )

        def post(out: StepOutput) -> None:
            loop.call_soon_threadsafe(service.on_step, out)

        self.sink = post
        async with service.running():
            texts = self.texts()
            cost = Cost(self.computing)
            await asyncio.gather(*(self._session(service, text) for text in texts))
            shown: dict[str, Any] = cost.per_token(SESSIONS * self._tokens)
        self.sink = drop
        shown["flush_ms"], shown["begin_ms"] = store.flush_ms, store.begin_ms
        return shown

    async def _session(self, service: ChatService, text: str) -> None:
        params = {"max_tokens": self._tokens, "temperature": 0, "ignore_eos": True}
        started = await service.create(ME, CreateCommand(input=text, params=params))
        stream = await service.subscribe(ME, started.response_id, 0)
        while not isinstance(await stream.get(), Ended):
            pass


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main(model: Path, pairs: int, tokens: int) -> None:
    torch.set_num_threads(compute_threads())
    settings = Settings(model=str(model), disk="off", kv_bytes=1 << 30)
    before = set(thread_seconds())
    bench: Bench
    loaded = load(settings, lambda out: bench.sink(out), lambda share, what: None)
    bench = Bench(loaded.backend, tokens)
    loaded.engine.start()
    bench.drop_everything()  # starts all threads that compute
    bench.computing = frozenset(set(thread_seconds()) - before)
    runs: dict[str, list[dict[str, Any]]] = {"nothing": [], "null": [], "store": []}
    for pair in range(pairs + 1):  # the first warms up
        new = {
            "nothing": bench.drop_everything(),
            "null": asyncio.run(bench.serve(NullStore)),
            "store": asyncio.run(bench.serve(TimedStore)),
        }
        for name, run in new.items():
            runs[name] += [run] if pair else []
        print({name: round(run["cpu_ms"], 3) for name, run in new.items()}, flush=True)
    loaded.engine.stop(5)
    report(runs)


def report(runs: dict[str, list[dict[str, Any]]]) -> None:
    null, kept = runs["null"], runs["store"]
    others = [b["other_threads_ms"] - a["other_threads_ms"] for a, b in zip(null, kept, strict=True)]
    flushes = [ms for run in kept for ms in run["flush_ms"]]
    begins = [ms for run in kept for ms in run["begin_ms"]]
    cpu = {name: statistics.median(run["cpu_ms"] for run in some) for name, some in runs.items()}
    shown = {
        "cpu_ms": cpu,
        "ratios": [round(b["cpu_ms"] / a["cpu_ms"], 4) for a, b in zip(null, kept, strict=True)],
        "store_threads_ms": statistics.median(others),
        "store_threads_share": statistics.median(others) / cpu["null"],
        "commits": len(flushes),
        "flush_ms": {share: round(quantile(flushes, share), 2) for share in (0.5, 0.95, 0.99, 1.0)},
        "begin_ms": {share: round(quantile(begins, share), 2) for share in (0.5, 0.99, 1.0)},
    }
    print(json.dumps(shown, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    chosen = parser.parse_args()
    main(chosen.model, chosen.pairs, chosen.tokens)
