"""Running a `TorchRunner` without a scheduler: pages are handed out in order and never shared."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from chatd.engine.batch import build_batch
from chatd.engine.device import Device
from chatd.engine.messages import SamplingParams
from chatd.engine.plan import StepPlan, StepRow
from chatd.engine.runner import TorchRunner
from chatd.ids import Rid
from chatd.model.decoder import Decoder
from chatd.model.kv_pool import KVPool, page_bytes, plan_pages
from chatd.model.load import load_weights, open_model
from chatd.model.weights import Weights
from chatd_kernels import load_backend

GREEDY = SamplingParams(temperature=0.0)
CPU = torch.device("cpu")


def weights_of(path: Path, dtype: torch.dtype = torch.float32) -> Weights:
    return load_weights(open_model(path), dtype=dtype, device=CPU)


def pool_of(
    weights: Weights, tokens: int, page_size: int = 16, kv_dtype: torch.dtype | None = None
) -> KVPool:
    """Room for ``tokens``, filled with NaN: whatever is read before it is written shows."""
    dtype = weights.dtype if kv_dtype is None else kv_dtype
    pages = -(-tokens // page_size)
    plan = plan_pages(weights.config, dtype, page_size, pages * page_bytes(weights.config, dtype, page_size))
    pool = KVPool(weights.config, plan, dtype, CPU)
    poison(pool)
    return pool


def poison(pool: KVPool) -> None:
    """NaN in every slot: in its scales, where it has some."""
    if pool.scales is not None:
        pool.scales.fill_(torch.nan)
    else:
        pool.planes.fill_(torch.nan)


class Driver:
    """Requests on a fresh pool, each with ``max_len`` tokens of room."""

    def __init__(
        self,
        weights: Weights,
        rows: int,
        max_len: int,
        page_size: int = 16,
        *,
        kv_dtype: torch.dtype | None = None,
        device: Device | None = None,
    ) -> None:
        self.pages_per_row = -(-max_len // page_size)
        self.pool = pool_of(weights, rows * self.pages_per_row * page_size, page_size, kv_dtype)
        self.decoder = Decoder(weights, load_backend("reference"))
        self.device = device
        self.runner = TorchRunner(weights, self.pool, load_backend("reference"), device)

    def row(
        self,
        i: int,
        ids: Sequence[int],
        start: int,
        extend_len: int,
        params: SamplingParams = GREEDY,
        *,
        prompt_len: int | None = None,
        sample: bool = True,
    ) -> StepRow:
        # Pages in reverse: nothing may depend on their being in order.
        pages = list(range((i + 1) * self.pages_per_row - 1, i * self.pages_per_row - 1, -1))
        length = len(ids) if prompt_len is None else prompt_len
        return StepRow(Rid(str(i)), ids, start, extend_len, pages, sample, length, params)

    def prefill(self, prompts: Sequence[Sequence[int]], chunk: int = 1 << 20) -> list[int]:
        """Compute the prompts' KV, ``chunk`` tokens of each a step; the next id of each."""
        out: dict[int, int] = {}
        for at in range(0, max(map(len, prompts)), chunk):
            live = [i for i, ids in enumerate(prompts) if at < len(ids)]
            ends = {i: min(at + chunk, len(prompts[i])) for i in live}
            rows = [
                self.row(i, prompts[i], at, ends[i] - at, sample=ends[i] == len(prompts[i])) for i in live
            ]
            sampling = [i for i, row in zip(live, rows, strict=True) if row.sample]
            out |= dict(zip(sampling, self.runner.launch(StepPlan([], rows)).wait(), strict=True))
        return [out[i] for i in range(len(prompts))]

    def generate(self, prompts: Sequence[Sequence[int]], count: int, chunk: int = 1 << 20) -> list[list[int]]:
        """Greedy answers of ``count`` ids each, all requests in one batch."""
        answers = [[token] for token in self.prefill(prompts, chunk)]
        for _ in range(count - 1):
            known = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
            rows = [self.row(i, ids, len(ids) - 1, 1) for i, ids in enumerate(known)]
            for answer, token in zip(answers, self.runner.launch(StepPlan([], rows)).wait(), strict=True):
                answer.append(token)
        return answers

    def logits(self, i: int, ids: Sequence[int], start: int, extend_len: int) -> torch.Tensor:
        """float32 ``[extend_len, vocab]`` of the step's every token."""
        with torch.inference_mode():
            batch, _ = build_batch(
                [self.row(i, ids, start, extend_len)], self.pool.page_size, torch.from_numpy
            )
            return self.decoder.forward(replace(batch, sample_at=torch.arange(extend_len)), self.pool).float()
