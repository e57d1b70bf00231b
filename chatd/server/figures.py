"""What the server counts besides the engine's own totals: responses by how they went, HTTP by how it went.

All on the event loop, none of it by conversation, account or key: the number of counters does not grow with
use. They start at 0 with the process.
"""

from collections import Counter

from chatd.server.histogram import SECONDS, TOKENS, Histogram
from chatd.store.records import ResponseRecord

NANO = 1_000_000_000


class ResponseFigures:
    """Of all responses that ended in this process. Times in seconds, money in nano-units by currency."""

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        """By finish reason."""
        self.billed: Counter[str] = Counter()
        self.saved: Counter[str] = Counter()
        self.ttft = {"hit": Histogram(SECONDS), "miss": Histogram(SECONDS)}
        """A hit had at least half of its prompt reused, as in reports."""
        self.gap = Histogram(SECONDS)
        """Between two tokens of one response, while it runs."""
        self.queue = Histogram(SECONDS)
        self.prefill = Histogram(SECONDS)
        self.decode = Histogram(SECONDS)
        self.whole = Histogram(SECONDS)
        self.prompt = Histogram(TOKENS)
        self.output = Histogram(TOKENS)

    def take(self, record: ResponseRecord) -> None:
        """One more has ended."""
        self.ended[record.finish_reason or "failed"] += 1
        cost, timings = record.cost, record.timings
        if cost.currency:
            self.billed[cost.currency] += cost.total_nano
            self.saved[cost.currency] += cost.saved_nano
        if record.prompt_tokens:
            self.prompt.add(record.prompt_tokens)
            self.output.add(record.output_tokens)
        queue, ttft, total = timings.queue_ms, timings.ttft_ms, timings.total_ms
        if queue is not None:
            self.queue.add(queue / 1000)
        if total is not None:
            self.whole.add(total / 1000)
        if ttft is not None:
            reused = record.gpu_hit + record.disk_hit
            self.ttft["hit" if 2 * reused >= record.prompt_tokens else "miss"].add(ttft / 1000)
            self.prefill.add(max(0.0, ttft - (queue or 0.0)) / 1000)
            self.decode.add(max(0.0, (total or ttft) - ttft) / 1000)


class HttpFigures:
    """Requests by method, route and status; sockets that were opened."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.sockets = 0
