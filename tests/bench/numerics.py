"""What a form of the weights costs: ``python -m tests.bench.numerics --model FILE --weights int4``.

Over English prose that comes with Python, in documents of a few hundred tokens: the Kullback-Leibler
divergence from the dequantised model in float32 on `reference`, in nats a position, how often the likeliest
token is another, and what becomes of the perplexity.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor

from chatd.engine.batch import build_batch
from chatd.engine.device import InlineDevice
from chatd.engine.messages import SamplingParams
from chatd.engine.plan import StepRow
from chatd.engine.staging import Stage
from chatd.ids import Rid
from chatd.model.decoder import Decoder
from chatd.model.kv_pool import KV_FORMS, KVPool, plan_pages
from chatd.model.load import ModelFile, WeightForm, load_weights, open_model, weight_form
from chatd.model.weights import Weights
from chatd_kernels import load_backend

CPU = torch.device("cpu")
PAGE_SIZE = 16
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True)
class Cost:
    """``divergence`` is a mean in nats; ``perplexity`` is ours over the reference's."""

    positions: int
    divergence: float
    differing: float
    perplexity: float


class Scorer:
    """Logits of all positions of a document, which is one chunk in a pool of its own."""

    def __init__(self, weights: Weights, kernels: str, kv: torch.dtype, most: int) -> None:
        plan = plan_pages(weights.config, kv, PAGE_SIZE, 1 << 30)
        self._pages = -(-most // PAGE_SIZE)
        self._pool = KVPool(weights.config, replace(plan, num_pages=self._pages), kv, CPU)
        self._decoder = Decoder(weights, load_backend(kernels))

    @torch.inference_mode()
    def logits(self, ids: list[int]) -> Tensor:
        """float32 ``[n, vocab]``."""
        row = StepRow(Rid("doc"), ids, 0, len(ids), list(range(self._pages)), True, len(ids), GREEDY)
        batch, _ = build_batch([row], PAGE_SIZE, Stage(InlineDevice()).place)
        every = replace(batch, sample_at=torch.arange(len(ids)))
        return self._decoder.forward(every, self._pool).float()


def documents(file: ModelFile, positions: int, length: int) -> Iterator[list[int]]:
    """About ``positions`` tokens in documents of ``length`` at most, each of at least 64."""
    tokenizer, left = file.tokenizer(), positions
    for name in sorted(topics):
        ids = tokenizer.encode_text(topics[name])[: min(length, max(left, 64))]
        if len(ids) < 64:
            continue
        yield ids
        left -= len(ids)
        if left <= 0:
            return


def compare(ours: Scorer, theirs: Scorer, texts: Iterator[list[int]]) -> Cost:
    count = divergence = differing = our_loss = their_loss = 0.0
    for ids in texts:
        one, two = (scorer.logits(ids).log_softmax(-1) for scorer in (ours, theirs))
        divergence += float((two.exp() * (two - one)).sum())
        differing += float((one.argmax(-1) != two.argmax(-1)).sum())
        target = torch.tensor(ids[1:])[:, None]
        our_loss -= float(one[:-1].gather(1, target).sum())
        their_loss -= float(two[:-1].gather(1, target).sum())
        count += len(ids)
    return Cost(int(count), divergence / count, differing / count, math.exp((our_loss - their_loss) / count))


def measure(path: Path, form: str, kernels: str, kv: str, positions: int, length: int = 500) -> Cost:
    """Of the model at ``path``. ``kv`` is a name of `KV_FORMS`."""
    file = open_model(path)
    made = weight_form(form, CPU, file)
    exact = WeightForm(torch.float32)
    scorers = [
        Scorer(load_weights(file, dtype=one.dtype, bits=one.bits, device=CPU), name, dtype, length)
        for one, name, dtype in ((made, kernels, KV_FORMS[kv]), (exact, "reference", torch.float32))
    ]
    return compare(scorers[0], scorers[1], documents(file, positions, length))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--kernels", default="cpu")
    parser.add_argument("--kv-dtype", default="bf16", choices=list(KV_FORMS))
    parser.add_argument("--positions", type=int, default=10_000)
    options = parser.parse_args()
    cost = measure(options.model, options.weights, options.kernels, options.kv_dtype, options.positions)
    print(
        f"{options.weights} on {options.kernels}, KV in {options.kv_dtype}, {cost.positions} positions: "
        f"KL {cost.divergence:.4f}, another likeliest token at {cost.differing:.1%}, "
        f"perplexity {cost.perplexity - 1:+.2%}"
    )


if __name__ == "__main__":
    main()
