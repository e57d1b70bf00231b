"""What loading and computing KV cost here, as measured; decides which of the two a request takes. Pure."""

from dataclasses import dataclass

_WEIGHT = 0.2
"""Of a new measurement in the running averages."""
_TRY_AGAIN = 16
"""After so many decisions against loading in a row one load is made all the same: disks recover."""
_MOST_TRIED = 4.0
"""But not where loading was estimated to take more than so many times as long."""


@dataclass(slots=True)
class Costs:
    """Seconds, as running averages of what was seen; until then the guesses given here.

    ``load_block_s``: a block of a restore, from its decision until it could be used, waiting for step borders
    included. ``compute_token_s``: a prompt token, in steps that had some, the decodes beside it included.
    ``step_s``: a step.
    """

    load_block_s: float = 0.004
    compute_token_s: float = 0.001
    step_s: float = 0.02
    _declined: int = 0

    def step_took(self, extend_len: int, seconds: float) -> None:
        """A step with ``extend_len`` tokens of prompts took this long."""
        self.step_s += _WEIGHT * (seconds - self.step_s)
        if extend_len >= 16:  # less says more of the step than of the tokens
            self.compute_token_s += _WEIGHT * (seconds / extend_len - self.compute_token_s)

    def restore_took(self, blocks: int, seconds: float) -> None:
        """A restore of ``blocks`` (at least 1) took this long."""
        self.load_block_s += _WEIGHT * (seconds / blocks - self.load_block_s)

    def load_s(self, blocks: int) -> float:
        return blocks * self.load_block_s

    def compute_s(self, tokens: int) -> float:
        return tokens * self.compute_token_s

    def would_load(self, blocks: int, tokens: int) -> bool:
        """Is loading ``blocks`` estimated to be faster than computing the ``tokens`` that they bring?"""
        return self.load_s(blocks) <= self.compute_s(tokens)

    def prefer_loading(self, blocks: int, tokens: int) -> bool:
        """Load or compute? To be asked once for each decision that is then followed."""
        load_s, compute_s = self.load_s(blocks), self.compute_s(tokens)
        if load_s <= compute_s:
            self._declined = 0
            return True
        self._declined += 1
        if self._declined > _TRY_AGAIN and load_s <= _MOST_TRIED * compute_s:
            self._declined = 0
            return True
        return False
