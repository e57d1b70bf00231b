"""The steps of a start: within every limit, over the scratch page, and of every form."""

import pytest

from chatd.engine.plan import StepRow
from chatd.engine.warm_up import warm_up_steps

SCRATCH = 99


@pytest.mark.parametrize(
    ("step_tokens", "max_running", "context_length"),
    [(2048, 64, 8192), (1, 1, 16), (64, 64, 4096), (300, 2, 100), (5, 3, 1 << 20)],
)
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_steps_are_ones_that_the_scheduler_could_have_made(
    step_tokens: int, max_running: int, context_length: int, page_size: int
) -> None:
    steps = list(warm_up_steps(SCRATCH, page_size, step_tokens, max_running, context_length))
    for rows in steps:
        assert len(rows) <= max_running
        assert len({row.rid for row in rows}) == len(rows)
        for row in rows:
            end = row.start + row.extend_len
            assert row.extend_len >= 1
            assert end <= context_length
            assert len(row.ids) == end
            assert row.pages == [SCRATCH] * -(-end // page_size)
    first = steps[0]
    assert sum(row.extend_len for row in first) == min(step_tokens, max_running - 1 + context_length)
    assert len(first) == max_running
    assert {row.extend_len for row in steps[1]} == {1}


def test_every_way_of_sampling_and_of_splitting_is_there() -> None:
    rows: list[StepRow] = [rows[0] for rows in warm_up_steps(SCRATCH, 16, 64, 1, 5000)]
    ways = {(r.params.temperature > 0, r.params.top_k > 0, bool(r.params.logit_bias)) for r in rows}
    assert len(ways) == 6
    for extend_len in (1, 16):
        lens = {row.start + row.extend_len for row in rows if row.start and row.extend_len == extend_len}
        assert lens == {512, 1024, 2048, 4096}
