"""Steps for a start, over the scratch page alone: they compile and allocate before anybody waits.

Kernels are compiled for each form of a step that they know: how many ways keys are split, greedy or drawn,
filtered or not, with edited logits or without. The first step is the largest there can be: memory that is
short shows in it.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from chatd.engine.messages import SamplingParams
from chatd.engine.plan import StepRow
from chatd.ids import Rid

FIRST_SPLIT_LEN = 512
SHORT_CHUNK = 16
_HOW = {
    "greedy": SamplingParams(temperature=0.0),
    "drawn": SamplingParams(temperature=1.0),
    "filtered": SamplingParams(temperature=1.0, top_k=50, top_p=0.9),
}
_BIAS = ((0, 1.0),)


def first_steps(scratch_page: int, page_size: int, step_tokens: int) -> Iterator[list[StepRow]]:
    """For a CPU, where nothing is compiled by form: code and memory that a first request would wait for."""
    for tokens in (step_tokens, 1):
        pages = [scratch_page] * -(-tokens // page_size)
        params = _HOW["drawn"]
        yield [StepRow(Rid("warm-up"), [0] * tokens, 0, tokens, pages, True, tokens, params)]


def warm_up_steps(
    scratch_page: int, page_size: int, step_tokens: int, max_running: int, context_length: int
) -> Iterator[list[StepRow]]:
    """Rows of one step after the other. All limits as the scheduler has them."""

    def row(name: str, start: int, extend_len: int, params: SamplingParams) -> StepRow:
        end = start + extend_len
        pages = [scratch_page] * -(-end // page_size)
        return StepRow(Rid(f"warm-up {name}"), [0] * end, start, extend_len, pages, True, end, params)

    filtered = _HOW["filtered"]
    for tokens in (step_tokens, max_running):
        decodes = min(max_running, tokens) - 1
        rows = [row(str(i), 0, 1, filtered) for i in range(decodes)]
        yield [*rows, row("chunk", 0, min(tokens - decodes, context_length), filtered)]
    for params, bias in product(_HOW.values(), ((), _BIAS)):
        yield [row("ids", 0, 1, replace(params, logit_bias=bias))]
    kv_len = FIRST_SPLIT_LEN
    while kv_len <= context_length:
        for extend_len in (1, SHORT_CHUNK):
            yield [row("split", kv_len - extend_len, extend_len, filtered)]
        kv_len *= 2
