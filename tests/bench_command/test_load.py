"""What can be asked for, and the sessions it comes to."""

import itertools
import math
from dataclasses import replace
from random import Random
from statistics import fmean

import pytest

from chatd.bench.load import Load, Range
from chatd.bench.plan import TextPlan, arrivals, plan, warm_up_plan
from chatd.bench.words import PROBES, WORDS, Wording, words

LOAD = Load(
    sessions=20,
    turns=3,
    unique_prefix_len=Range(0, 40),
    input_len=Range(5, 9),
    output_len=Range(2, 4),
    think_time=Range(0.5, 2),
    seed=7,
)


@pytest.mark.parametrize(
    ("text", "low", "high"), [("64", 64, 64), ("32-128", 32, 128), (" 1,000 ", 1000, 1000), ("0", 0, 0)]
)
def test_a_length_is_a_number_or_a_range(text: str, low: int, high: int) -> None:
    assert Range.parse(text, 1_000_000) == Range(low, high)


@pytest.mark.parametrize("text", ["", "x", "-1", "9-3", "1-2-3", "1.5", "2000001", "1e3", "inf"])
def test_others_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is wanted"):
        Range.parse(text, 2_000_000)


def test_seconds_may_be_fractions_and_lengths_have_a_least() -> None:
    assert Range.parse("0.5-2", 10, whole=False) == Range(0.5, 2)
    with pytest.raises(ValueError, match="from 1 to 10"):
        Range.parse("0-5", 10, least=1)
    with pytest.raises(ValueError, match="from 0 to 1,000,000, is"):
        Range.parse("9-3", 1_000_000)
    assert [str(Range(64, 64)), str(Range(0.5, 2))] == ["64", "0.5-2"]


def test_a_range_reaches_both_its_ends() -> None:
    random = Random(1)
    assert {Range(3, 5).whole(random) for _ in range(100)} == {3, 4, 5}


def test_a_load_nobody_can_mean_is_refused() -> None:
    Load().check()
    with pytest.raises(ValueError, match="fewer sessions"):
        Load(sessions=1000, turns=200, input_len=Range(1, 100_000)).check()


def test_the_same_seed_makes_the_same_plan_and_another_seed_another() -> None:
    assert plan(LOAD) == plan(LOAD)
    assert plan(LOAD) != plan(replace(LOAD, seed=8))


def test_lengths_are_within_what_was_asked_for() -> None:
    sessions = plan(LOAD)
    turns = [turn for session in sessions for turn in session.turns]
    assert len(turns) == 60
    assert {turn.texts[-1].tokens for turn in turns} == {5, 6, 7, 8, 9}
    assert {turn.output_len for turn in turns} == {2, 3, 4}
    assert all(len(turn.texts) == 1 for turn in turns if turn.number)
    assert all(turn.think_s == 0 for turn in turns if not turn.number)
    assert all(0.5 <= turn.think_s <= 2 for turn in turns if turn.number)
    assert {session.system for session in sessions} == {TextPlan("7/shared", 300)}
    own = [session.turns[0].texts[0] for session in sessions if len(session.turns[0].texts) == 2]
    assert len({text.seed for text in own}) == len(own) > 15


def test_more_sessions_and_turns_change_nothing_about_those_before() -> None:
    more = plan(replace(LOAD, sessions=30, turns=5))
    for session, longer in zip(plan(LOAD), more, strict=False):
        assert longer.turns[:3] == session.turns


def test_sessions_arrive_at_the_rate_or_all_at_once() -> None:
    times = list(itertools.islice(arrivals(replace(LOAD, request_rate=4.0)), 4001))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[0] == 0
    assert fmean(gaps) == pytest.approx(0.25, rel=0.1)
    assert fmean(gap**2 for gap in gaps) == pytest.approx(2 * 0.25**2, rel=0.2), "of an exponential"
    assert {session.starts_at_s for session in plan(replace(LOAD, request_rate=math.inf))} == {0.0}


def test_a_warm_up_has_other_words() -> None:
    warm = warm_up_plan(replace(LOAD, warm_up=2))
    assert [len(session.turns) for session in warm] == [2, 2]
    seeds = {text.seed for session in plan(LOAD) for turn in session.turns for text in turn.texts}
    assert not seeds & {text.seed for session in warm for turn in session.turns for text in turn.texts}
    assert warm[0].system.seed != plan(LOAD)[0].system.seed


def bytes_of(text: str) -> int:
    """As a tokenizer that makes a token of each byte counts, with 20 for a template."""
    return 20 + len(text.encode())


def test_lengths_are_met_with_a_tokenizer_that_nobody_knows() -> None:
    wording = Wording.learnt(*(bytes_of(words(f"probe-{count}", count)) for count in PROBES))
    assert wording.template_tokens == pytest.approx(20, abs=1)
    for tokens in (40, 300, 2000):
        made = [len(wording.text(TextPlan(f"{tokens}/{i}", tokens)).encode()) for i in range(40)]
        assert fmean(made) == pytest.approx(tokens, abs=3.5), "half a word, and no space before the first"


def test_a_word_each_where_words_are_tokens() -> None:
    wording = Wording.learnt(PROBES[0] + 9, PROBES[1] + 9)
    assert wording == Wording(1.0, 9.0)
    assert len(wording.text(TextPlan("a", 64)).split()) == 64
    assert wording.text(TextPlan("a", 0)) == ""
    assert set(wording.message([TextPlan("a", 5), TextPlan("b", 6)]).split()) <= set(WORDS)


def test_counts_that_cannot_be_right_are_refused() -> None:
    with pytest.raises(ValueError, match="were counted as 16 and 16"):
        Wording.learnt(16, 16)
