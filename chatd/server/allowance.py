"""A bound on how often something may be asked for. Pure: the time is passed in."""

import math


class Allowance:
    """``burst`` at once, then ``per_s`` a second."""

    def __init__(self, burst: int, per_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = float(burst)
        self._at: float | None = None

    @property
    def wait_s(self) -> int:
        """Whole seconds from the last `take` until the next one is good; a minute where none ever is."""
        return max(1, math.ceil((1 - self._left) / self._per_s)) if self._per_s else 60

    def take(self, now: float) -> bool:
        """Whether it may be done once more. ``now`` is monotonic seconds."""
        if self._at is not None:
            self._left = min(self._burst, self._left + self._per_s * (now - self._at))
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
