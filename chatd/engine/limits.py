"""What a scheduler keeps to, and which requests can never run. Pure."""

from dataclasses import dataclass

from chatd.engine.request import Req
from chatd.errors import ContextTooLong, PromptTooLarge


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """``step_tokens`` bounds a step's work, ``max_running`` its rows; both at least 1."""

    step_tokens: int
    max_running: int
    context_length: int

    def __post_init__(self) -> None:
        if self.max_running > self.step_tokens:
            raise ValueError("max_running may not exceed step_tokens: all that run decode in each step")

    def most_len(self, req: Req) -> int:
        """The most ids it may ever hold here."""
        return min(req.limit_len, self.context_length)


def refuse_impossible(req: Req, limits: SchedulerLimits, capacity_len: int) -> None:
    """Raises for a request that neither the context nor a pool of ``capacity_len`` tokens can ever hold."""
    context = limits.context_length
    if req.prompt_len >= context:
        raise ContextTooLong(
            f"The prompt has {req.prompt_len} tokens; the model's context holds {context} and needs one "
            "for the answer. Shorten the conversation or start a new one."
        )
    if limits.most_len(req) > capacity_len:
        raise PromptTooLarge(
            f"The prompt has {req.prompt_len} tokens and max_tokens is {req.submit.max_tokens}, but the "
            f"KV pool holds {capacity_len} tokens in all. Lower max_tokens or start the server with "
            "more --kv-bytes."
        )
