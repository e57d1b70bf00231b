"""Two servers under the same load, run after run: medians and ratios. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from chatd.bench.figures import Figures, Spread


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure by which two servers are told apart."""

    name: str
    title: str
    of: Callable[[Figures], float | None]
    is_time: bool


def _p50(spread: Spread | None) -> float | None:
    return None if spread is None else spread.p50


def _p95(spread: Spread | None) -> float | None:
    return None if spread is None else spread.p95


def _p99(spread: Spread | None) -> float | None:
    return None if spread is None else spread.p99


MEASURES = (
    Measure("ttft_first_p50", "TTFT first turn p50", lambda f: _p50(f.ttft_first), True),
    Measure("ttft_later_p50", "TTFT later turns p50", lambda f: _p50(f.ttft_later), True),
    Measure("ttft_later_p95", "TTFT later turns p95", lambda f: _p95(f.ttft_later), True),
    Measure("ttft_later_p99", "TTFT later turns p99", lambda f: _p99(f.ttft_later), True),
    Measure("tpot_p50", "TPOT p50", lambda f: _p50(f.tpot), True),
    Measure("tpot_p99", "TPOT p99", lambda f: _p99(f.tpot), True),
    Measure("itl_p99", "ITL p99", lambda f: _p99(f.itl), True),
    Measure("e2e_p50", "E2E p50", lambda f: _p50(f.e2e), True),
    Measure("output_tokens_per_s", "output tokens/s", lambda f: f.output_tokens_per_s, False),
    Measure("requests_per_s", "requests/s", lambda f: f.requests_per_s, False),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """``ratio`` is the median over pairs of own / peer; ``won`` of ``pairs`` were better than the peer's."""

    name: str
    title: str
    own: float
    peer: float
    ratio: float
    least: float
    most: float
    won: int
    pairs: int
    is_time: bool

    @property
    def better(self) -> str:
        """``own``, ``peer`` or ``same``."""
        if self.ratio == 1:
            return "same"
        return "own" if (self.ratio < 1) == self.is_time else "peer"


def compare(pairs: Sequence[tuple[Figures, Figures]]) -> list[Compared]:
    """``pairs`` of (peer, own), each of the same load. Figures that a run lacks are left out of its pair."""
    return [found for measure in MEASURES if (found := _compared(measure, pairs)) is not None]


def _compared(measure: Measure, pairs: Sequence[tuple[Figures, Figures]]) -> Compared | None:
    both = [(measure.of(peer), measure.of(own)) for peer, own in pairs]
    known = [(peer, own) for peer, own in both if peer and own]
    if not known:
        return None
    ratios = [own / peer for peer, own in known]
    return Compared(
        measure.name,
        measure.title,
        own=median(own for _, own in known),
        peer=median(peer for peer, _ in known),
        ratio=median(ratios),
        least=min(ratios),
        most=max(ratios),
        won=sum((own < peer) == measure.is_time and own != peer for peer, own in known),
        pairs=len(known),
        is_time=measure.is_time,
    )
