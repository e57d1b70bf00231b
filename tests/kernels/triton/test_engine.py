"""The engine on Triton kernels: a short chat of a tiny random model, token for token as on `reference`."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from chatd.engine.messages import Finished, SamplingParams, Submit
from chatd.engine.runner import TorchRunner
from chatd.engine.scheduler import Scheduler
from chatd.ids import Namespace, Rid
from chatd_kernels import load_backend
from tests.support.driving import pool_of, weights_of
from tests.support.engines import VOCAB_SIZE, toy_scheduler
from tests.support.tiny_models import write_folder

GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(temperature=0.9, top_k=50, top_p=0.95, repetition_penalty=1.1, seed=7)
ANSWER_LEN = 5
CONTEXT_LEN = 200


class Chat:
    """A scheduler and a runner; one page more than a conversation may copy from is enough."""

    def __init__(
        self,
        folder: Path,
        backend: str,
        page_size: int,
        step_tokens: int,
        *,
        kv_dtype: torch.dtype = torch.float32,
        graphs: bool = False,
    ) -> None:
        weights = weights_of(folder)
        pool = pool_of(weights, 32 * page_size, page_size, kv_dtype)
        self.scheduler: Scheduler = toy_scheduler(
            pool.num_pages, page_size, step_tokens=step_tokens, max_running=4, context_length=CONTEXT_LEN
        )
        self.runner = TorchRunner(weights, pool, load_backend(backend))
        if graphs:
            self.runner.capture(4, CONTEXT_LEN, lambda share, what: None)
        self.turns = self.gpu_hit = self.copies = 0

    def run(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[int]]:
        """Answers to prompts that are in flight together."""
        for i, ids in enumerate(prompts):
            rid = Rid(f"{self.turns}-{i}")
            self.scheduler.submit(Submit(rid, Namespace("a"), tuple(ids), params, ANSWER_LEN))
        answers: dict[str, list[int]] = {}
        while self.scheduler.has_work:
            plan = self.scheduler.schedule()
            self.copies += len(plan.copies)
            out = self.scheduler.commit(plan, self.runner.launch(plan).wait())
            answers |= {u.rid: list(u.token_ids) for u in out.updates if isinstance(u, Finished)}
            self.gpu_hit = out.counters.gpu_hit
        self.turns += 1
        return [answers[f"{self.turns - 1}-{i}"] for i in range(len(prompts))]


def converse(chat: Chat, params: SamplingParams) -> list[list[int]]:
    """Two conversations at once, two turns each; the second turn reuses pages and copies a part of one."""
    first = [list(range(3, 26)), list(range(40, 47))]
    answers = chat.run(first, params)
    second = [[*a, *b, 9, 8, 7] for a, b in zip(first, answers, strict=True)]
    # A prompt that parts from the first one inside a page is a copy on write.
    second.append([*first[0][:-2], 99, 98])
    answers += chat.run(second, params)
    assert chat.gpu_hit > 0
    assert chat.copies > 0
    return answers


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize(("page_size", "step_tokens"), [(4, 64), (16, 11)])
def test_a_chat_equals_reference(
    tmp_path: Path, page_size: int, step_tokens: int, params: SamplingParams
) -> None:
    folder = write_folder(tmp_path / "model", vocab_size=VOCAB_SIZE, num_key_value_heads=1, head_dim=20)
    want = converse(Chat(folder, "reference", page_size, step_tokens), params)
    assert converse(Chat(folder, "triton", page_size, step_tokens), params) == want
    assert any(len(set(answer)) > 1 for answer in want)


def test_a_chat_of_padded_decode_steps_on_int8_kv_equals_reference(tmp_path: Path) -> None:
    """Three rows in a step for four, keys split as the context length wants it, lengths read by kernels."""
    folder = write_folder(tmp_path / "model", vocab_size=VOCAB_SIZE, num_key_value_heads=1, head_dim=20)
    want = converse(Chat(folder, "reference", 16, 64, kv_dtype=torch.int8), GREEDY)
    assert converse(Chat(folder, "triton", 16, 64, kv_dtype=torch.int8, graphs=True), GREEDY) == want
