"""The engine thread over real tensors on a device that takes its time: it says what it says elsewhere."""

from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from chatd.cache.prefix_cache import PrefixCache
from chatd.cache.radix_node import pack
from chatd.cache.tiering import Tiering
from chatd.engine.device import Device, InlineDevice
from chatd.engine.engine import Engine
from chatd.engine.messages import CacheDone, ClearCache, Finished, Prefill, StepOutput, Submit
from chatd.engine.runner import TorchRunner
from chatd.engine.scheduler import Scheduler, SchedulerLimits
from chatd.gpu_check.bench import RawAnswer
from chatd.gpu_check.host_tier import AlwaysLoad, HostTier
from chatd.ids import Namespace, Rid
from chatd.model.weights import Weights
from chatd_kernels import load_backend
from tests.support.driving import pool_of, weights_of
from tests.support.engines import VOCAB_SIZE, request
from tests.support.late_device import LateDevice
from tests.support.tiny_models import write_folder

PAGE_SIZE, PAGES = 16, 24
LENS = (140, 70, 133, 9, 75)
PROMPTS = [[(7 * i + 3 * j + i * j) % 250 for j in range(length)] for i, length in enumerate(LENS)]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    return weights_of(write_folder(tmp_path_factory.mktemp("tiny") / "model", vocab_size=VOCAB_SIZE))


class Chat:
    """An engine with few pages, so that requests are preempted, evicted, spilled and restored."""

    def __init__(self, weights: Weights, device: Device, *, graphs: bool) -> None:
        pool = pool_of(weights, PAGES * PAGE_SIZE, PAGE_SIZE)
        runner = TorchRunner(weights, pool, load_backend("reference"), device)
        if graphs:
            runner.capture(4, 256, lambda share, what: None)
        self.tier = HostTier(runner.block_bytes)
        self.tier.accepts = True
        cache = PrefixCache(PAGES, PAGE_SIZE)
        tiering = Tiering(cache, self.tier, runner.take_buffer, AlwaysLoad())
        cache.on_evict = tiering.spiller.on_evict
        scheduler = Scheduler(
            cache, SchedulerLimits(40, 4, 256), lambda stop: RawAnswer(), frozenset(), tiering
        )
        self.posted: SimpleQueue[StepOutput] = SimpleQueue()
        self.engine = Engine(scheduler, runner, self.posted.put)
        self.engine.start()
        self.disk_hit = 0

    def close(self) -> None:
        self.engine.stop(20)
        self.tier.close()
        assert self.engine.failure is None

    def ask(self, submits: list[Submit]) -> list[tuple[int, ...]]:
        for submit in submits:
            self.engine.submit(submit)
        answers: dict[Rid, tuple[int, ...]] = {}
        while len(answers) < len(submits):
            for update in self.posted.get(timeout=20).updates:
                match update:
                    case Finished(rid=rid, token_ids=ids, error=error):
                        assert not error
                        answers[rid] = ids
                    case Prefill(disk_hit=disk_hit):
                        self.disk_hit += disk_hit
        return [answers[submit.rid] for submit in submits]

    def forget_memory(self) -> None:
        rid = Rid("clear")
        self.engine.send(ClearCache(rid, disk=False))
        while not any(isinstance(update, CacheDone) for update in self.posted.get(timeout=20).updates):
            pass


def converse(chat: Chat) -> list[tuple[int, ...]]:
    """All at once; then, with nothing left in memory, a second turn of each, greedy and drawn."""
    first = chat.ask([request(f"a{i}", ids, 20, stop_ids=frozenset()) for i, ids in enumerate(PROMPTS)])
    assert chat.tier.wait_for(chat.tier.chain(pack(PROMPTS[0]), Namespace("me"), 0), 20)
    chat.forget_memory()
    longer = [[*ids, *answer, 1, 2, 3] for ids, answer in zip(PROMPTS, first, strict=True)]
    again = [
        request(f"b{i}", ids, 12, temperature=float(i % 2), seed=i, stop_ids=frozenset())
        for i, ids in enumerate(longer)
    ]
    return first + chat.ask(again)


@pytest.fixture(scope="module")
def plain(weights: Weights) -> list[tuple[int, ...]]:
    chat = Chat(weights, InlineDevice(), graphs=False)
    try:
        return converse(chat)
    finally:
        chat.close()


@pytest.fixture(params=[(seed, graphs) for seed in range(3) for graphs in (False, True)], ids=str)
def late(weights: Weights, request: pytest.FixtureRequest) -> Iterator[Chat]:
    seed, graphs = request.param
    chat = Chat(weights, LateDevice(seed), graphs=graphs)
    yield chat
    chat.close()


def test_a_late_device_changes_no_answer(plain: list[tuple[int, ...]], late: Chat) -> None:
    assert converse(late) == plain
    assert late.disk_hit >= 64


def test_on_a_cpu_what_was_stored_is_restored_too(weights: Weights, plain: list[tuple[int, ...]]) -> None:
    chat = Chat(weights, InlineDevice(), graphs=True)
    try:
        assert converse(chat) == plain
        assert chat.disk_hit >= 64
    finally:
        chat.close()
