"""The engine thread over a real disk tier: turns outlive the engine, and are written before it ends."""

import inspect
import threading
from pathlib import Path

import pytest

from chatd.cache.disk.tier import DiskTier
from chatd.cache.prefix_cache import PrefixCache
from chatd.cache.tiering import Tiering
from chatd.engine.engine import Engine
from chatd.engine.messages import (
    CacheDone,
    CacheListing,
    ClearCache,
    CountPinned,
    Forget,
    ListCache,
    PinnedKv,
    PinPrefix,
    Prefill,
    Probe,
    Probed,
    UnpinPrefix,
    Update,
    Warm,
)
from chatd.engine.scheduler import Scheduler, SchedulerLimits
from chatd.ids import Rid
from chatd.text.answer import AnswerText
from tests.engine.test_engine import Outbox
from tests.support.engines import ChecksumRunner, LoadAlways, request, toy_tokenizer
from tests.support.lab import prompt, reference

BLOCK_BYTES = 64 * 8
ME = request("x", [1], 1).namespace


class DiskEngine:
    """An engine with 64 pages and a tier in ``folder``, while the block runs."""

    def __init__(self, folder: Path, *, overlaps: bool = False, write_s: float = 20.0) -> None:
        self.tier = DiskTier.open(folder, b"toy", BLOCK_BYTES, 1 << 24)
        self.runner = ChecksumRunner(64, 16, overlaps=overlaps)
        self.outbox = Outbox()
        self.progress: list[tuple[int, int]] = []
        cache = PrefixCache(64, 16)
        tiering = Tiering(cache, self.tier, self.runner.take_buffer, LoadAlways())
        cache.on_evict = tiering.spiller.on_evict
        tokenizer = toy_tokenizer()
        self.scheduler = Scheduler(
            cache, SchedulerLimits(64, 16, 4096), lambda stop: AnswerText(tokenizer, stop), tiering=tiering
        )
        self.engine = Engine(self.scheduler, self.runner, self.outbox)
        self._write_s = write_s

    def __enter__(self) -> "DiskEngine":
        self.engine.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.stop(
            20 + self._write_s,
            write_s=self._write_s,
            progress=lambda done, total: self.progress.append((done, total)),
        )
        assert self.engine.failure is None
        self.scheduler.check()
        self.tier.close(5)

    def path(self, rid: str, ids: list[int]) -> tuple[int, ...]:
        """What history keeps of a turn."""
        return (*ids, *self.outbox.until_finished(rid).token_ids)

    def answer(self, rid: str, ids: list[int], max_tokens: int = 8) -> Prefill:
        self.engine.submit(request(rid, ids, max_tokens))
        self.outbox.until_finished(rid)
        text = "".join(u.text for u in self.outbox.updates if u.rid == rid and hasattr(u, "text"))
        assert text == reference(request(rid, ids, max_tokens))
        return next(u for u in self.outbox.updates if isinstance(u, Prefill) and u.rid == rid)

    def ask(
        self, command: Probe | Forget | PinPrefix | UnpinPrefix | ClearCache | ListCache | CountPinned
    ) -> Update:
        self.engine.send(command)
        return self.outbox.until(lambda update: update.rid == command.rid)


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_turn_outlives_the_engine(tmp_path: Path, overlaps: bool) -> None:
    with DiskEngine(tmp_path, overlaps=overlaps) as first:
        assert first.answer("a", prompt(1, 400)).computed == 400
    assert first.tier.stats().blocks == 6
    with DiskEngine(tmp_path, overlaps=overlaps) as second:
        again = second.answer("b", prompt(1, 400))
        assert (again.gpu_hit, again.disk_hit, again.computed) == (0, 384, 16)


def test_an_idle_engine_writes_by_itself(tmp_path: Path) -> None:
    with DiskEngine(tmp_path, write_s=0.0) as lab:
        lab.answer("a", prompt(1, 400))
        done = threading.Event()
        for _ in range(2000):
            if lab.tier.stats().blocks == 6:
                break
            done.wait(0.01)
        assert lab.tier.stats().blocks == 6


