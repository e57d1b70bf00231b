"""From what was seen to figures."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatd.bench.answers import Answer, Refused, Run
from chatd.bench.charts import averaged, bar, sparkline
from chatd.bench.figures import Figures, figures, percentile, spread, timeline
from chatd.bench.pairs import compare

FINITE = st.floats(0, 1e6)


def answer(session: int = 0, turn: int = 0, asked_at: float = 10.0, **fields: object) -> Answer:
    """Three arrivals, of 1, 2 and 2 tokens, from 0.5 s after the request on; 100 prompt tokens, 60 reused."""
    made = Answer(
        session, turn, 5, asked_at, [(asked_at + at, n) for at, n in ((0.5, 1), (0.7, 2), (1.1, 2))]
    )
    made.ended_at, made.output_tokens, made.prompt_tokens = asked_at + 1.2, 5, 100
    made.reused, made.gpu_hit, made.disk_hit, made.queue_s = 60, 50, 10, 0.01
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def run(*answers: Answer, began: float = 10.0, ended: float = 14.0) -> Run:
    return Run(planned=len(answers), began=began, ended=ended, answers=list(answers))


@settings(max_examples=40)
@given(st.lists(FINITE, min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], percent: float) -> None:
    assert percentile(sorted(values), percent) == pytest.approx(np.percentile(values, percent), abs=1e-6)


def test_a_spread_leaves_out_what_is_unknown() -> None:
    assert spread([None, None]) is None
    found = spread([3.0, None, 1.0])
    assert found is not None
    assert (found.count, found.mean, found.p50, found.most) == (2, 2, 2, 3)


def test_an_answers_own_times() -> None:
    one = answer()
    assert one.ttft_s == pytest.approx(0.5)
    assert one.tpot_s == pytest.approx(0.6 / 4)
    assert one.gaps_s == pytest.approx([0.2, 0.4])
    assert one.e2e_s == pytest.approx(1.2)
    assert one.is_hit
    assert answer(reused=49).is_hit is False
    assert answer(reused=None).is_hit is None
    assert Answer(0, 0, 1, 0.0, [(1.0, 1)]).tpot_s is None
    assert Answer(0, 0, 8, 0.0, [(1.0, 3), (2.0, 5)], output_tokens=8).tpot_s == 0.2


def test_a_runs_figures() -> None:
    found = figures(run(answer(), answer(turn=1, asked_at=12.0, reused=90, gpu_hit=90, disk_hit=0)))
    assert found.ttft_first is not None
    assert found.ttft_later is not None
    assert (found.ttft_first.count, found.ttft_later.count) == (1, 1)
    assert (found.output_tokens, found.output_tokens_per_s, found.requests_per_s) == (10, 2.5, 0.5)
    assert found.total_tokens_per_s == pytest.approx(210 / 4)
    assert (found.origins.prompt, found.origins.gpu_hit, found.origins.disk_hit) == (200, 140, 10)
    assert found.origins.computed == 50
    assert [turn.reused_share for turn in found.by_turn] == [0.6, 0.9]
    body = json.loads(json.dumps(found.as_json()))
    assert body["origins"]["share"] == {"reused": 0.75, "gpu_hit": 0.7, "disk_hit": 0.05, "computed": 0.25}


def test_failed_and_unfinished_turns_are_counted_apart() -> None:
    seen = run(answer(), answer(1), answer(2, output_tokens=4))
    failed = Answer(3, 0, 5, 10.0)
    seen.answers.append(failed)
    seen.refuse(failed, Refused("overloaded", "Too much."), 11.0, skipped=2)
    half = Answer(4, 0, 5, 13.0, [(13.5, 1), (13.9, 2)])
    seen.answers.append(half)
    found = figures(seen)
    assert (found.answered, found.unfinished, found.skipped, found.short) == (3, 1, 2, 1)
    assert found.errors == {"overloaded": 1}
    assert found.output_tokens == 5 + 5 + 4 + 3
    assert seen.messages == {"overloaded": "Too much."}
    assert seen.over == 3 + 1 + 2


def test_nothing_at_all_has_figures_too() -> None:
    found = figures(run(began=1.0, ended=1.0))
    assert (found.answered, found.ttft_first, found.timeline) == (0, None, ())
    assert found.origins.share(found.origins.reused) is None


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 8)), min_size=1, max_size=30))
def test_a_timeline_loses_no_token(arrivals: list[tuple[float, int]]) -> None:
    one = Answer(0, 0, 1, 0.0, sorted(arrivals), 5.0, output_tokens=77)
    points = timeline([one], 0.0, 5.0)
    assert sum(points) * 5.0 / len(points) == pytest.approx(77)


def test_reuse_that_a_server_does_not_tell_of_is_unknown() -> None:
    found = figures(run(answer(reused=None, gpu_hit=None, disk_hit=None), answer(1)))
    assert (found.origins.reused, found.origins.computed) == (None, None)
    assert (found.by_turn[0].hits, found.by_turn[0].misses) == (1, 0)


def test_a_sparkline_has_its_highest_at_the_top_and_shows_the_least() -> None:
    assert sparkline([0, 1, 50, 100], 10) == " ▁▄█"
    assert sparkline([0, 0], 10) == "  "
    assert len(sparkline(list(range(1000)), 60)) == 60


@settings(max_examples=40)
@given(st.lists(FINITE, min_size=1, max_size=200), st.integers(1, 60))
def test_averages_keep_the_whole(values: list[float], width: int) -> None:
    columns = averaged(values, width)
    assert len(columns) == min(len(values), width)
    assert min(values) - 1e-6 <= min(columns) <= max(columns) <= max(values) + 1e-6


def test_a_bar_is_in_proportion_to_the_eighth() -> None:
    assert bar(100, 100, 10) == "█" * 10
    assert bar(55, 100, 10) == "█████▌"
    assert bar(0.01, 100, 10) == "▏"
    assert [bar(0, 100, 10), bar(1, 0, 10)] == ["", ""]


def fast(factor: float) -> Figures:
    return figures(
        run(*(answer(i, turn, asked_at=10 + i) for i in range(3) for turn in (0, 1)), ended=10 + 8 * factor)
    )


def test_pairs_are_compared_one_by_one() -> None:
    found = {
        one.name: one for one in compare([(fast(1), fast(0.5)), (fast(2), fast(2)), (fast(1), fast(0.8))])
    }
    rate = found["output_tokens_per_s"]
    assert (rate.ratio, rate.least, rate.most) == pytest.approx((1.25, 1.0, 2.0))
    assert (rate.better, rate.won, rate.pairs) == ("own", 2, 3)
    assert (found["ttft_later_p50"].ratio, found["ttft_later_p50"].better) == (1, "same")
    assert compare([]) == []
    assert not math.isnan(rate.own)
