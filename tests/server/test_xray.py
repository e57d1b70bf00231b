"""Why the first computed token was a miss: every cause, and what a client may learn of it."""

from dataclasses import replace
from typing import get_args

import pytest

from chatd.engine.messages import Prefill, Probed, TierNote, TierOutcome
from chatd.ids import Rid
from chatd.server import protocol as wire
from chatd.server.views import wire_xray
from chatd.server.xray import (
    MEANINGS,
    Cause,
    Earlier,
    PromptFacts,
    cause_of,
    explain,
    for_client,
    from_json,
    prediction_of,
    rewritten_at,
    to_json,
)

R = Rid("r")
OFF, NOTHING = TierNote(), TierNote(TierOutcome.NOTHING)
LOADED = TierNote(TierOutcome.LOADED, found=128, load_ms=2, compute_ms=9, restore_ms=3)


def earlier(length: int, this_run: bool = True, same_formats: bool = True) -> PromptFacts:
    return PromptFacts((Earlier(length, this_run, same_formats),))


PROMPT = 1000
CASES: dict[str, tuple[PromptFacts, int, TierNote, Cause]] = {
    # nothing could be saved
    "all but the last token came": (earlier(PROMPT), PROMPT - 1, OFF, Cause.LAST_TOKEN),
    "even without a cache": (PromptFacts(cache_on=False), PROMPT - 1, OFF, Cause.LAST_TOKEN),
    "the cache is off": (replace(earlier(900), cache_on=False), 0, OFF, Cause.CACHE_OFF),
    # it was on disk
    "a damaged record": (earlier(900, False), 128, TierNote(TierOutcome.DAMAGED, 640), Cause.DAMAGED),
    "EIO": (earlier(900, False), 128, TierNote(TierOutcome.FAILED, 640), Cause.READ_FAILED),
    "cheaper": (earlier(900), 128, TierNote(TierOutcome.CHEAPER, 640, 9, 2), Cause.RECOMPUTE_CHEAPER),
    "no pages": (earlier(900), 128, TierNote(TierOutcome.NO_PAGES, 640), Cause.NO_PAGES),
    "on disk by another conversation": (
        PromptFacts(),
        64,
        TierNote(TierOutcome.DAMAGED, 64),
        Cause.DAMAGED,
    ),
    # it had KV before
    "evicted, no tier": (earlier(900), 128, OFF, Cause.EVICTED),
    "evicted from both": (earlier(900), 128, NOTHING, Cause.EVICTED),
    "evicted behind what was loaded": (earlier(900), 256, LOADED, Cause.EVICTED),
    "restarted without a tier": (earlier(900, False), 0, OFF, Cause.TIER_OFF),
    "restarted before it was written": (earlier(900, False), 0, NOTHING, Cause.RESTARTED),
    "restarted, the end not written": (earlier(900, False), 640, LOADED, Cause.RESTARTED),
    "the last whole block": (earlier(896, False), 832, LOADED, Cause.RESTARTED),
    "less than a block was left": (earlier(895, False), 832, LOADED, Cause.BELOW_BLOCK),
    "evicted, less than a block": (earlier(63), 0, NOTHING, Cause.BELOW_BLOCK),
    "less than a block, but no tier": (earlier(63), 0, OFF, Cause.EVICTED),
    "another model": (earlier(900, False, False), 0, OFF, Cause.MODEL_CHANGED),
    "computed again by this model since": (
        PromptFacts((Earlier(900, False, False), Earlier(800, True, True))),
        128,
        OFF,
        Cause.EVICTED,
    ),
    "beyond that only by another model": (
        PromptFacts((Earlier(900, False, False), Earlier(800, True, True))),
        850,
        OFF,
        Cause.MODEL_CHANGED,
    ),
    "evicted above an edit": (replace(earlier(900), edited=3), 128, OFF, Cause.EVICTED),
    # it had none
    "new": (earlier(900), 900, OFF, Cause.NEW_TEXT),
    "new, more came than history knows": (earlier(100), 300, OFF, Cause.NEW_TEXT),
    "a first turn": (PromptFacts(), 0, NOTHING, Cause.NEW_TEXT),
    "edited": (replace(earlier(500), edited=3), 500, OFF, Cause.EDITED),
    "rewritten": (replace(earlier(500), rewritten=1), 500, OFF, Cause.TEMPLATE_REWROTE),
    "rewritten and edited": (
        replace(earlier(500), rewritten=1, edited=3),
        500,
        OFF,
        Cause.TEMPLATE_REWROTE,
    ),
    "truncated": (replace(earlier(40), truncated=True), 40, OFF, Cause.TRUNCATED),
    "somebody else's": (
        earlier(100),
        100,
        TierNote(TierOutcome.NOTHING, elsewhere=300),
        Cause.OTHER_NAMESPACE,
    ),
    "one's own edit, and somebody else's": (
        replace(earlier(100), edited=1),
        100,
        TierNote(elsewhere=300),
        Cause.EDITED,
    ),
}


