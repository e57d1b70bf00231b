"""Random requests that are aborted or fail: in the end every text is its cold reference, as far as it got."""

from collections.abc import Sequence
from functools import lru_cache

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from chatd.engine.messages import FinishReason, Submit
from tests.support.engines import request
from tests.support.lab import Lab, reference

cold = lru_cache(maxsize=4096)(reference)


class AskingMachine(RuleBasedStateMachine):
    """Who extends it makes the lab, with a runner that fails for ``bad`` requests, and its own rules."""

    lab: Lab
    submits: list[Submit]
    bad: set[str]

    def ask(self, prompt: Sequence[int], max_tokens: int, namespace: str, seed: int) -> None:
        one = request(
            f"r{len(self.submits)}",
            prompt,
            max_tokens,
            namespace=namespace,
            seed=seed,
            temperature=float(seed > 0),
        )
        self.submits.append(one)
        self.lab.submit(one)

    @rule(pick=st.integers(0, 1000))
    def abort(self, pick: int) -> None:
        if self.submits:
            self.lab.abort(self.submits[pick % len(self.submits)].rid)

    @rule(pick=st.integers(0, 1000))
    def poison(self, pick: int) -> None:
        if self.submits:
            self.bad.add(self.submits[pick % len(self.submits)].rid)

    def assert_ended_as_cold(self) -> None:
        self.lab.assert_at_rest()
        for submit in self.submits:
            outcome = self.lab.outcomes[submit.rid]
            expected = cold(submit)
            match outcome.done.reason:
                case FinishReason.LENGTH:
                    assert outcome.text == expected
                case FinishReason.CANCELLED:
                    assert expected.startswith(outcome.text)
                case FinishReason.FAILED:
                    assert submit.rid in self.bad or outcome.done.error_code == "exceeds_kv_pool"
                    assert expected.startswith(outcome.text)
                case reason:
                    raise AssertionError(f"unexpected ending {reason}")
