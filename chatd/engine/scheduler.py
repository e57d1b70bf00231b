"""Which tokens are computed in the next step. Pure: no clock, no thread, no tensor.

There are no phases. Every running request has ``remaining_len >= 1`` ids without KV, and a step
computes some of them for each, within a budget of ``step_tokens``:

1. rows with one id to go (decodes), oldest first;
2. chunks of the longer ones (prefill, or KV lost to preemption), oldest first;
3. waiting requests, in order of arrival, against free plus evictable pages.

Laws:

- Requests are ordered by arrival. When pages run out the youngest running request is preempted:
  its KV goes to the tree, it goes back to its place in the queue. So the oldest always advances.
- A preempted request comes back only when it and all that run could grow to their limits, so it
  is not thrown out by the same neighbours again.
- A request waits while an older one is computing a prefix that it could share (twins).
- Prompt buckets are reported once, when the first chunk is scheduled, and never change.
- ``commit`` is the only place where ids are appended and ``kv_len`` advances.
- A step may be scheduled while the one before it still runs. It counts on that step's KV and takes an id
  that is not known yet from the device; what turns out to come after an ending is ignored at its commit.
  Pages it may still write can be freed meanwhile: whatever uses them next runs after it.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from chatd.cache.prefix_cache import Lease, PrefixCache
from chatd.engine.messages import (
    EngineState,
    FinishReason,
    Held,
    Prefill,
    Progress,
    Queued,
    StepOutput,
    Submit,
)
from chatd.engine.outbox import Outbox
from chatd.engine.plan import BAD_ROW, StepPlan, StepRow
from chatd.engine.request import Answer, Req, common_prefix_len
from chatd.errors import BadLogits, ChatdError, ContextTooLong, PromptTooLarge
from chatd.ids import Rid


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """``step_tokens`` bounds a step's work, ``max_running`` its rows; both at least 1."""

    step_tokens: int
    max_running: int
    context_length: int


def _arrival(req: Req) -> int:
    return req.arrival


