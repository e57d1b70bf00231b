"""SmolLM2 itself: in float32 token for token what transformers computes from the same weights; in bf16
the same but where two ids are nearly equally likely."""

from pathlib import Path

import pytest
import torch

from chatd.engine.plan import PageCopy, StepPlan
from chatd.model.load import open_model
from chatd.model.weights import Weights
from tests.support.driving import Driver, weights_of

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

ASKED = [
    "What is the capital of France? Answer briefly.",
    "Write a haiku about rain.",
    "Explain how a radix tree works to a ten year old.",
    "def fibonacci(n):",
    "List three prime numbers above 100 and say why each is prime.",
    "你好，请介绍一下你自己。",
    "Summarise the plot of Hamlet in two sentences.",
    "What is 17 * 23?",
    "Translate 'good morning' into Spanish, Italian and German.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes with 4 ingredients.",
    "Once upon a time, in a village by the sea,",
    "Name the planets of the solar system in order.",
    "Qu'est-ce que la photosynthèse ?",
    "What should I pack for a week in Iceland in March?",
    "Write a SQL query that counts the users of each country.",
    "Is it ever right to lie? Argue both sides.",
    "🙂🙃 what do these two mean?",
    "Complete: the quick brown fox",
    "Tell me a joke about computers.",
]
GAP_TOLERANCE = 0.25
"""Logits, in bf16: two ids closer than this may swap places (bf16 steps at 16..32 are 0.125)."""


@pytest.fixture(scope="module")
def prompts(model_path: Path) -> list[list[int]]:
    tokenizer = open_model(model_path).tokenizer()
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return [tokenizer.encode_text(f"{system}\nuser\n{text}\nassistant\n") for text in ASKED]


@pytest.fixture(scope="module")
def weights(model_path: Path) -> Weights:
    return weights_of(model_path, torch.float32)


@pytest.fixture(scope="module")
def theirs(model_path: Path) -> torch.nn.Module:
    """transformers' model with the weights that its own GGUF reader makes."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = load_gguf_checkpoint(str(model_path))["config"]
    config = {key: value for key, value in config.items() if not key.startswith("_") and key != "model_type"}
    with torch.device("meta"):
        names = LlamaForCausalLM(LlamaConfig(**config))
    tensors = load_gguf_checkpoint(str(model_path), return_tensors=True, model_to_load=names)["tensors"]
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model: torch.nn.Module = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict({name: torch.as_tensor(tensor) for name, tensor in tensors.items()})
    return model.eval()


def logits_of(theirs: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return torch.as_tensor(theirs(torch.tensor([ids])).logits[0])


def check_greedy(weights: Weights, theirs: torch.nn.Module, prompts: list[list[int]], count: int) -> None:
    """Each of our ids is the argmax of transformers' logits after all that went before."""
    answers = Driver(weights, len(prompts), 256).generate(prompts, count)
    single = Driver(weights, 1, 256)
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = prompt + answer[:-1]
        expected = logits_of(theirs, ids)
        assert answer == expected[len(prompt) - 1 :].argmax(-1).tolist()
        torch.testing.assert_close(single.logits(0, ids, 0, len(ids)), expected, atol=1e-3, rtol=0)


def test_fp32_greedy_equals_transformers(
    weights: Weights, theirs: torch.nn.Module, prompts: list[list[int]]
) -> None:
    check_greedy(weights, theirs, prompts[:4], 24)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_fp32_greedy_equals_transformers_20_by_64(
    weights: Weights, theirs: torch.nn.Module, prompts: list[list[int]]
) -> None:
    check_greedy(weights, theirs, prompts, 64)


def check_ways(weights: Weights, prompts: list[list[int]], count: int) -> None:
    """One-shot in a batch, in chunks, from shared pages, alone: the same ids."""
    batched = Driver(weights, len(prompts), 256).generate(prompts, count)
    assert Driver(weights, len(prompts), 256, 1).generate(prompts, count) == batched
    for chunk in (7, 16):
        assert Driver(weights, len(prompts), 256).generate(prompts, count, chunk) == batched
    for prompt, answer in zip(prompts, batched, strict=True):
        assert Driver(weights, 1, 256).generate([prompt], count) == [answer]
        assert cached(weights, prompt, count) == answer


def cached(weights: Weights, prompt: list[int], count: int) -> list[int]:
    """The answer by a request that shares another's full pages and copies part of its next one."""
    driver = Driver(weights, 2, 256)
    driver.prefill([prompt[:-3]])
    known, first = len(prompt) - 3, driver.row(0, prompt, 0, 1).pages
    full, slots = known // 16, known % 16
    own = driver.row(1, prompt, 0, 1).pages
    ids, start = list(prompt), known
    copies = [PageCopy(first[full], own[full], slots)] if slots else []
    for _ in range(count):
        row = driver.row(1, ids, start, len(ids) - start)
        row.pages = [*first[:full], *own[full:]]
        ids += driver.runner.launch(StepPlan(copies, [row])).wait()
        start, copies = len(ids) - 1, []
    return ids[len(prompt) :]


def test_fp32_chunked_cached_batched_alone_are_equal(weights: Weights, prompts: list[list[int]]) -> None:
    check_ways(weights, prompts[:3], 12)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_fp32_chunked_cached_batched_alone_are_equal_20_by_64(
    weights: Weights, prompts: list[list[int]]
) -> None:
    check_ways(weights, prompts, 64)


def check_gaps(weights: Weights, prompts: list[list[int]], count: int) -> int:
    """bf16: force decoded ids through one-shot prefill. Returns how many argmaxes differ."""
    answers = Driver(weights, len(prompts), 256).generate(prompts, count)
    driver, differing = Driver(weights, 1, 256), 0
    for prompt, answer in zip(prompts, answers, strict=True):
        logits = driver.logits(0, prompt + answer[:-1], 0, len(prompt) + count - 1)[len(prompt) - 1 :]
        chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        gap = logits.amax(-1) - chosen
        assert gap.max() <= GAP_TOLERANCE
        differing += int((gap > 0).sum())
    return differing


def test_bf16_decode_and_prefill_differ_only_at_near_ties(model_path: Path, prompts: list[list[int]]) -> None:
    assert check_gaps(weights_of(model_path, torch.bfloat16), prompts[:4], 24) < 10


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_bf16_decode_and_prefill_differ_only_at_near_ties_20_by_64(
    model_path: Path, prompts: list[list[int]]
) -> None:
    assert check_gaps(weights_of(model_path, torch.bfloat16), prompts, 64) < 60
