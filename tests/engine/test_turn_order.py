"""Fairness between owners: the order by itself, and what it makes of a scheduler under load."""

import random

from hypothesis import given
from hypothesis import strategies as st

from chatd.engine.messages import Submit
from chatd.engine.turn_order import TurnOrder
from tests.support.engines import request, toy_scheduler
from tests.support.lab import Lab, prompt
from tests.support.lab import reference as cold


def owned(owner: str, number: int, max_tokens: int = 8) -> Submit:
    return request(f"{owner}{number}", prompt(hash_of(owner) + number, 20), max_tokens, namespace=owner)


def hash_of(owner: str) -> int:
    return 1000 * sum(owner.encode())


def begun(lab: Lab) -> list[str]:
    """Who has begun, in order of the last step that said so."""
    return [rid for rid, outcome in lab.outcomes.items() if outcome.prefill is not None]


def test_an_owner_alone_is_served_in_order_of_arrival() -> None:
    order = TurnOrder()
    assert [order.take("a") for _ in range(4)] == [0, 1, 2, 3]


def test_a_newcomer_goes_before_a_pile() -> None:
    order = TurnOrder()
    pile = [order.take("a") for _ in range(50)]
    order.serve(pile[7])
    assert order.take("b") == pile[7]
    assert order.take("a") == pile[-1] + 1


def test_what_is_taken_back_costs_nothing() -> None:
    order = TurnOrder()
    pile = [order.take("a") for _ in range(50)]
    order.serve(pile[0])
    while pile:
        pile.pop()
        order.leave("a", pile)
    assert order.take("a") <= order.take("b") + 1


Event = tuple[str, int]


@given(st.lists(st.tuples(st.sampled_from(["ask", "serve", "leave"]), st.integers(0, 3)), max_size=80))
def test_laws_of_the_order(events: list[Event]) -> None:
    """No newcomer comes before one who began; between any two owners who wait, turns are shared."""
    waiting: list[tuple[int, int, int]] = []
    order, served, arrivals = TurnOrder(), -1, 0
    for what, pick in events:
        if what == "ask":
            turn = order.take(str(pick))
            assert turn >= served
            mine = [one[0] for one in waiting if one[2] == pick]
            assert all(turn > other for other in mine)
            waiting.append((turn, arrivals, pick))
            arrivals += 1
        elif waiting and what == "serve":
            waiting.sort()
            served = max(served, waiting[0][0])
            order.serve(waiting.pop(0)[0])
        elif waiting:
            gone = waiting.pop(pick % len(waiting))
            order.leave(str(gone[2]), [one[0] for one in waiting if one[2] == gone[2]])
        waiting.sort()
        for turn, _, owner in waiting:
            ahead = [one for one in waiting if one[2] != owner and one[0] < turn]
            others = {one[2] for one in ahead}
            assert len(ahead) <= len(others) * (turn - max(0, served))


def test_fifty_requests_of_one_account_do_not_starve_another() -> None:
    lab = Lab(toy_scheduler(256, 16, step_tokens=64, max_running=4))
    for number in range(50):
        lab.submit(owned("a", number))
    lab.step()
    lab.submit(owned("b", 0))
    while "b0" not in begun(lab):
        lab.step()
    assert len(begun(lab)) <= 4 + 4 + 1  # those that ran, those that took their places, and b
    lab.run()
    lab.assert_at_rest()


def test_two_piles_are_served_in_turns() -> None:
    lab = Lab(toy_scheduler(256, 16, step_tokens=32, max_running=1))
    submits = [owned("a", number, 4) for number in range(12)] + [
        owned("b", number, 4) for number in range(12)
    ]
    order: list[str] = []
    for submit in submits:
        lab.submit(submit)
    while lab.scheduler.has_work:
        lab.step()
        order += [rid for rid in begun(lab) if rid not in order]
    owners = [rid[0] for rid in order]
    for half in (owners[:12], owners[12:]):
        assert abs(half.count("a") - half.count("b")) <= 2
    assert [rid for rid in order if rid[0] == "a"] == [f"a{n}" for n in range(12)]


def test_keys_of_one_account_take_turns_too() -> None:
    lab = Lab(toy_scheduler(256, 16, step_tokens=64, max_running=2))
    for number in range(20):
        lab.submit(keyed("first", number))
    lab.step()
    lab.submit(keyed("second", 0))
    while "second0" not in begun(lab):
        lab.step()
    assert len(begun(lab)) <= 5
    lab.run()


def keyed(key: str, number: int) -> Submit:
    made = request(f"{key}{number}", prompt(number + len(key), 20), 8)
    return Submit(**{name: getattr(made, name) for name in made.__slots__ if name != "owner"}, owner=key)


def test_d2_storms_of_three_accounts_end_and_the_first_in_rank_always_advances() -> None:
    """Preemption among owners: all finish, each as if alone, none thrown out more than eight times."""
    lab = Lab(toy_scheduler(64, 16, step_tokens=48, max_running=8))
    rng = random.Random(5)
    submits = [owned(rng.choice("abc"), number, 400) for number in range(12)]
    for submit in submits:
        lab.submit(submit)
        lab.step()
    while lab.scheduler.has_work:
        before = [(req.rank, req.rid, len(req.ids), req.kv_len) for req in lab.scheduler.queues.running]
        lab.step()
        if before:
            _, rid, length, kv_len = min(before)
            req = lab.scheduler.queues.get(rid)
            assert req is None or (req.lease is not None and len(req.ids) + req.kv_len > length + kv_len)
    for submit in submits:
        outcome = lab.outcomes[submit.rid]
        assert outcome.done.preemptions <= 8
        assert outcome.text == cold(submit)
    lab.assert_at_rest()
