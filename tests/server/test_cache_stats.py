"""What many X-rays say together."""

import pytest

from chatd.engine.messages import Prefill, Probed, TierNote, TierOutcome
from chatd.ids import Rid
from chatd.server.cache_stats import choices_of, predictions_of, quantile
from chatd.server.xray import PromptFacts, explain, prediction_of, to_json
from chatd.store.records import XrayRow

R = Rid("r")


def row(
    outcome: TierOutcome,
    load_ms: float = 0,
    restore_ms: float = 0,
    *,
    expected: int = 100,
    ttft_ms: float | None = 10,
) -> XrayRow:
    """100 of 200 tokens came from memory; ``expected`` were expected to, and a TTFT of 8 ms."""
    found = 64 if outcome in (TierOutcome.LOADED, TierOutcome.CHEAPER) else 0
    note = TierNote(outcome, found, load_ms, 4.0 if found else 0.0, restore_ms)
    probed = Probed(R, 200, expected, 0, 200 - expected, 0.001, 0.002, 0.005, note)
    xray = explain(PromptFacts(), Prefill(R, 200, 100, 0, 100, note), prediction_of(probed))
    return XrayRow(100, 0, 100, ttft_ms, to_json(xray))


def test_choices() -> None:
    rows = [
        row(TierOutcome.OFF),
        row(TierOutcome.NOTHING),
        row(TierOutcome.LOADED, 2.0, 4.0),
        row(TierOutcome.LOADED, 3.0, 4.0),
        row(TierOutcome.CHEAPER, 9.0),
    ]
    choices = choices_of(rows)
    assert (choices.loaded, choices.computed) == (2, 1)
    assert (choices.load_ms_p50, choices.restore_ms_p50, choices.compute_ms_p50) == (3.0, 4.0, 4.0)
    assert (choices.load_error_p50, choices.load_error_p95) == (0.25, 0.5)
    assert choices_of([]).load_ms_p50 is None


def test_predictions() -> None:
    rows = [
        row(TierOutcome.OFF),
        row(TierOutcome.OFF, expected=64),
        row(TierOutcome.OFF, ttft_ms=None),
        row(TierOutcome.OFF, ttft_ms=16.0),
        XrayRow(0, 0, 10, 5.0, ""),
    ]
    predictions = predictions_of(rows)
    assert (predictions.made, predictions.exact) == (4, 3)
    assert predictions.ttft_error_p50 == pytest.approx(0.2)
    assert predictions.ttft_error_p95 == pytest.approx(0.5)


def test_quantiles() -> None:
    assert quantile([], 0.5) is None
    assert [quantile([3.0, 1.0, 2.0, 4.0], share) for share in (0.0, 0.5, 0.75, 0.95, 1.0)] == [1, 2, 3, 4, 4]
