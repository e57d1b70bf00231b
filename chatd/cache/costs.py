"""What loading and computing KV cost here, as measured; decides which of the two a request takes. Pure."""

from dataclasses import dataclass

_WEIGHT = 0.2
"""Of a new measurement in a running average."""
_SURPRISE = 2.0
"""A measurement so many times above or below the average weighs half: things have changed."""
_TRY_AGAIN = 8
"""After so many decisions against loading in a row a little is loaded all the same: disks recover."""
_HOPELESS = 4.0
_LEAST_OFTEN = 128
"""While loading takes over 4 times as long, each next try comes after twice as many, up to 128."""
_TRIED_BLOCKS = 2


@dataclass(slots=True)
class _Average:
    """A running average: a guess until the first measurement, which takes its place."""

    value: float
    measured: bool = False

    def take(self, new: float) -> None:
        if not self.measured:
            self.value, self.measured = new, True
            return
        surprising = new > _SURPRISE * self.value or self.value > _SURPRISE * new
        self.value += (0.5 if surprising else _WEIGHT) * (new - self.value)


class Costs:
    """Seconds, as running averages of what was seen; until then the guesses given here.

    ``load_block_s``: a block of a restore, from its decision until it could be used, waiting for step borders
    included. ``compute_token_s``: a prompt token, in steps that had some, the decodes beside it included.
    ``step_s``: a step.
    """

    def __init__(
        self, load_block_s: float = 0.002, compute_token_s: float = 0.001, step_s: float = 0.02
    ) -> None:
        self._load = _Average(load_block_s)
        self._compute = _Average(compute_token_s)
        self._step = _Average(step_s)
        self._declined = 0
        self._patience = _TRY_AGAIN

    @property
    def step_s(self) -> float:
        return self._step.value

    def step_took(self, extend_len: int, seconds: float) -> None:
        """A step with ``extend_len`` tokens of prompts took this long."""
        self._step.take(seconds)
        if extend_len >= 16:  # less says more of the step than of the tokens
            self._compute.take(seconds / extend_len)

    def restore_took(self, blocks: int, seconds: float) -> None:
        """A restore of ``blocks`` (at least 1) took this long."""
        self._load.take(seconds / blocks)

    def load_s(self, blocks: int) -> float:
        return blocks * self._load.value

    def compute_s(self, tokens: int) -> float:
        return tokens * self._compute.value

    def would_load(self, blocks: int, tokens: int) -> bool:
        """Is loading ``blocks`` estimated to be faster than computing the ``tokens`` that they bring?"""
        return self.load_s(blocks) <= self.compute_s(tokens)

    def blocks_to_load(self, blocks: int, tokens: int) -> int:
        """How many of the blocks to load: all, none, or a few to see what loading costs now.

        To be asked once for each decision that is then followed.
        """
        if self.would_load(blocks, tokens):
            self._declined, self._patience = 0, _TRY_AGAIN
            return blocks
        self._declined += 1
        if self._declined <= self._patience:
            return 0
        hopeless = self.load_s(blocks) > _HOPELESS * self.compute_s(tokens)
        self._declined = 0
        self._patience = min(2 * self._patience, _LEAST_OFTEN) if hopeless else _TRY_AGAIN
        return min(blocks, _TRIED_BLOCKS)
