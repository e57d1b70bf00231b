"""The shape of a load: how many sessions and turns, and how long everything is. Pure."""

import math
import re
from dataclasses import dataclass
from random import Random

MOST_SESSIONS, MOST_TURNS, MOST_LEN, MOST_TOKENS = 1000, 200, 1_000_000, 100_000_000
MOST_RATE, MOST_SECONDS = 10_000.0, 3600.0

_RANGE = re.compile(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?")


@dataclass(frozen=True, slots=True)
class Range:
    """Every value from ``low`` to ``high`` is as likely as another; both may be the same."""

    low: float
    high: float

    @classmethod
    def parse(cls, text: str, most: float, *, least: float = 0, whole: bool = True) -> "Range":
        """``"64"`` or ``"32-128"``. Raises ValueError, which completes "... is TEXT, "."""
        found = _RANGE.fullmatch(text.strip().replace(",", ""))
        wanted = f"a number or a range such as {'32-128' if whole else '0.5-2'}"
        if found is None or (whole and "." in text):
            raise ValueError(f"but {wanted} is wanted")
        low, high = float(found[1]), float(found[2] or found[1])
        if not least <= low <= high <= most:
            raise ValueError(f"but {wanted}, from {least:,.9g} to {most:,.9g}, is wanted")
        return cls(low, high)

    def whole(self, random: Random) -> int:
        return random.randint(int(self.low), int(self.high))

    def any(self, random: Random) -> float:
        return random.uniform(self.low, self.high)

    def __str__(self) -> str:
        return f"{self.low:,.9g}" if self.low == self.high else f"{self.low:,.9g}-{self.high:,.9g}"


@dataclass(frozen=True, slots=True)
class Load:
    """Lengths in tokens. All sessions begin with the same ``shared_prefix_len``, and each goes on with a
    prefix of its own; a turn has ``input_len`` new tokens and is answered with exactly ``output_len``.

    ``request_rate`` sessions arrive a second, at random (exponential gaps); with infinity all at once. The
    same ``seed`` makes the same load, word by word. ``warm_up`` sessions of other words come before it.
    """

    sessions: int = 8
    turns: int = 4
    shared_prefix_len: int = 300
    unique_prefix_len: Range = Range(0, 0)
    input_len: Range = Range(32, 32)
    output_len: Range = Range(64, 64)
    think_time: Range = Range(0, 0)
    request_rate: float = math.inf
    seed: int = 0
    warm_up: int = 1

    @property
    def longest(self) -> int:
        """Tokens that the last turn of a session may come to, without those of the chat template."""
        turn = int(self.input_len.high + self.output_len.high)
        return self.shared_prefix_len + int(self.unique_prefix_len.high) + self.turns * turn

    def check(self) -> None:
        """Raises ValueError for a load that nobody can mean."""
        total = self.sessions * self.longest
        if total > MOST_TOKENS:
            raise ValueError(
                f"The load comes to {total:,} tokens of context; more than {MOST_TOKENS:,} are not driven. "
                "Take fewer sessions or turns, or shorter texts."
            )

    def as_json(self) -> dict[str, object]:
        """Ranges as ``[low, high]``; a rate without limit as ``"inf"``."""
        lengths = ("unique_prefix_len", "input_len", "output_len")
        return {
            "sessions": self.sessions,
            "turns": self.turns,
            "shared_prefix_len": self.shared_prefix_len,
            **{name: [int(getattr(self, name).low), int(getattr(self, name).high)] for name in lengths},
            "think_time_s": [self.think_time.low, self.think_time.high],
            "request_rate": "inf" if math.isinf(self.request_rate) else self.request_rate,
            "seed": self.seed,
            "warm_up": self.warm_up,
        }
