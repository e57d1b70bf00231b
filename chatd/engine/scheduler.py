"""Which tokens are computed in the next step. Pure: no clock, no thread, no tensor.

There are no phases. Every running request has ``remaining_len >= 1`` ids without KV, and a step
computes some of them for each, within a budget of ``step_tokens``:

1. rows with one id to go (decodes), by rank;
2. chunks of the longer ones (prefill, or KV lost to preemption), by rank;
3. waiting requests, by rank, against free plus evictable pages. One whose prompt the disk
   has more of first restores that: it holds its lease and has no row until it runs.

Laws:

- Requests are ranked by turn, so that owners take turns, and within a turn by arrival. A rank never
  changes, and a newcomer's is after that of everyone who has begun. When pages run out the last in rank of
  the running is preempted: its KV goes to the tree, it goes back to its place in the queue. So the first
  always advances.
- A preempted request comes back only when it and all that run could grow to their limits, so it
  is not thrown out by the same neighbours again.
- A request waits while an older one is computing a prefix that it could share (twins).
- Prompt buckets are reported once, when the first chunk is scheduled, and never change.
- ``commit`` is the only place where ids are appended and ``kv_len`` advances.
- A step may be scheduled while the one before it still runs. It counts on that step's KV and takes an id
  that is not known yet from the device; what turns out to come after an ending is ignored at its commit.
  Pages it may still write can be freed meanwhile: whatever uses them next runs after it.
"""

from collections.abc import Callable, Sequence

from chatd.cache.block_tier import BLOCK_LEN
from chatd.cache.prefix_cache import Lease, PrefixCache
from chatd.cache.radix_node import pack
from chatd.cache.tiering import Tiering
from chatd.engine.admission import Admission
from chatd.engine.draft import Draft
from chatd.engine.limits import SchedulerLimits, refuse_impossible
from chatd.engine.messages import EngineState, FinishReason, Held, Progress, StepOutput, Submit, Update
from chatd.engine.outbox import Outbox
from chatd.engine.plan import BAD_ROW, StepPlan, StepRow
from chatd.engine.queues import Queues, rank
from chatd.engine.request import Answer, Req
from chatd.engine.turn_order import TurnOrder
from chatd.errors import BadLogits, ChatdError
from chatd.ids import Rid

__all__ = ["Scheduler", "SchedulerLimits"]


