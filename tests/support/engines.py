"""Two small engines for exact, fast tests, and the toy tokenizer they speak.

- `ChecksumRunner`: a real, tiny model whose next token is computed from the contents of the KV
  pages it was handed, so that a wrong, stale or shared-by-mistake page shows in the tokens.
- `ScriptRunner`: forces given ids, for detokenising, stops and endings.
"""

import threading
from collections.abc import Callable, Sequence

import numpy as np

from chatd.cache.block_tier import BLOCK_LEN, BlockTier
from chatd.cache.costs import Costs
from chatd.cache.prefix_cache import PrefixCache
from chatd.cache.tiering import Tiering
from chatd.engine.engine import Engine
from chatd.engine.messages import SamplingParams, StepOutput, Submit
from chatd.engine.plan import BAD_ROW, Done, HostBuffer, StepPlan, StepRow
from chatd.engine.scheduler import Scheduler, SchedulerLimits
from chatd.ids import Namespace, Rid
from chatd.text.answer import AnswerText
from chatd.text.tokenizer import Tokenizer

VOCAB_SIZE = 260
END, SYSTEM_START, TURN_START, TURN_END = 256, 257, 258, 259
_MASK = (1 << 63) - 1

TOY_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def _byte_symbols() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in byte order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols, spare = {b: chr(b) for b in plain}, 256
    for byte in range(256):
        if byte not in symbols:
            symbols[byte] = chr(spare)
            spare += 1
    return [symbols[b] for b in range(256)]


def toy_tokenizer() -> Tokenizer:
    """A byte is a token; 256 is end-of-text, 258 `<|start|>`, 259 `<|end|>` (which also ends a turn)."""
    controls = ["<|endoftext|>", "<|system|>", "<|start|>", "<|end|>"]
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": _byte_symbols() + controls,
            "tokenizer.ggml.token_type": [1] * 256 + [3] * len(controls),
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": TURN_END,
        }
    )


