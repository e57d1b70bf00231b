"""What a step has to say: updates in order, and totals. Pure."""

from chatd.engine.messages import (
    EngineCounters,
    EngineState,
    Finished,
    FinishReason,
    Piece,
    StepOutput,
    Update,
)
from chatd.engine.request import Req
from chatd.errors import ChatdError


class Outbox:
    """Collects updates until `take`. ``counts`` are the totals by their names in `EngineCounters`."""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.counts = dict.fromkeys(EngineCounters.__dataclass_fields__, 0)

    def say(self, update: Update) -> None:
        self.updates.append(update)

    def piece(self, req: Req, text: str, ids: tuple[int, ...]) -> None:
        """New visible text, if there is any."""
        if text:
            req.seq += 1
            self.say(Piece(req.rid, req.seq, text, ids, req.generated))

    def end(self, req: Req, reason: FinishReason, error: ChatdError | None) -> None:
        """The one ending, after what was held back."""
        self.piece(req, *req.answer.finish())
        self.counts["finished"] += 1
        self.say(
            Finished(
                rid=req.rid,
                reason=reason,
                generated=req.generated,
                token_ids=req.answer.answer_ids(),
                preemptions=req.preemptions,
                recomputed=req.recomputed,
                error_code=error.code if error else "",
                error=error.message if error else "",
            )
        )

    def take(self, state: EngineState) -> StepOutput:
        updates, self.updates = tuple(self.updates), []
        return StepOutput(updates, EngineCounters(**self.counts), state)