def test_what_is_cached_is_written_before_the_end_newest_first(tmp_path: Path) -> None:
    with DiskEngine(tmp_path) as lab:
        lab.scheduler.tiering.spiller.want = lambda *args: None  # type: ignore[method-assign]
        for i in range(3):
            lab.answer(f"r{i}", prompt(i, 200))
        assert lab.tier.stats().blocks == 0
        del lab.scheduler.tiering.spiller.want
    assert lab.progress[-1] == (9, 9)
    with DiskEngine(tmp_path) as after:
        assert after.answer("a", prompt(0, 200)).disk_hit == 192


def test_the_end_does_not_wait_for_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    with DiskEngine(tmp_path, write_s=0.3) as lab:
        lab.scheduler.tiering.spiller.want = lambda *args: None  # type: ignore[method-assign]
        lab.answer("a", prompt(1, 400))
        del lab.scheduler.tiering.spiller.want
        lab.tier.write = lambda *args: None  # type: ignore[method-assign]


def test_c1_writing_resumes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = threading.Event()
    full.set()
    accepts = inspect.getattr_static(DiskTier, "accepts")
    monkeypatch.setattr(DiskTier, "accepts", property(lambda tier: not full.is_set() and accepts.fget(tier)))
    with DiskEngine(tmp_path) as lab:
        lab.answer("a", prompt(1, 400))
        assert lab.tier.stats().blocks == 0
        full.clear()
        for _ in range(2000):
            if lab.tier.stats().blocks == 6:
                break
            threading.Event().wait(0.01)
        assert lab.tier.stats().blocks == 6


def test_commands(tmp_path: Path) -> None:
    ids = tuple(prompt(1, 400))
    with DiskEngine(tmp_path) as lab:
        lab.answer("a", list(ids))
    with DiskEngine(tmp_path) as lab:
        probed = lab.ask(Probe(Rid("p1"), ME, ids))
        assert isinstance(probed, Probed)
        assert (probed.gpu_hit, probed.disk_hit, probed.computed) == (0, 384, 16)
        lab.engine.send(Warm(ME, ids))
        while not isinstance(probed := lab.ask(Probe(Rid("p2"), ME, ids)), Probed) or probed.disk_hit:
            lab.outbox.updates.clear()
        assert (probed.gpu_hit, probed.computed) == (384, 16)
        listing = lab.ask(ListCache(Rid("l")))
        assert isinstance(listing, CacheListing)
        assert [(path.tokens, path.stored) for path in listing.paths] == [(384, 384)]
        pinned = lab.ask(PinPrefix(Rid("pin"), "manual", ME, ids[:130]))
        assert pinned == CacheDone(Rid("pin"), 128, 2)
        assert lab.ask(CountPinned(Rid("n1"))) == PinnedKv(Rid("n1"), ((ME, 128 // 16),))
        cleared = lab.ask(ClearCache(Rid("c")))
        assert cleared == CacheDone(Rid("c"), 256, 4)
        assert lab.ask(UnpinPrefix(Rid("u"), "manual")) == CacheDone(Rid("u"), 128, 0)
        assert lab.ask(CountPinned(Rid("n2"))) == PinnedKv(Rid("n2"), ())
        assert lab.ask(Forget(Rid("f"), ME, (ids,))) == CacheDone(Rid("f"), 128, 2)
        assert lab.tier.stats().blocks == 0


def test_a_forgotten_path_is_not_written_afterwards(tmp_path: Path) -> None:
    with DiskEngine(tmp_path) as lab:
        for i in range(20):
            lab.answer(f"r{i}", prompt(1, 400))
            done = lab.ask(Forget(Rid(f"f{i}"), ME, (lab.path(f"r{i}", prompt(1, 400)),)))
            assert isinstance(done, CacheDone)
            assert done.tokens == 416, "407 have KV, in 26 pages"
    assert lab.tier.stats().blocks == 0