def _mix(*values: int) -> int:
    """A 63-bit hash of integers (splitmix64's finaliser over a running sum)."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = (state + value * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & ((1 << 64) - 1)
        state ^= state >> 29
        state = state * 0xBF58476D1CE4E5B9 & ((1 << 64) - 1)
        state ^= state >> 32
    return state & _MASK


class ByteBuffer:
    """A host buffer that shows it is used after its release."""

    def __init__(self, size: int, given_back: Callable[[], None]) -> None:
        self._bytes: bytearray | None = bytearray(size)
        self._given_back = given_back

    @property
    def view(self) -> memoryview:
        assert self._bytes is not None, "a buffer was used after its release"
        return memoryview(self._bytes)

    def release(self) -> None:
        if self._bytes is not None:
            self._bytes = None
            self._given_back()


class PagedRunner:
    """What both have in common: pages, copies, and the order of a step.

    With ``overlaps`` a step's ids are known at ``wait`` only, its tickets one step later, and its failure
    comes at ``wait``; as on a device its writes happen in the order of the launches.
    """

    vocab_size = VOCAB_SIZE

    def __init__(
        self, num_pages: int, page_size: int, *, overlaps: bool = False, num_buffers: int = 8
    ) -> None:
        self.page_size = page_size
        self.overlaps = overlaps
        self.kv = np.full((num_pages, page_size), -1, dtype=np.int64)
        self.steps = 0
        self.bad: Callable[[StepRow], bool] = lambda row: False
        self.before_step: Callable[[StepPlan], None] = lambda plan: None
        self.buffers_free = self._num_buffers = num_buffers
        self._buffers = threading.Lock()
        self._copying: list[int] = []
        self._sampled: dict[Rid, int] = {}

    @property
    def block_bytes(self) -> int:
        """Of 64 tokens, eight bytes each."""
        return BLOCK_LEN * 8

    def launch(self, plan: StepPlan) -> Done:
        self.before_step(plan)
        self.steps += 1
        self._move(plan)
        for row in plan.rows:
            self._write(row)
        sampling = [row for row in plan.rows if row.sample]
        ids = [BAD_ROW if self.bad(row) else self._next(row) for row in sampling]
        self._sampled = {row.rid: token for row, token in zip(sampling, ids, strict=True)}
        return Done(ids)

    def _move(self, plan: StepPlan) -> None:
        for spill in plan.spills:
            spill.buffer.view[:] = self.kv[list(spill.pages)].tobytes()
        for restore in plan.restores:
            records = np.frombuffer(restore.buffer.view, np.int64).reshape(-1, self.page_size)
            self.kv[list(restore.pages)] = records[restore.skip :]
        self._copying += [spill.ticket for spill in plan.spills]
        self._copying += [restore.ticket for restore in plan.restores]
        for copy in plan.copies:
            self.kv[copy.dst, : copy.slots] = self.kv[copy.src, : copy.slots]

    def copies_done(self, *, wait: bool) -> list[int]:
        done, self._copying = self._copying, []
        return done

    def take_buffer(self) -> ByteBuffer | None:
        with self._buffers:
            if not self.buffers_free:
                return None
            self.buffers_free -= 1
        return ByteBuffer(self.block_bytes, self._give_back)

    @property
    def buffers_out(self) -> int:
        return self._num_buffers - self.buffers_free

    def _give_back(self) -> None:
        with self._buffers:
            self.buffers_free += 1

    def _ids(self, row: StepRow) -> list[int]:
        """All of its ids; what the step before sampled is taken from there, as on a device."""
        return [*row.ids, max(0, self._sampled[row.rid])] if row.pending else list(row.ids)

    def _write(self, row: StepRow) -> None:
        ids = self._ids(row) if row.pending else row.ids
        for position in range(row.start, row.start + row.extend_len):
            before = self._slot(row, position - 1) if position else 0
            page, slot = row.pages[position // self.page_size], position % self.page_size
            self.kv[page, slot] = _mix(before, ids[position], position)

    def _slot(self, row: StepRow, position: int) -> int:
        return int(self.kv[row.pages[position // self.page_size], position % self.page_size])

    def _next(self, row: StepRow) -> int:
        raise NotImplementedError


class ChecksumRunner(PagedRunner):
    """Next id = hash of every slot from 0 to the last, read through the page table; ids are printable ASCII.

    With temperature above 0 the hash also takes the seed and the position.
    """

    def _next(self, row: StepRow) -> int:
        kv_len = row.start + row.extend_len
        pages = list(row.pages[: -(-kv_len // self.page_size)])
        slots = self.kv[pages].reshape(-1)[:kv_len]
        total = int(np.bitwise_xor.reduce(slots * np.arange(1, 2 * kv_len, 2, dtype=np.int64)))
        salt = row.params.seed if row.params.temperature > 0 else 0
        return 32 + _mix(total, kv_len, salt) % 95


class ScriptRunner(PagedRunner):
    """The answer to a prompt is ``script(prompt ids)``, then end-of-text for ever."""

    def __init__(
        self, num_pages: int, page_size: int, script: Callable[[Sequence[int]], Sequence[int]]
    ) -> None:
        super().__init__(num_pages, page_size)
        self.script = script

    def _next(self, row: StepRow) -> int:
        answer = self.script(row.ids[: row.prompt_len])
        done = row.start + row.extend_len - row.prompt_len
        return answer[done] if done < len(answer) else TURN_END


class LoadAlways(Costs):
    """A toy computes a token in microseconds: measured costs would soon speak against its disk."""

    def would_load(self, blocks: int, tokens: int) -> bool:
        return True


def toy_scheduler(
    num_pages: int = 64,
    page_size: int = 16,
    *,
    step_tokens: int = 64,
    max_running: int = 16,
    context_length: int = 4096,
    enabled: bool = True,
    tier: BlockTier | None = None,
    take_buffer: Callable[[], HostBuffer | None] = lambda: None,
) -> Scheduler:
    """What a ``tier`` has is always loaded: see `LoadAlways`."""
    tokenizer = toy_tokenizer()
    cache = PrefixCache(num_pages, page_size, enabled=enabled)
    tiering = None
    if tier is not None:
        tiering = Tiering(cache, tier, take_buffer, LoadAlways())
        cache.on_evict = tiering.spiller.on_evict
    return Scheduler(
        cache,
        SchedulerLimits(step_tokens, max_running, context_length),
        lambda stop: AnswerText(tokenizer, stop),
        tokenizer.special_ids,
        tiering,
    )


def toy_engine(
    post: Callable[[StepOutput], None],
    runner: PagedRunner | None = None,
    *,
    num_pages: int = 1024,
    page_size: int = 16,
    tier: BlockTier | None = None,
    step_tokens: int = 64,
    max_running: int = 16,
    context_length: int = 4096,
) -> Engine:
    """A real engine thread over a toy runner (checksum unless another is given)."""
    runner = runner or ChecksumRunner(num_pages, page_size)
    scheduler = toy_scheduler(
        num_pages,
        page_size,
        step_tokens=step_tokens,
        max_running=max_running,
        context_length=context_length,
        tier=tier,
        take_buffer=runner.take_buffer,
    )
    return Engine(scheduler, runner, post)


def request(
    rid: str,
    prompt: Sequence[int],
    max_tokens: int = 16,
    *,
    namespace: str = "me",
    seed: int = 0,
    temperature: float = 0.0,
    stop: tuple[str, ...] = (),
    stop_ids: frozenset[int] = frozenset({END, TURN_END}),
) -> Submit:
    params = SamplingParams(temperature=temperature, seed=seed)
    return Submit(Rid(rid), Namespace(namespace), tuple(prompt), params, max_tokens, stop, stop_ids)


class Gate:
    """Holds a runner's step until the test lets it go (``runner.before_step = gate``)."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._go = threading.Event()

    def __call__(self, plan: StepPlan) -> None:
        self.entered.set()
        if not self._go.wait(20):
            raise TimeoutError("the test never opened the gate")

    def open(self) -> None:
        self._go.set()
