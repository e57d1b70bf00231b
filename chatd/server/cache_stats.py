"""What the X-rays of many responses say together: what was chosen, how good predictions were. Pure."""

from collections.abc import Sequence
from math import ceil

from msgspec import Struct

from chatd.server.xray import Xray, from_json
from chatd.store.records import XrayRow

LOOKED_AT = 1000
"""The newest responses that these figures are about."""


class Choices(Struct, frozen=True):
    """Where the disk had something: how often it was loaded, how often computed. Estimates in ms (p50), and
    how far the real time of a load was from its estimate (relative, p50 and p95 of the absolute value)."""

    loaded: int
    computed: int
    load_ms_p50: float | None
    restore_ms_p50: float | None
    compute_ms_p50: float | None
    load_error_p50: float | None
    load_error_p95: float | None


class Predictions(Struct, frozen=True):
    """``exact``: the tokens came from where they were expected to. Errors of TTFT are relative to the real
    one, absolute values."""

    made: int
    exact: int
    ttft_error_p50: float | None
    ttft_error_p95: float | None


def choices_of(rows: Sequence[XrayRow]) -> Choices:
    xrays = [xray for row in rows if (xray := from_json(row.xray_json)) is not None and xray.choice]
    loaded = [xray for xray in xrays if xray.choice == "load"]
    errors = [abs(x.restore_ms - x.load_ms) / x.restore_ms for x in loaded if x.restore_ms > 0]
    return Choices(
        loaded=len(loaded),
        computed=len(xrays) - len(loaded),
        load_ms_p50=quantile([x.load_ms for x in xrays], 0.5),
        restore_ms_p50=quantile([x.restore_ms for x in loaded], 0.5),
        compute_ms_p50=quantile([x.compute_ms for x in xrays], 0.5),
        load_error_p50=quantile(errors, 0.5),
        load_error_p95=quantile(errors, 0.95),
    )


def predictions_of(rows: Sequence[XrayRow]) -> Predictions:
    made = [(row, xray) for row in rows if (xray := from_json(row.xray_json)) is not None and xray.predicted]
    errors = [error for row, xray in made if (error := _ttft_error(row, xray)) is not None]
    return Predictions(
        made=len(made),
        exact=sum(_is_exact(row, xray) for row, xray in made),
        ttft_error_p50=quantile(errors, 0.5),
        ttft_error_p95=quantile(errors, 0.95),
    )


def _is_exact(row: XrayRow, xray: Xray) -> bool:
    predicted = xray.predicted
    return predicted is not None and (predicted.gpu_hit, predicted.disk_hit, predicted.computed) == (
        row.gpu_hit,
        row.disk_hit,
        row.computed,
    )


def _ttft_error(row: XrayRow, xray: Xray) -> float | None:
    if not row.ttft_ms or xray.predicted is None:
        return None
    return abs(xray.predicted.ttft_ms - row.ttft_ms) / row.ttft_ms


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least ``share`` of them do not exceed; None of nothing."""
    if not values:
        return None
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]
