"""What was seen of each answer, and of a whole run, noted meanwhile. Times are seconds of one clock."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise


class Refused(Exception):
    """A turn that got no answer. ``code`` is the server's, or says what happened to the connection."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(slots=True)
class Answer:
    """One turn, as its client saw it. ``arrivals``: when text came, and as how many tokens (or pieces).

    ``reused`` prompt tokens came from any tier; ``gpu_hit`` and ``disk_hit`` say which, where the wire does.
    ``queue_s`` is what the server says. None: not known (yet).
    """

    session: int
    turn: int
    output_len: int
    asked_at: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    ended_at: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    reused: int | None = None
    gpu_hit: int | None = None
    disk_hit: int | None = None
    queue_s: float | None = None
    error: str = ""

    @property
    def is_good(self) -> bool:
        return self.ended_at is not None and not self.error

    @property
    def seen_tokens(self) -> int:
        return sum(tokens for _, tokens in self.arrivals)

    @property
    def tokens(self) -> int:
        """Of the answer: as the server counts them, or as they were seen."""
        return self.seen_tokens if self.output_tokens is None else self.output_tokens

    @property
    def ttft_s(self) -> float | None:
        return self.arrivals[0][0] - self.asked_at if self.arrivals else None

    @property
    def tpot_s(self) -> float | None:
        """Seconds for each token after the first arrival; None if there were none."""
        later = self.tokens - self.arrivals[0][1] if self.arrivals else 0
        return (self.arrivals[-1][0] - self.arrivals[0][0]) / later if later > 0 else None

    @property
    def e2e_s(self) -> float | None:
        return None if self.ended_at is None else self.ended_at - self.asked_at

    @property
    def gaps_s(self) -> list[float]:
        """Between one arrival of text and the next."""
        times = [at for at, _ in self.arrivals]
        return [later - earlier for earlier, later in pairwise(times)]

    @property
    def is_hit(self) -> bool | None:
        """At least half of the prompt was reused (as in `chatd report`)."""
        if self.reused is None or not self.prompt_tokens:
            return None
        return 2 * self.reused >= self.prompt_tokens


@dataclass(slots=True)
class Run:
    """``planned`` turns; those that a failed one before them made impossible are ``skipped``."""

    planned: int
    began: float = 0.0
    ended: float = 0.0
    answers: list[Answer] = field(default_factory=list)
    skipped: int = 0
    interrupted: bool = False
    messages: dict[str, str] = field(default_factory=dict)
    """The first message of each error code."""

    @property
    def over(self) -> int:
        """Turns that ended in one way or another."""
        return self.skipped + sum(one.ended_at is not None for one in self.answers)

    @property
    def good(self) -> list[Answer]:
        return [one for one in self.answers if one.is_good]

    @property
    def errors(self) -> Counter[str]:
        return Counter(one.error for one in self.answers if one.error)

    def refuse(self, answer: Answer, refused: Refused, at: float, skipped: int) -> None:
        """``answer`` failed, and ``skipped`` turns after it will not be asked."""
        answer.ended_at, answer.error = at, refused.code
        self.messages.setdefault(refused.code, refused.message)
        self.skipped += skipped
