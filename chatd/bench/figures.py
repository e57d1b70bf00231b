"""From a run to its figures. Pure. Seconds in, seconds out; None where there was nothing to measure.

- TTFT: from the request until the first text arrives; of first and of later turns apart.
- TPOT: for each token after those of the first arrival (one, as a rule).
- ITL: between one arrival of text and the next, over all answers.
- E2E: from the request until the answer's end is known.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import ceil, floor
from statistics import fmean
from typing import Any

from chatd.bench.answers import Answer, Run

MOST_BUCKETS, LEAST_BUCKET_S = 60, 0.1
"""Points of the line over time; chatd sends a stream's text every 33 ms, so shorter ones would show that."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of ``count`` values."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Between the two values beside it, in proportion (numpy's default). ``ordered`` is not empty."""
    at = (len(ordered) - 1) * percent / 100
    low, high = ordered[floor(at)], ordered[ceil(at)]
    return low + (high - low) * (at - floor(at))


def spread(values: Iterable[float | None]) -> Spread | None:
    """Unknown values are left out."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return None
    p50, p90, p95, p99 = (percentile(ordered, percent) for percent in (50, 90, 95, 99))
    return Spread(len(ordered), fmean(ordered), p50, p90, p95, p99, ordered[-1])


@dataclass(frozen=True, slots=True)
class Origins:
    """Prompt tokens by where they came from. ``gpu_hit`` and ``disk_hit`` are None where the wire only says
    what was ``reused``; all but ``prompt`` are None where it says nothing."""

    prompt: int
    reused: int | None
    gpu_hit: int | None
    disk_hit: int | None

    @property
    def computed(self) -> int | None:
        return None if self.reused is None else self.prompt - self.reused

    def share(self, tokens: int | None) -> float | None:
        return None if tokens is None or not self.prompt else tokens / self.prompt


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """Turns with this number (the first is 1). TTFT is the median, of hits and of misses."""

    turn: int
    hits: int
    misses: int
    ttft_s: float | None
    ttft_hit_s: float | None
    ttft_miss_s: float | None
    reused_share: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """``short`` answers ended before the length that was asked for. ``timeline`` is output tokens a second in
    equal stretches of the run. ``output_tokens`` includes those of answers that did not end."""

    wall_s: float
    planned: int
    answered: int
    unfinished: int
    skipped: int
    errors: dict[str, int]
    short: int
    output_tokens: int
    output_tokens_per_s: float
    total_tokens_per_s: float
    requests_per_s: float
    ttft_first: Spread | None
    ttft_later: Spread | None
    tpot: Spread | None
    itl: Spread | None
    e2e: Spread | None
    queue: Spread | None
    origins: Origins
    by_turn: tuple[TurnFigures, ...]
    timeline: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        origins = self.origins
        shares = {
            name: origins.share(getattr(origins, name))
            for name in ("reused", "gpu_hit", "disk_hit", "computed")
        }
        whole = asdict(self)
        whole["origins"] |= {"computed": origins.computed, "share": shares}
        return whole


def figures(run: Run) -> Figures:
    good = run.good
    wall = max(run.ended - run.began, 1e-9)
    output = sum(one.tokens for one in run.answers)
    prompt = sum(one.prompt_tokens or 0 for one in good)
    return Figures(
        wall_s=wall,
        planned=run.planned,
        answered=len(good),
        unfinished=sum(one.ended_at is None for one in run.answers),
        skipped=run.skipped,
        errors=dict(run.errors.most_common()),
        short=sum(one.tokens < one.output_len for one in good),
        output_tokens=output,
        output_tokens_per_s=output / wall,
        total_tokens_per_s=(output + prompt) / wall,
        requests_per_s=len(good) / wall,
        ttft_first=spread(one.ttft_s for one in good if one.turn == 0),
        ttft_later=spread(one.ttft_s for one in good if one.turn > 0),
        tpot=spread(one.tpot_s for one in good),
        itl=spread(gap for one in good for gap in one.gaps_s),
        e2e=spread(one.e2e_s for one in good),
        queue=spread(one.queue_s for one in good),
        origins=_origins(good),
        by_turn=_by_turn(good),
        timeline=timeline(run.answers, run.began, run.ended),
    )


def _origins(answers: Sequence[Answer]) -> Origins:
    return Origins(
        sum(one.prompt_tokens or 0 for one in answers),
        _sum(one.reused for one in answers),
        _sum(one.gpu_hit for one in answers),
        _sum(one.disk_hit for one in answers),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    """None if one is unknown, or there is none."""
    known = list(values)
    return None if not known or None in known else sum(value or 0 for value in known)


def _by_turn(answers: Sequence[Answer]) -> tuple[TurnFigures, ...]:
    turns = sorted({one.turn for one in answers})
    return tuple(_turn([one for one in answers if one.turn == turn], turn) for turn in turns)


def _turn(answers: Sequence[Answer], turn: int) -> TurnFigures:
    hits = [one for one in answers if one.is_hit]
    misses = [one for one in answers if one.is_hit is False]
    origins = _origins(answers)
    return TurnFigures(
        turn + 1,
        len(hits),
        len(misses),
        _median_ttft(answers),
        _median_ttft(hits),
        _median_ttft(misses),
        origins.share(origins.reused),
    )


def _median_ttft(answers: Sequence[Answer]) -> float | None:
    found = spread(one.ttft_s for one in answers)
    return found.p50 if found else None


def timeline(answers: Iterable[Answer], began: float, ended: float) -> tuple[float, ...]:
    """Output tokens a second in equal stretches from ``began`` to ``ended``.

    An arrival counts as its part of the answer's tokens: servers send several at once and say how many only
    at the end.
    """
    if ended <= began:
        return ()
    buckets = min(MOST_BUCKETS, max(1, int((ended - began) / LEAST_BUCKET_S)))
    width = (ended - began) / buckets
    sums = [0.0] * buckets
    for one in answers:
        seen = one.seen_tokens
        for at, tokens in one.arrivals:
            bucket = min(buckets - 1, max(0, int((at - began) / width)))
            sums[bucket] += tokens * one.tokens / seen
    return tuple(tokens / width for tokens in sums)