@pytest.mark.parametrize(("facts", "first", "tier", "cause"), CASES.values(), ids=CASES)
def test_cause(facts: PromptFacts, first: int, tier: TierNote, cause: Cause) -> None:
    assert cause_of(facts, PROMPT, first, tier) is cause


def test_every_cause_has_a_case_and_a_meaning() -> None:
    assert {case[3] for case in CASES.values()} == set(Cause) == set(MEANINGS)


def test_the_wire_has_every_cause_but_one() -> None:
    assert {*get_args(wire.Cause)} == {cause.value for cause in Cause} - {"other_namespace"}
    assert {for_client(cause).value for cause in Cause} == {*get_args(wire.Cause)}
    assert for_client(Cause.OTHER_NAMESPACE) is Cause.NEW_TEXT
    assert {*get_args(wire.Tier)} == {outcome.value for outcome in TierOutcome}


def test_message_is_that_of_the_cause() -> None:
    facts = replace(earlier(500), rewritten=1, edited=3)
    prefill = Prefill(R, PROMPT, 500, 0, 500)
    assert explain(facts, prefill).message == 1
    assert explain(replace(facts, rewritten=None), prefill).message == 3
    assert explain(facts, Prefill(R, PROMPT, 100, 0, 900)).message is None
    assert [rewritten_at(miss) for miss in ("template_rewrote:0", "template_rewrote:12", "")] == [0, 12, None]


def test_history_is_at_least_what_came() -> None:
    assert explain(earlier(400), Prefill(R, PROMPT, 100, 128, 772)).history_len == 400
    assert explain(earlier(400), Prefill(R, PROMPT, 640, 0, 360)).history_len == 640


def test_what_the_store_keeps_comes_back() -> None:
    probed = Probed(R, PROMPT, 100, 128, 772, 0.5, 0.25, 0.125, LOADED)
    xray = explain(earlier(400), Prefill(R, PROMPT, 100, 128, 772, LOADED), prediction_of(probed))
    assert from_json(to_json(xray)) == xray
    assert from_json("") is None
    assert xray.predicted is not None
    assert xray.predicted.ttft_ms == 875
    assert xray.choice == "load"


def test_as_the_wire_shows_it() -> None:
    probed = Probed(R, PROMPT, 100, 128, 772, 0.5, 0.25, 0.25, LOADED)
    xray = explain(earlier(400), Prefill(R, PROMPT, 100, 128, 772, LOADED), prediction_of(probed))
    shown = wire_xray(xray, (100, 128, 772), 800.0)
    assert [(one.source, one.start, one.end) for one in shown.sources] == [
        ("gpu", 0, 100),
        ("disk", 100, 228),
        ("computed", 228, 1000),
    ]
    assert (shown.first_computed, shown.cause, shown.disk.choice) == (228, "evicted", "load")
    assert shown.predicted is not None
    assert (shown.predicted.exact, shown.predicted.ttft_error) == (True, 0.25)
    late = wire_xray(xray, (0, 0, 1000), None)
    assert [one.source for one in late.sources] == ["computed"]
    assert late.predicted is not None
    assert (late.predicted.exact, late.predicted.ttft_error) == (False, None)


def test_a_client_never_learns_of_others() -> None:
    tier = TierNote(TierOutcome.NOTHING, elsewhere=900)
    xray = explain(PromptFacts(), Prefill(R, PROMPT, 0, 0, PROMPT, tier))
    alone = explain(PromptFacts(), Prefill(R, PROMPT, 0, 0, PROMPT, replace(tier, elsewhere=0)))
    assert xray.cause is Cause.OTHER_NAMESPACE
    assert wire_xray(xray, (0, 0, PROMPT), 1.0) == wire_xray(alone, (0, 0, PROMPT), 1.0)
