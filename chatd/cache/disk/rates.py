"""How fast the disk is, as measured: what the choice between loading and recomputing goes by."""

from dataclasses import dataclass

_SHARE = 0.2
"""Weight of the newest job: the last ten or so decide."""


@dataclass(frozen=True, slots=True)
class Rate:
    """``jobs`` measured so far; while it is 0 nothing is known and the others are 0.

    ``job_s`` is from hand-in to completion, so it includes the queue; ``bytes_per_s`` is of the I/O alone.
    """

    jobs: int = 0
    bytes_per_s: float = 0.0
    job_s: float = 0.0

    def measured(self, nbytes: int, io_s: float, job_s: float) -> "Rate":
        """With one more job: moving averages. Seconds are averaged, since bytes are always as many."""
        if not self.jobs:
            return Rate(1, nbytes / max(io_s, 1e-9), job_s)
        old_s = nbytes / self.bytes_per_s
        mean_s = (1 - _SHARE) * old_s + _SHARE * io_s
        return Rate(self.jobs + 1, nbytes / max(mean_s, 1e-9), (1 - _SHARE) * self.job_s + _SHARE * job_s)