class _Draft:
    """A step in the making: rows by rid and the tokens that may still be added."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.rows: dict[Rid, StepRow] = {}

    def add(self, row: StepRow) -> None:
        self.rows[row.rid] = row
        self.budget -= row.extend_len

    def drop(self, rid: Rid) -> None:
        row = self.rows.pop(rid, None)
        if row is not None:
            self.budget += row.extend_len


class Scheduler:
    """Owns the requests, and through `PrefixCache` the pages. One thread calls it."""

    def __init__(
        self,
        cache: PrefixCache,
        limits: SchedulerLimits,
        new_answer: Callable[[Sequence[str]], Answer],
        control_ids: frozenset[int] = frozenset(),
    ) -> None:
        if limits.max_running > limits.step_tokens:
            raise ValueError("max_running may not exceed step_tokens: all that run decode in each step")
        self.cache = cache
        self.limits = limits
        self.running: list[Req] = []
        self.waiting: list[Req] = []
        self._new_answer = new_answer
        self._control_ids = control_ids
        self._by_rid: dict[Rid, Req] = {}
        self._arrivals = 0
        self._out = Outbox()
        self._flights = 0

    @property
    def capacity_len(self) -> int:
        """The most tokens one request may hold. One page is kept for a copy-on-write source."""
        return (self.cache.total_pages - 1) * self.cache.page_size

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting or self._flights or self._out.updates)

    @property
    def needs_ids(self) -> bool:
        """The next step cannot be scheduled well before the one that flies is committed: somebody's
        penalties count the id that it samples.
        """
        return any(req.pending and req.submit.params.looks_back for req in self.running)

    # -- what the inbox brings

    def submit(self, submit: Submit) -> None:
        """Queue a request, or refuse it at once if it can never run."""
        req = Req(submit, self._arrivals, self._new_answer(submit.stop))
        self._arrivals += 1
        self._out.counts["submitted"] += 1
        try:
            self._refuse_impossible(req)
        except ChatdError as error:
            self._finish(req, FinishReason.FAILED, error)
            return
        self._by_rid[req.rid] = req
        self.waiting.append(req)

    def _refuse_impossible(self, req: Req) -> None:
        context = self.limits.context_length
        if req.prompt_len >= context:
            raise ContextTooLong(
                f"The prompt has {req.prompt_len} tokens; the model's context holds {context} and needs one "
                "for the answer. Shorten the conversation or start a new one."
            )
        if min(req.limit_len, context) > self.capacity_len:
            raise PromptTooLarge(
                f"The prompt has {req.prompt_len} tokens and max_tokens is {req.submit.max_tokens}, but the "
                f"KV pool holds {self.capacity_len} tokens in all. Lower max_tokens or start the server with "
                "more --kv-bytes."
            )

    def abort(self, rid: Rid) -> None:
        """End a request wherever it is. Unknown and ended ids are ignored."""
        req = self._by_rid.get(rid)
        if req is not None:
            self._finish(req, FinishReason.CANCELLED)

    def give_up(self, error: ChatdError) -> StepOutput:
        """The engine cannot go on: every request ends as failed. The cache is not touched any more."""
        for req in list(self._by_rid.values()):
            req.lease = None
            self._out.end(req, FinishReason.FAILED, error)
        return self._output()

    # -- schedule

    def schedule(self) -> StepPlan:
        """Decide the next step. Takes pages and leases; computes nothing."""
        draft = _Draft(self.limits.step_tokens)
        able = [req for req in self.running if not self._may_be_over(req)]
        decodes = [req for req in able if req.remaining_len == 1]
        chunks = [req for req in able if req.remaining_len > 1]
        for req in decodes + chunks:
            if draft.budget > 0 and req.lease is not None:
                self._plan_row(req, draft)
        self._admit(draft)
        self._report_positions()
        if not draft.rows and not self._flights and (self.running or self.waiting):
            raise RuntimeError("nothing runs and nothing can be admitted: pages have leaked")
        copies = []
        for row in draft.rows.values():
            req = self._by_rid[row.rid]
            if req.copy is not None:
                copies.append(req.copy)
                req.copy = None
            req.planned_len += row.extend_len
            req.pending += row.sample
            req.flights += 1
        self._flights += bool(draft.rows)
        return StepPlan(copies, list(draft.rows.values()))

    def _may_be_over(self, req: Req) -> bool:
        """Will the step that flies surely end it, by length?"""
        ids_len = len(req.ids) + req.pending
        return req.pending > 0 and ids_len >= min(req.limit_len, self.limits.context_length)

    def _plan_row(self, req: Req, draft: _Draft) -> None:
        """Give ``req`` a row of what the budget allows, unless it has to be preempted itself."""
        extend_len = min(draft.budget, req.remaining_len)
        if not self._grow(req, req.planned_len + extend_len, draft):
            return
        assert req.lease is not None
        draft.add(
            StepRow(
                rid=req.rid,
                ids=req.ids,
                start=req.planned_len,
                extend_len=extend_len,
                pages=req.lease.pages,
                sample=extend_len == req.remaining_len,
                prompt_len=req.prompt_len,
                params=req.submit.params,
                pending=req.pending > 0,
                preemptions=req.preemptions,
            )
        )

    def _grow(self, req: Req, upto_len: int, draft: _Draft) -> bool:
        """Pages for ``upto_len`` tokens, from the youngest others if need be."""
        assert req.lease is not None
        missing = self._pages(upto_len) - len(req.lease.pages)
        while missing > 0 and not self.cache.grow(req.lease, missing):
            victim = self.running[-1]
            self._preempt(victim)
            draft.drop(victim.rid)
            if victim is req:
                return False
        return True

    def _preempt(self, req: Req) -> None:
        assert req.lease is not None
        self.cache.release(req.lease, req.ids, req.kv_len)
        self.running.remove(req)
        req.lease, req.copy = None, None
        req.preemptions += 1
        self._out.counts["preemptions"] += 1
        insort(self.waiting, req, key=_arrival)

    def _admit(self, draft: _Draft) -> None:
        for req in list(self.waiting):
            if draft.budget <= 0 or len(self.running) >= self.limits.max_running:
                break
            if req.flights or self._waits_for_twin(req):
                continue
            if not self._try_admit(req):
                break
            self._plan_row(req, draft)

    def _waits_for_twin(self, req: Req) -> bool:
        """Is an older request computing whole pages that this one would find by waiting?"""
        if not self.cache.enabled:
            return False
        page_size = self.cache.page_size
        for other in self.running:
            if other.submit.namespace != req.submit.namespace or other.remaining_len <= 1:
                continue
            common = common_prefix_len(other.ids, req.ids) // page_size * page_size
            if common > other.kv_len and common > self.cache.match_len(req.ids, req.submit.namespace):
                return True
        return False

    def _try_admit(self, req: Req) -> bool:
        """Lease the cached prefix of ``req`` and make it running, if the pages it needs are to be had."""
        lease = self.cache.acquire(req.ids, req.submit.namespace)
        if not self._affordable(req, lease):
            self.cache.release(lease, req.ids, lease.cached_len)
            return False
        had_len = req.kv_len
        req.take(lease)
        req.position = 0
        self.waiting.remove(req)
        insort(self.running, req, key=_arrival)
        self._account_admission(req, had_len)
        return True

    def _affordable(self, req: Req, lease: Lease) -> bool:
        """Do free and evictable pages cover it and all that runs (to their limits if it was preempted)?"""
        to_the_limit = req.preemptions > 0
        leases = [(other, other.lease) for other in self.running if other.lease is not None]
        wanted = sum(
            max(0, self._pages(self._reserved_len(one, to_the_limit)) - len(held.pages))
            for one, held in [(req, lease), *leases]
        )
        return wanted <= self.cache.free_pages + self.cache.evictable_pages

    def _reserved_len(self, req: Req, to_the_limit: bool) -> int:
        """Tokens to keep room for: what it has and one more, or all it may become."""
        return min(req.limit_len, self.limits.context_length) if to_the_limit else len(req.ids) + 1

    def _account_admission(self, req: Req, had_len: int) -> None:
        counts = self._out.counts
        if req.admitted:
            again = max(0, had_len - req.kv_len)
            req.recomputed += again
            counts["recomputed"] += again
            return
        req.admitted = True
        computed = req.prompt_len - req.kv_len
        counts["prompt_tokens"] += req.prompt_len
        counts["gpu_hit"] += req.kv_len
        counts["computed"] += computed
        self._out.say(Prefill(req.rid, req.prompt_len, req.kv_len, 0, computed))

    def _report_positions(self) -> None:
        for position, req in enumerate(self.waiting, 1):
            if req.position != position:
                req.position = position
                self._out.say(Queued(req.rid, position))

    def _pages(self, length: int) -> int:
        return -(-length // self.cache.page_size)

    # -- commit

    def commit(self, plan: StepPlan, sampled: Sequence[int]) -> StepOutput:
        """Take a step's ids: extend requests, share their full pages, end what is done.

        ``sampled`` has one id, or BAD_ROW, per row with ``sample``, in row order.
        """
        answers = iter(sampled)
        if plan.rows:
            self._out.counts["steps"] += 1
            self._flights -= 1
        for row in plan.rows:
            token_id = next(answers) if row.sample else None
            req = self._by_rid.get(row.rid)
            if req is not None:
                self._land(req, row)
                self._take_in(req, row, token_id)
        return self._output()

    def _land(self, req: Req, row: StepRow) -> None:
        req.flights -= 1
        req.pending -= row.sample

    def _take_in(self, req: Req, row: StepRow, token_id: int | None) -> None:
        if token_id == BAD_ROW:
            self._finish(req, FinishReason.FAILED, _BAD_LOGITS)
            return
        if row.preemptions == req.preemptions:  # else the KV went with its pages; the id is good
            self._advance(req, row.start + row.extend_len)
        if token_id is None:
            self._out.say(Progress(req.rid, min(req.kv_len, req.prompt_len)))
        else:
            self._accept(req, token_id)

    def fail(self, plan: StepPlan, error: ChatdError) -> StepOutput:
        """The step could not be run: its requests end, and what they inserted is unmatchable."""
        self._flights -= bool(plan.rows)
        for row in plan.rows:
            req = self._by_rid.get(row.rid)
            if req is not None:
                self._land(req, row)
                self._finish(req, FinishReason.FAILED, error)
        return self._output()

    def _advance(self, req: Req, kv_len: int) -> None:
        assert req.lease is not None
        page_size = self.cache.page_size
        grew = kv_len // page_size > req.kv_len // page_size
        req.kv_len = kv_len
        if grew:
            self.cache.insert(req.lease, req.ids, kv_len)

    def _accept(self, req: Req, token_id: int) -> None:
        req.ids.append(token_id)
        self._out.counts["generated"] += 1
        if token_id in req.submit.stop_ids:
            if token_id in self._control_ids:
                req.answer.push(token_id)
            self._finish(req, FinishReason.END)
            return
        text, ids, stopped = req.answer.push(token_id)
        self._out.piece(req, text, ids)
        if stopped:
            self._finish(req, FinishReason.STOP)
        elif req.generated >= req.submit.max_tokens or len(req.ids) >= self.limits.context_length:
            self._finish(req, FinishReason.LENGTH)
        elif not text:
            self._out.say(Held(req.rid, req.generated))

    def _finish(self, req: Req, reason: FinishReason, error: ChatdError | None = None) -> None:
        """The one way out, from wherever the request is. Frees all it holds."""
        known = self._by_rid.get(req.rid) is req
        if known:
            del self._by_rid[req.rid]
            (self.running if req.lease is not None else self.waiting).remove(req)
        if req.lease is not None:
            if reason is FinishReason.FAILED:
                self.cache.purge(req.lease)
            else:
                self.cache.release(req.lease, req.ids, req.kv_len)
        req.lease, req.copy = None, None
        self._out.end(req, reason, error)

    def report(self) -> StepOutput:
        """What there is to say between two steps: the levels, and what has not been said yet."""
        return self._output()

    def _output(self) -> StepOutput:
        cache = self.cache
        self._out.counts["evicted_pages"] = cache.evicted_pages
        return self._out.take(
            EngineState(
                running=len(self.running),
                waiting=len(self.waiting),
                free_pages=cache.free_pages,
                evictable_pages=cache.evictable_pages,
                total_pages=cache.total_pages,
            )
        )

    def check(self) -> None:
        """Recompute what must hold between steps; raises AssertionError."""
        self.cache.check([req.lease for req in self.running if req.lease is not None])
        assert set(self._by_rid) == {req.rid for req in self._all()}
        assert all(req.lease is None for req in self.waiting)
        for req in self.running:
            assert req.lease is not None
            assert req.remaining_len >= 1 or self._may_be_over(req)
            assert req.kv_len <= req.planned_len
            assert len(req.lease.pages) >= self._pages(req.planned_len)
            assert 0 <= req.pending <= req.flights <= self._flights
        for queue in (self.running, self.waiting):
            assert [req.arrival for req in queue] == sorted(req.arrival for req in queue)

    def _all(self) -> Iterable[Req]:
        yield from self.running
        yield from self.waiting


_BAD_LOGITS = BadLogits(
    "The model's output for this request was not a number. Nothing of it was kept; try again with "
    "other words or parameters."
)
