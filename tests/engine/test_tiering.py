"""What falls out of the pages comes back from disk, is billed as such, and is never wrong."""

import pytest

from chatd.cache.block_tier import Block, ReadOutcome
from chatd.cache.costs import Costs
from chatd.engine.messages import FinishReason, Restoring, TierOutcome
from tests.engine.tiers import TierLab
from tests.support.engines import request
from tests.support.lab import Lab, prompt, reference


def fill(lab: Lab, count: int = 8) -> None:
    """Push everything else out of 64 pages."""
    for i in range(count):
        lab.answer(request(f"filler{i}-{len(lab.outcomes)}", prompt(100 + i, 300), 4))


def test_a_turn_that_was_evicted_comes_back_from_disk() -> None:
    lab = TierLab()
    first = request("a", prompt(1, 400), 20)
    text = lab.answer(first).text
    fill(lab)
    assert lab.scheduler.cache.match_len(first.prompt_ids, first.namespace) == 0
    again = lab.answer(request("b", prompt(1, 400), 20))
    assert again.text == text == reference(first)
    assert (again.prefilled.gpu_hit, again.prefilled.disk_hit, again.prefilled.computed) == (0, 384, 16)
    assert again.prefilled.tier.outcome is TierOutcome.LOADED
    assert again.prefilled.tier.found == 384
    progress = [update.done for update in again.updates if isinstance(update, Restoring)]
    assert progress == sorted(progress)
    assert progress[-1] == 384
    lab.assert_at_rest()


def test_a_restart_finds_what_was_written() -> None:
    lab = TierLab()
    lab.answer(request("a", prompt(1, 400), 100))
    after = lab.restarted()
    outcome = after.answer(request("b", prompt(1, 400), 20))
    assert outcome.text == reference(request("b", prompt(1, 400), 20))
    assert outcome.prefilled.disk_hit == 384
    assert after.last.counters.restored_bytes == 6 * 512
    # The answer's tokens were stored too: 499 have KV, 448 in whole blocks.
    assert len(lab.tier.stored) == 499 // 64


