"""From a load to the very sessions that are driven. Pure: the same load gives the same plan.

What happens in a session depends on its number and the seed alone, so more sessions or turns change nothing
about those there were.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from chatd.bench.load import Load

WARM_UP_TURNS = 2


@dataclass(frozen=True, slots=True)
class TextPlan:
    """``tokens`` tokens of text, drawn by ``seed``."""

    seed: str
    tokens: int


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """After ``think_s`` seconds ``texts`` are sent as one message."""

    number: int
    think_s: float
    texts: tuple[TextPlan, ...]
    output_len: int

    @property
    def input_len(self) -> int:
        return sum(text.tokens for text in self.texts)


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """``system`` is what all sessions begin with; of 0 tokens if they share nothing."""

    number: int
    starts_at_s: float
    system: TextPlan
    turns: tuple[TurnPlan, ...]


def plan(load: Load) -> tuple[SessionPlan, ...]:
    """In the order of arrival."""
    system = TextPlan(f"{load.seed}/shared", load.shared_prefix_len)
    starts = arrivals(load)
    return tuple(_session(load, number, next(starts), system) for number in range(load.sessions))


def warm_up_plan(load: Load) -> tuple[SessionPlan, ...]:
    """A few turns of other words, all at once: they leave nothing in the cache that the load could hit."""
    turns = min(WARM_UP_TURNS, load.turns)
    other = replace(load, sessions=load.warm_up, turns=turns, request_rate=math.inf)
    system = TextPlan(f"{load.seed}/warm-up/shared", load.shared_prefix_len)
    return tuple(_session(other, number, 0.0, system, "warm-up/") for number in range(load.warm_up))


def arrivals(load: Load) -> Iterator[float]:
    """When sessions begin, in seconds from the first one on: a Poisson process."""
    random, at = Random(f"{load.seed}/arrivals"), 0.0
    while True:
        yield at
        at += 0.0 if math.isinf(load.request_rate) else random.expovariate(load.request_rate)


def _session(load: Load, number: int, starts_at_s: float, system: TextPlan, what: str = "") -> SessionPlan:
    seed = f"{load.seed}/{what}{number}"
    prefix = TextPlan(f"{seed}/prefix", load.unique_prefix_len.whole(Random(f"{seed}/prefix-len")))
    return SessionPlan(
        number,
        starts_at_s,
        system,
        tuple(_turn(load, seed, turn, prefix) for turn in range(load.turns)),
    )


def _turn(load: Load, seed: str, number: int, prefix: TextPlan) -> TurnPlan:
    random = Random(f"{seed}/{number}")
    asked = TextPlan(f"{seed}/{number}/text", load.input_len.whole(random))
    output_len, think_s = load.output_len.whole(random), load.think_time.any(random)
    own = (prefix, asked) if number == 0 and prefix.tokens else (asked,)
    return TurnPlan(number, think_s if number else 0.0, own, output_len)
