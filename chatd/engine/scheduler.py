"""Which tokens are computed in the next step. Pure: no clock, no thread, no tensor.

There are no phases. Every running request has ``remaining_len >= 1`` ids without KV, and a step
computes some of them for each, within a budget of ``step_tokens``:

1. rows with one id to go (decodes), oldest first;
2. chunks of the longer ones (prefill, or KV lost to preemption), oldest first;
3. waiting requests, in order of arrival, against free plus evictable pages. One whose prompt the disk
   has more of first restores that: it holds its lease and has no row until it runs.

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

from chatd.cache.block_tier import Completion
from chatd.cache.costs import Costs
from chatd.cache.prefix_cache import Lease, PrefixCache
from chatd.cache.radix_node import pack
from chatd.cache.restoring import Restore
from chatd.cache.tiering import Tiering
from chatd.engine.messages import (
    EngineState,
    FinishReason,
    Held,
    Prefill,
    Progress,
    Queued,
    Restoring,
    StepOutput,
    Submit,
    TierNote,
    TierOutcome,
    Update,
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
        tiering: Tiering | None = None,
        costs: Costs | None = None,
    ) -> None:
        if limits.max_running > limits.step_tokens:
            raise ValueError("max_running may not exceed step_tokens: all that run decode in each step")
        self.cache = cache
        self.limits = limits
        self.tiering = tiering
        self.costs = costs or (tiering.costs if tiering is not None else Costs())
        self.running: list[Req] = []
        self.restoring: list[Req] = []
        self.waiting: list[Req] = []
        self._new_answer = new_answer
        self._control_ids = control_ids
        self._by_rid: dict[Rid, Req] = {}
        self._arrivals = 0
        self._out = Outbox()
        self._flights = 0
        self._now = 0.0
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
        return bool(self.running or self.restoring or self.waiting or self._flights or self._out.updates)

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

    # -- the disk tier

    def say(self, update: Update) -> None:
        """Have this among the updates of the next output."""
        self._out.say(update)

    @property
    def has_moves(self) -> bool:
        """There are blocks to write or to restore, although no request may be waiting for it."""
        return self.tiering is not None and self.tiering.has_moves

    @property
    def copying(self) -> bool:
        """The runner is copying pages and will have tickets to tell."""
        return self.tiering is not None and self.tiering.copying

    @property
    def can_run(self) -> bool:
        """The next plan may have rows although this one had none."""
        return bool(
            self.running or self._flights or any(r.restore and r.restore.ended for r in self.restoring)
        )

    @property
    def writing(self) -> bool:
        """Something is to be written still, or on its way."""
        return self.tiering is not None and self.tiering.spiller.queue_len > 0

    @property
    def written_blocks(self) -> int:
        return self.tiering.spiller.counts.blocks if self.tiering is not None else 0

    def want_all(self) -> int:
        """Write all that is cached and not stored; how many blocks that is."""
        return self.tiering.spiller.want_all() if self.tiering is not None else 0

    def copied(self, tickets: Sequence[int], now: float) -> None:
        if self.tiering is not None:
            self.tiering.copied(tickets, now)

    def completed(self, completion: Completion, now: float) -> None:
        if self.tiering is not None:
            self.tiering.completed(completion, now)

    def step_took(self, plan: StepPlan, seconds: float) -> None:
        """For the estimates of what computing costs."""
        if plan.rows:
            extend_len = sum(row.extend_len for row in plan.rows if row.extend_len > 1)
            self.costs.step_took(extend_len, seconds)

    # -- schedule

    def schedule(self, now: float = 0.0) -> StepPlan:
        """Decide the next step at ``now`` seconds. Takes pages and leases; computes nothing.

        The plan may be empty while a step flies or a restore waits for the disk.
        """
        self._now = now
        draft = _Draft(self.limits.step_tokens)
        self._end_restores()
        able = [req for req in self.running if not self._may_be_over(req)]
        decodes = [req for req in able if req.remaining_len == 1]
        chunks = [req for req in able if req.remaining_len > 1]
        for req in decodes + chunks:
            if draft.budget > 0 and req.lease is not None:
                self._plan_row(req, draft)
        self._admit(draft)
        if self.waiting and not (self.running or self.restoring or self._flights) and self.make_room():
            self._admit(draft)
        self._report_positions()
        if not draft.rows and not self._waits and (self.running or self.waiting):
            raise RuntimeError("nothing runs and nothing can be admitted: pages have leaked")
        return self._finish_plan(draft)

    @property
    def _waits(self) -> bool:
        """Something is under way that will free pages or bring KV."""
        copying = self.tiering is not None and self.tiering.copying
        return bool(self._flights or self.restoring or copying)

    def _finish_plan(self, draft: _Draft) -> StepPlan:
        """Count on what the step will do, and add the moves to and from the disk."""
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
        plan = StepPlan(copies, list(draft.rows.values()))
        if self.tiering is not None:
            idle = not (self.running or self.waiting or self.restoring)
            plan.spills, plan.restores = self.tiering.plan(self._now, idle=idle)
        return plan

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
            victim = max([*self.running[-1:], *self.restoring[-1:]], key=_arrival)
            self._preempt(victim)
            draft.drop(victim.rid)
            if victim is req:
                return False
        return True

    def _preempt(self, req: Req) -> None:
        self._queue_of(req).remove(req)
        self._let_lease_go(req)
        req.preemptions += 1
        self._out.counts["preemptions"] += 1
        insort(self.waiting, req, key=_arrival)

    def _admit(self, draft: _Draft) -> None:
        for req in list(self.waiting):
            if draft.budget <= 0 or len(self.running) + len(self.restoring) >= self.limits.max_running:
                break
            if req.flights or self._waits_for_twin(req):
                continue
            if not self._try_admit(req):
                break
            if req.restore is None:
                self._plan_row(req, draft)

    def _waits_for_twin(self, req: Req) -> bool:
        """Is an older request computing whole pages that this one would find by waiting?"""
        if not self.cache.enabled:
            return False
        page_size = self.cache.page_size
        for other in (*self.running, *self.restoring):
            if other.submit.namespace != req.submit.namespace or other.remaining_len <= 1:
                continue
            common = common_prefix_len(other.ids, req.ids) // page_size * page_size
            if common > other.kv_len and common > self.cache.match_len(req.ids, req.submit.namespace):
                return True
        return False

    def _try_admit(self, req: Req) -> bool:
        """Lease what memory has of ``req`` and make it running or restoring, if it can have its pages."""
        lease = self.cache.acquire(req.ids, req.submit.namespace)
        if not self._affordable(req, lease):
            self.cache.release(lease, req.ids, lease.cached_len)
            return False
        self.waiting.remove(req)
        req.position = 0
        if self._try_restore(req, lease):
            return True
        self._run(req, lease)
        return True

    def _run(self, req: Req, lease: Lease) -> None:
        had_len = req.kv_len
        req.take(lease)
        insort(self.running, req, key=_arrival)
        self._account_admission(req, had_len)

    # -- restores

    def _try_restore(self, req: Req, lease: Lease) -> bool:
        """Begin to load what the disk has beyond ``lease``, if there is something and it is worth it."""
        if self.tiering is None:
            return False
        if req.blocks is None:
            req.blocks = self.tiering.chain(req.ids, req.submit.namespace)
        req.found = self.tiering.look(req.ids, req.blocks, lease.cached_len, lease.matched_len)
        if req.found is None or not self.tiering.prefers(req.found):
            return False
        req.lease, req.restored_len = lease, 0
        req.restore = self.tiering.restore(req.ids, lease, req.found, self._now)
        insort(self.restoring, req, key=_arrival)
        return True

    def _end_restores(self) -> None:
        """Those that have all that will come are going to run."""
        for req in list(self.restoring):
            assert req.restore is not None
            if req.restore.acked and req.restore.done_len != req.restored_len:
                req.restored_len = req.restore.done_len
                self._out.say(Restoring(req.rid, req.restored_len, req.restore.target_len))
            if req.restore.ended:
                self._end_restore(req, req.restore)

    def _end_restore(self, req: Req, restore: Restore) -> None:
        self.restoring.remove(req)
        lease = restore.lease
        lease.cached_len = restore.done_len
        req.disk_hit = restore.done_len - restore.start_len
        req.restore_s = self._now - restore.began
        req.outcome = restore.outcome
        req.restore = None
        self._run(req, lease)

    def _affordable(self, req: Req, lease: Lease) -> bool:
        """Do free and evictable pages cover it and all that runs (to their limits if it was preempted)?"""
        to_the_limit = req.preemptions > 0
        active = (*self.running, *self.restoring)
        leases = [(other, other.lease) for other in active if other.lease is not None]
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
        gpu_hit = req.kv_len - req.disk_hit
        counts["gpu_hit"] += gpu_hit
        counts["disk_hit"] += req.disk_hit
        counts["computed"] += computed
        self._out.say(Prefill(req.rid, req.prompt_len, gpu_hit, req.disk_hit, computed, self._note(req)))

    def _note(self, req: Req) -> TierNote:
        elsewhere = self.cache.elsewhere_len(req.ids, req.submit.namespace)
        if self.tiering is None:
            return TierNote(elsewhere=elsewhere)
        self._out.counts["disk_asked"] += req.prompt_len - (req.kv_len - req.disk_hit)
        if req.found is None:
            return TierNote(TierOutcome.NOTHING, elsewhere=elsewhere)
        outcome = req.outcome or TierOutcome.CHEAPER
        return req.found.note(outcome, req.restore_s, elsewhere)

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
            if self.tiering is not None and self.tiering.write_through:
                self.tiering.spiller.want(req.rid, req.submit.namespace, pack(req.ids[:kv_len]))

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
            self._queue_of(req).remove(req)
        if req.lease is not None and req.restore is None and reason is FinishReason.FAILED:
            self.cache.purge(req.lease)
            req.lease = None
        self._let_lease_go(req)
        self._out.end(req, reason, error)
        self._keep(req, reason)

    def _queue_of(self, req: Req) -> list[Req]:
        if req.lease is None:
            return self.waiting
        return self.running if req.restore is None else self.restoring

    def _let_lease_go(self, req: Req) -> None:
        """Release all it holds; its KV stays for others."""
        if req.restore is not None:
            assert self.tiering is not None
            self.tiering.restorer.cancel(req.restore)
        elif req.lease is not None:
            self.cache.release(req.lease, req.ids, req.kv_len)
        req.lease, req.copy, req.restore = None, None, None

    def _keep(self, req: Req, reason: FinishReason) -> None:
        """A turn ended: its KV is worth a place on disk, but for what no history will ever have."""
        kept_len = req.kv_len
        if reason is FinishReason.STOP:
            visible = list(req.answer.answer_ids())
            kept_len = min(kept_len, req.prompt_len + common_prefix_len(req.ids[req.prompt_len :], visible))
            self.cache.forget(pack(req.ids[: req.kv_len]), req.submit.namespace, kept_len)
        if self.tiering is not None and reason is not FinishReason.FAILED and req.admitted:
            self.tiering.spiller.want(req.rid, req.submit.namespace, pack(req.ids[:kept_len]))

    def queue_s(self) -> float:
        """How long a request that came now would wait before its first chunk, roughly."""
        ahead = [req for req in self._all() if req.remaining_len > 1]
        tokens = sum(req.remaining_len for req in ahead)
        full = len(self.running) + len(self.restoring) >= self.limits.max_running
        to_go = min((req.limit_len - len(req.ids) for req in self.running), default=0) if full else 0
        return self.costs.compute_s(tokens) + to_go * self.costs.step_s

    def report(self) -> StepOutput:
        """What there is to say between two steps: the levels, and what has not been said yet."""
        return self._output()

    def _output(self) -> StepOutput:
        cache = self.cache
        self._out.counts["evicted_pages"] = cache.evicted_pages
        if self.tiering is not None:
            self._out.counts.update(self.tiering.counts())
        return self._out.take(
            EngineState(
                running=len(self.running),
                waiting=len(self.waiting),
                restoring=len(self.restoring),
                spill_queue=self.tiering.spiller.queue_len if self.tiering is not None else 0,
                free_pages=cache.free_pages,
                evictable_pages=cache.evictable_pages,
                total_pages=cache.total_pages,
            )
        )

    def check(self) -> None:
        """Recompute what must hold between steps; raises AssertionError."""
        leases = [req.lease for req in (*self.running, *self.restoring) if req.lease is not None]
        if self.tiering is not None:
            leases += self.tiering.restorer.leases()
        self.cache.check([*leases, *self.other_leases()])
        assert set(self._by_rid) == {req.rid for req in self._all()}
        assert all(req.lease is None for req in self.waiting)
        for req in self.running:
            assert req.lease is not None
            assert req.restore is None
            assert req.remaining_len >= 1 or self._may_be_over(req)
            assert req.kv_len <= req.planned_len
            assert len(req.lease.pages) >= self._pages(req.planned_len)
            assert 0 <= req.pending <= req.flights <= self._flights
        for queue in (self.running, self.restoring, self.waiting):
            assert [req.arrival for req in queue] == sorted(req.arrival for req in queue)

    def _all(self) -> Iterable[Req]:
        yield from self.running
        yield from self.restoring
        yield from self.waiting


_BAD_LOGITS = BadLogits(
    "The model's output for this request was not a number. Nothing of it was kept; try again with "
    "other words or parameters."
)