@pytest.mark.parametrize("page_size", [1, 2, 16, 64])
@pytest.mark.parametrize("overlaps", [False, True])
def test_the_disk_adds_to_what_memory_has(page_size: int, overlaps: bool) -> None:
    """The match ends inside a block, and inside a page: the rest of the block comes from disk."""
    lab = TierLab(1024 // page_size, page_size, overlaps=overlaps)
    ids = prompt(1, 400)
    lab.answer(request("a", ids, 4))
    after = lab.restarted(1024 // page_size, page_size, overlaps=overlaps)
    after.tier.stored = {}
    after.answer(request("part", ids[:170], 1))
    after.run()
    lab.tier.stored = {}
    again = TierLab(1024 // page_size, page_size)
    again.answer(request("all", ids, 4))
    after.tier.stored = again.tier.stored
    outcome = after.answer(request("b", ids, 20))
    assert outcome.text == reference(request("b", ids, 20))
    in_memory = 170 // page_size * page_size
    assert (outcome.prefilled.gpu_hit, outcome.prefilled.disk_hit) == (in_memory, 384 - in_memory)
    after.run()
    after.assert_at_rest()


def test_a_damaged_block_is_a_miss_from_there_on() -> None:
    lab = TierLab()
    lab.answer(request("a", prompt(1, 400), 4))
    after = lab.restarted()
    third = after.tiering.chain(prompt(1, 400), request("a", [1], 1).namespace)[2]
    lab.tier.read_outcome = lambda block: ReadOutcome.DAMAGED if block.key == third.key else ReadOutcome.OK
    outcome = after.answer(request("b", prompt(1, 400), 20))
    assert outcome.text == reference(request("b", prompt(1, 400), 20))
    assert outcome.prefilled.disk_hit == 128
    assert outcome.prefilled.tier.outcome is TierOutcome.DAMAGED
    assert after.last.counters.damaged_blocks == 1
    after.assert_at_rest()


def test_a_failed_read_is_not_the_end_of_a_record() -> None:
    lab = TierLab()
    lab.answer(request("a", prompt(1, 400), 4))
    after = lab.restarted()
    lab.tier.read_outcome = lambda block: ReadOutcome.FAILED
    outcome = after.answer(request("b", prompt(1, 400), 20))
    assert outcome.text == reference(request("b", prompt(1, 400), 20))
    assert (outcome.prefilled.disk_hit, outcome.prefilled.tier.outcome) == (0, TierOutcome.FAILED)
    lab.tier.read_outcome = lambda block: ReadOutcome.OK
    assert lab.restarted().answer(request("c", prompt(1, 400), 20)).prefilled.disk_hit == 384


def test_a_read_that_never_ends_is_given_up() -> None:
    lab = TierLab()
    lab.answer(request("a", prompt(1, 400), 4))
    after = lab.restarted()
    after.work = 0
    outcome = after.submit(request("b", prompt(1, 400), 20))
    for _ in range(2000):
        if outcome.finished is None:
            after.step()
    assert outcome.text == reference(request("b", prompt(1, 400), 20))
    assert outcome.prefilled.tier.outcome is TierOutcome.FAILED
    after.work = 1 << 30  # what comes late finds nobody
    after.step()
    after.run()
    after.assert_at_rest()


def test_computing_is_chosen_where_it_is_cheaper() -> None:
    lab = TierLab()
    lab.answer(request("a", prompt(1, 400), 4))
    after = lab.restarted(costs=Costs(load_block_s=1.0, compute_token_s=0.001))
    note = after.answer(request("b", prompt(1, 400), 4)).prefilled.tier
    assert (note.outcome, note.found) == (TierOutcome.CHEAPER, 384)
    assert (round(note.load_ms), round(note.compute_ms)) == (6000, 384)


def test_b2_abort_while_blocks_are_read() -> None:
    lab = TierLab()
    lab.answer(request("a", prompt(1, 400), 4))
    after = lab.restarted()
    after.work = 2
    gone = after.submit(request("b", prompt(1, 400), 20))
    other = after.submit(request("c", prompt(2, 100), 10))
    after.step()
    after.step()
    assert after.last.state.restoring == 1
    after.abort("b")
    assert gone.finished is None
    after.run()
    assert gone.done.reason is FinishReason.CANCELLED
    assert gone.prefill is None
    assert other.text == reference(request("c", prompt(2, 100), 10))
    after.work = 1 << 30
    after.run()
    after.step()
    after.assert_at_rest()
    # What had come stays for the next.
    assert after.answer(request("d", prompt(1, 400), 20)).text == reference(request("d", prompt(1, 400), 20))


def test_b2_pages_stay_while_they_are_copied_to() -> None:
    lab = TierLab()
    lab.answer(request("a", prompt(1, 400), 4))
    after = lab.restarted()
    held: list[int] = []
    ended = after.runner.copies_done
    after.runner.copies_done = lambda *, wait: []  # type: ignore[method-assign]
    after.submit(request("b", prompt(1, 400), 20))
    after.step()
    after.step()
    lease = after.scheduler.queues.restoring[0].lease
    assert lease
    held = lease.pages[:]
    assert held
    after.abort("b")
    assert not set(held) & after.scheduler.cache._pool.free_pages()
    after.runner.copies_done = ended  # type: ignore[method-assign]
    after.step()
    assert set(held) & after.scheduler.cache._pool.free_pages() or after.scheduler.cache.evictable_pages
    after.step()
    after.run()
    after.assert_at_rest()


def test_twins_restore_once() -> None:
    lab = TierLab()
    lab.answer(request("a", prompt(1, 400), 4))
    after = lab.restarted()
    after.work = 1
    one = after.submit(request("b", prompt(1, 400), 10))
    two = after.submit(request("c", prompt(1, 400), 10))
    after.run()
    assert one.text == two.text == reference(request("b", prompt(1, 400), 10))
    assert (one.prefilled.disk_hit, two.prefilled.gpu_hit, two.prefilled.disk_hit) == (384, 399, 0)
    assert after.last.counters.restored_blocks == 6


def test_d3_full_pool_with_loads_under_way() -> None:
    lab = TierLab(256, num_buffers=4)
    for i in range(10):
        lab.answer(request(f"seed{i}", prompt(i, 300), 4))
    lab.run()
    after = lab.restarted(96, max_running=6, num_buffers=3)
    after.work = 1
    outcomes = [after.submit(request(f"r{i}", prompt(i % 10, 300 + i), 12)) for i in range(50)]
    quiet = 0
    while any(outcome.finished is None for outcome in outcomes):
        before = after.last.counters.generated
        after.step()
        quiet = 0 if after.last.counters.generated > before else quiet + 1
        assert quiet < 100, "a token in every second"
    for i, outcome in enumerate(outcomes):
        assert outcome.text == reference(request(f"r{i}", prompt(i % 10, 300 + i), 12))
    after.run()
    after.assert_at_rest()


def test_writes_are_given_up_while_the_disk_takes_none_and_go_on_by_themselves() -> None:
    lab = TierLab()
    lab.tier.accepts = False
    lab.answer(request("a", prompt(1, 400), 4))
    assert not lab.tier.stored
    assert lab.last.counters.spill_failures == 0
    lab.tier.accepts = True
    lab.answer(request("b", prompt(2, 100), 4))
    lab.run()
    assert len(lab.tier.stored) == 6 + 1


def test_a_failed_write_is_counted_and_tried_again_after_the_next_turn() -> None:
    lab = TierLab()
    bad: list[Block] = []

    def fails_once(block: Block) -> bool:
        bad.append(block)
        return len(bad) != 3

    lab.tier.write_ok = fails_once
    lab.answer(request("a", prompt(1, 400), 4))
    assert lab.last.counters.spill_failures <= 1
    lab.answer(request("b", prompt(1, 400), 4))
    assert len(lab.tier.stored) == 6
    assert lab.scheduler.tiering is not None
    assert lab.scheduler.tiering.spiller.counts.failures == 1


def test_eviction_saves_what_was_not_written() -> None:
    lab = TierLab(num_buffers=16)
    lab.tiering.spiller.want = lambda *args: None  # type: ignore[method-assign]
    lab.answer(request("a", prompt(1, 400), 4))
    assert not lab.tier.stored
    fill(lab)
    assert lab.answer(request("b", prompt(1, 400), 4)).prefilled.disk_hit == 384
    assert lab.last.counters.dropped_blocks == 0


def test_eviction_without_a_free_buffer_drops_and_counts() -> None:
    lab = TierLab(num_buffers=1)
    lab.tiering.spiller.want = lambda *args: None  # type: ignore[method-assign]
    lab.work = 0
    lab.answer(request("a", prompt(1, 400), 4))
    fill(lab)
    assert lab.last.counters.dropped_blocks > 0
    outcome = lab.submit(request("b", prompt(1, 400), 4))
    lab.work = 1 << 30
    lab.run()
    assert outcome.text == reference(request("b", prompt(1, 400), 4))


def test_write_through_stores_while_it_generates() -> None:
    lab = TierLab(write_through=True)
    lab.submit(request("a", prompt(1, 200), 500))
    for _ in range(150):
        lab.step()
    assert len(lab.tier.stored) >= 4
    lab.abort("a")
    lab.run()


def test_t1_another_namespace_finds_nothing_on_disk() -> None:
    lab = TierLab()
    lab.answer(request("a", prompt(1, 400), 4, namespace="alice"))
    after = lab.restarted()
    theirs = after.answer(request("b", prompt(1, 400), 4, namespace="bob"))
    assert (theirs.prefilled.gpu_hit, theirs.prefilled.disk_hit) == (0, 0)
    assert after.answer(request("c", prompt(1, 400), 4, namespace="alice")).prefilled.disk_hit == 384


def test_a_shared_prompt_comes_back_for_everybody() -> None:
    lab = TierLab()
    shared = prompt(7, 130)
    lab.scheduler.cache.share(shared)
    lab.answer(request("a", [*shared, *prompt(1, 100)], 4, namespace="alice"))
    after = lab.restarted()
    after.scheduler.cache.share(shared)
    theirs = after.answer(request("b", [*shared, *prompt(2, 100)], 4, namespace="bob"))
    assert theirs.prefilled.disk_hit == 128
    assert theirs.text == reference(request("b", [*shared, *prompt(2, 100)], 4))


def test_i_stop_leaves_nothing_behind_that_no_history_has() -> None:
    lab = TierLab()
    plain = lab.answer(request("a", prompt(1, 60), 40))
    stop = plain.text[20:24]
    cut = TierLab()
    ended = cut.answer(request("b", prompt(1, 60), 40, stop=(stop,)))
    assert ended.done.reason is FinishReason.STOP
    visible = [*prompt(1, 60), *ended.done.token_ids]
    longer = [*visible, *[int(c) for c in plain.text[len(ended.text) :].encode()]]
    found = cut.scheduler.cache.match_len(longer, request("b", [1], 1).namespace)
    assert found <= -(-len(visible) // 16) * 16
