"""What would become of a prompt, as the service knows it and as the wire says it. Pure."""

from dataclasses import dataclass

from chatd.engine.messages import Probed
from chatd.server import protocol as wire
from chatd.server.views import wire_xray
from chatd.server.xray import Xray
from chatd.store.records import Cost


@dataclass(frozen=True, slots=True)
class Estimated:
    """``cost`` has no output in it."""

    probed: Probed
    xray: Xray
    cost: Cost
    context_left: int
    max_tokens: int
    dropped_turns: int

    @property
    def ttft_s(self) -> float:
        return self.probed.queue_s + self.probed.restore_s + self.probed.compute_s


def estimated_of(found: Estimated, idempotency_key: str) -> wire.CacheEstimated:
    """Without what a client must never learn."""
    probed, cost = found.probed, found.cost
    return wire.CacheEstimated(
        idempotency_key=idempotency_key,
        prompt_tokens=probed.prompt_tokens,
        gpu_hit=probed.gpu_hit,
        disk_hit=probed.disk_hit,
        computed=probed.computed,
        queue_ms=1000 * probed.queue_s,
        restore_ms=1000 * probed.restore_s,
        compute_ms=1000 * probed.compute_s,
        ttft_ms=1000 * found.ttft_s,
        cost=wire.PromptCost(cost.currency, cost.prompt_nano, cost.without_cache_nano, cost.price_version),
        context_left=found.context_left,
        max_tokens=found.max_tokens,
        dropped_turns=found.dropped_turns,
        xray=wire_xray(found.xray, (probed.gpu_hit, probed.disk_hit, probed.computed), None),
    )