class Scheduler:
    """Owns the requests, and through `PrefixCache` the pages. One thread calls it."""

    def __init__(
        self,
        cache: PrefixCache,
        limits: SchedulerLimits,
        new_answer: Callable[[Sequence[str]], Answer],
        control_ids: frozenset[int] = frozenset(),
        tiering: Tiering | None = None,
    ) -> None:
        self.cache = cache
        self.limits = limits
        self.tiering = tiering or Tiering.off(cache)
        self.queues = Queues()
        self._new_answer = new_answer
        self._control_ids = control_ids
        self._arrivals = 0
        self._turns = TurnOrder()
        self._out = Outbox()
        self._admission = Admission(self.queues, cache, self.tiering, limits, self._out)
        self._flights = 0
        self.other_leases: Callable[[], list[Lease]] = list
        """Leases that are nobody's request here, for `check`."""
        self.make_room: Callable[[], bool] = bool
        """Asked when nothing runs and nothing can: let go what is held for convenience. False: nothing."""

    @property
    def capacity_len(self) -> int:
        """The most tokens one request may hold. One page is kept for a copy-on-write source."""
        return (self.cache.total_pages - 1) * self.cache.page_size

    @property
    def has_work(self) -> bool:
        return bool(self.queues or self._flights or self._out.updates)

    @property
    def can_run(self) -> bool:
        """The next plan may have rows although this one had none."""
        restored = any(req.restore is not None and req.restore.ended for req in self.queues.restoring)
        return bool(self.queues.running or self._flights or restored)

    @property
    def needs_ids(self) -> bool:
        """The next step cannot be scheduled well before the one that flies is committed: somebody's
        penalties count the id that it samples.
        """
        return any(req.pending and req.submit.params.looks_back for req in self.queues.running)

    # -- what the inbox brings

    def submit(self, submit: Submit, came: float = 0.0) -> None:
        """Queue a request that was handed in at ``came``, or refuse it at once if it can never run."""
        if not self.queues:
            self._turns.rest()
        place = (self._turns.take(_owner(submit)), self._arrivals)
        req = Req(submit, place, self._new_answer(submit.stop), came)
        self._arrivals += 1
        self._out.counts["submitted"] += 1
        try:
            refuse_impossible(req, self.limits, self.capacity_len)
        except ChatdError as error:
            self._finish(req, FinishReason.FAILED, error)
            return
        self.queues.add(req)

    def abort(self, rid: Rid) -> None:
        """End a request wherever it is. Unknown and ended ids are ignored."""
        req = self.queues.get(rid)
        if req is not None:
            self._finish(req, FinishReason.CANCELLED)

    def give_up(self, error: ChatdError) -> StepOutput:
        """The engine cannot go on: every request ends as failed. The cache is not touched any more."""
        for req in list(self.queues):
            req.lease = None
            self._out.end(req, FinishReason.FAILED, error)
        return self._output()

    def say(self, update: Update) -> None:
        """Have this among the updates of the next output."""
        self._out.say(update)

    # -- schedule

    def schedule(self, now: float = 0.0) -> StepPlan:
        """Decide the next step at ``now`` seconds. Takes pages and leases; computes nothing.

        The plan may be empty while a step flies or a restore waits for the disk.
        """
        queues = self.queues
        draft = Draft(self.limits.step_tokens)
        self._admission.end_restores(now)
        able = [req for req in queues.running if not self._may_be_over(req)]
        decodes = [req for req in able if req.remaining_len == 1]
        chunks = [req for req in able if req.remaining_len > 1]
        for req in decodes + chunks:
            if draft.budget > 0 and req.lease is not None:
                self._plan_row(req, draft)
        self._admit(draft, now)
        if queues.waiting and not (queues.active or self._flights) and self.make_room():
            self._admit(draft, now)
        self._admission.report_positions()
        if not draft.rows and not self._waits and queues:
            raise RuntimeError("nothing runs and nothing can be admitted: pages have leaked")
        return self._finish_plan(draft, now)

    @property
    def _waits(self) -> bool:
        """Something is under way that will free pages or bring KV."""
        return bool(self._flights or self.queues.restoring or self.tiering.copying)

    def _finish_plan(self, draft: Draft, now: float) -> StepPlan:
        """Count on what the step will do, and add the moves to and from the disk."""
        copies = []
        for row in draft.rows.values():
            req = self.queues.get(row.rid)
            assert req is not None
            if req.copy is not None:
                copies.append(req.copy)
                req.copy = None
            req.planned_len += row.extend_len
            req.pending += row.sample
            req.flights += 1
        self._flights += bool(draft.rows)
        spills, restores = self.tiering.plan(now, idle=not self.queues)
        return StepPlan(copies, list(draft.rows.values()), spills, restores)

    def _may_be_over(self, req: Req) -> bool:
        """Will the step that flies surely end it, by length?"""
        return req.pending > 0 and len(req.ids) + req.pending >= self.limits.most_len(req)

    def _plan_row(self, req: Req, draft: Draft) -> None:
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

    def _grow(self, req: Req, upto_len: int, draft: Draft) -> bool:
        """Pages for ``upto_len`` tokens, from the last in rank if need be."""
        assert req.lease is not None
        missing = self._pages(upto_len) - len(req.lease.pages)
        while missing > 0 and not self.cache.grow(req.lease, missing):
            victim = max(self.queues.active, key=rank)
            self._preempt(victim)
            draft.drop(victim.rid)
            if victim is req:
                return False
        return True

    def _preempt(self, req: Req) -> None:
        self.queues.move(req, self.queues.waiting)
        self._let_lease_go(req)
        req.preemptions += 1
        self._out.counts["preemptions"] += 1

    def _admit(self, draft: Draft, now: float) -> None:
        for req in list(self.queues.waiting):
            if draft.budget <= 0 or self._admission.is_full:
                break
            if req.flights or self._admission.waits_for_twin(req):
                continue
            if not self._admission.admit(req, now):
                break
            self._turns.serve(req.rank[0])
            if req.restore is None:
                self._plan_row(req, draft)

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
            req = self.queues.get(row.rid)
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
            req = self.queues.get(row.rid)
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
            # What a stop string may still take back, no history would ever have.
            sure_len = min(kv_len, req.prompt_len + req.visible) if req.submit.stop else kv_len
            self.cache.insert(req.lease, req.ids, sure_len)
            if self.tiering.write_through:
                self.tiering.spiller.want(req.rid, req.submit.namespace, pack(req.ids[:sure_len]))

    def _accept(self, req: Req, token_id: int) -> None:
        req.ids.append(token_id)
        self._out.counts["generated"] += 1
        if token_id in req.submit.stop_ids:
            if token_id in self._control_ids:
                req.answer.push(token_id)
            self._finish(req, FinishReason.END)
            return
        text, ids, stopped = req.answer.push(token_id)
        req.visible += len(ids)
        self._out.piece(req, text, ids)
        if stopped:
            self._finish(req, FinishReason.STOP)
        elif req.generated >= req.submit.max_tokens or len(req.ids) >= self.limits.context_length:
            self._finish(req, FinishReason.LENGTH)
        elif not text:
            self._out.say(Held(req.rid, req.generated))

    def _finish(self, req: Req, reason: FinishReason, error: ChatdError | None = None) -> None:
        """The one way out, from wherever the request is. Frees all it holds."""
        self.queues.remove(req)
        if not req.admitted:
            self._turns.leave(
                _owner(req.submit),
                (one.rank[0] for one in self.queues.waiting if _owner(one.submit) == _owner(req.submit)),
            )
        if reason is FinishReason.FAILED and req.lease is not None and req.restore is None:
            self._purge(req, req.lease)
        if reason is FinishReason.STOP:
            req.kv_len = min(req.kv_len, req.prompt_len + req.visible)
        self._let_lease_go(req)
        self._out.end(req, reason, error)
        self._keep(req, reason)

    def _let_lease_go(self, req: Req) -> None:
        """Release all it holds; its KV stays for others."""
        if req.restore is not None:
            self.tiering.restorer.cancel(req.restore)
        elif req.lease is not None:
            self.cache.release(req.lease, req.ids, req.kv_len)
        req.lease, req.copy, req.restore = None, None, None

    def _purge(self, req: Req, lease: Lease) -> None:
        """What it computed may be bad: nobody is to find any of it."""
        chain = self.tiering.chain(req.ids[: req.kv_len], req.submit.namespace)
        self.tiering.forget([chain[lease.matched_len // BLOCK_LEN :]])
        self.cache.purge(lease)

    def _keep(self, req: Req, reason: FinishReason) -> None:
        """A turn ended: its KV is worth a place on disk."""
        if reason is not FinishReason.FAILED and req.admitted:
            self.tiering.spiller.want(req.rid, req.submit.namespace, pack(req.ids[: req.kv_len]))

    def queue_s(self) -> float:
        """How long a request that came now would wait before its first chunk, roughly."""
        tokens = sum(req.remaining_len for req in self.queues if req.remaining_len > 1)
        running = self.queues.running if self._admission.is_full else []
        to_go = min((req.limit_len - len(req.ids) for req in running), default=0)
        costs = self.tiering.costs
        return costs.compute_s(tokens) + to_go * costs.step_s

    def step_took(self, plan: StepPlan, seconds: float) -> None:
        """For the estimates of what computing costs."""
        if plan.rows:
            extend_len = sum(row.extend_len for row in plan.rows if row.extend_len > 1)
            self.tiering.costs.step_took(extend_len, seconds)

    def report(self) -> StepOutput:
        """What there is to say between two steps: the levels, and what has not been said yet."""
        return self._output()

    def _output(self) -> StepOutput:
        cache, queues = self.cache, self.queues
        self._out.counts["evicted_pages"] = cache.evicted_pages
        self._out.counts.update(self.tiering.counts())
        return self._out.take(
            EngineState(
                running=len(queues.running),
                waiting=len(queues.waiting),
                restoring=len(queues.restoring),
                spill_queue=self.tiering.spiller.queue_len,
                free_pages=cache.free_pages,
                evictable_pages=cache.evictable_pages,
                total_pages=cache.total_pages,
            )
        )

    def check(self) -> None:
        """Recompute what must hold between steps; raises AssertionError."""
        leases = [req.lease for req in self.queues.active if req.lease is not None]
        self.cache.check([*leases, *self.tiering.restorer.leases(), *self.other_leases()])
        self.queues.check()
        for req in self.queues.running:
            assert req.lease is not None
            assert req.remaining_len >= 1 or self._may_be_over(req)
            assert req.kv_len <= req.planned_len
            assert len(req.lease.pages) >= self._pages(req.planned_len)
            assert 0 <= req.pending <= req.flights <= self._flights


def _owner(submit: Submit) -> str:
    """Whose turn it takes."""
    return submit.owner or submit.namespace


_BAD_LOGITS = BadLogits(
    "The model's output for this request was not a number. Nothing of it was kept; try again with "
    "other words or parameters."
)
