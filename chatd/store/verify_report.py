"""What a verification says."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: which check, about which id, and what was seen against expected."""

    check: str
    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome of a verification and how much it looked at.

    ``unsettled``: the last server was killed and left this many responses open, which the next start
    settles; None if there is nothing to settle. That is a state of the ledger, not a fault in it.
    """

    findings: tuple[Finding, ...]
    runs: int
    responses: int
    messages: int
    pieces: int
    unsettled: int | None = None

    @property
    def ok(self) -> bool:
        return not self.findings
