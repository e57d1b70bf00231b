"""The draw: filters, penalties, extremes, and that nothing but a row's own parameters matters."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from chatd_kernels import load_backend
from chatd_kernels.ops import BAD_ROW, LogitEdits, SampleParams
from chatd_kernels.reference.philox import philox, uniform

OPS = load_backend("reference")
VOCAB = 1000
COLUMNS = ("temperature", "top_k", "top_p", "min_p", "seeds", "positions")


def params(
    rows: int,
    *,
    temperature: float | list[float] = 1.0,
    top_k: int | list[int] = 0,
    top_p: float | list[float] = 1.0,
    min_p: float | list[float] = 0.0,
    seeds: list[int] | None = None,
    positions: list[int] | None = None,
) -> SampleParams:
    def full(value: float | list[float] | list[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(value if isinstance(value, list) else [value] * rows, dtype=dtype)

    temperatures = full(temperature, torch.float32)
    return SampleParams(
        temperature=temperatures,
        top_k=full(top_k, torch.int64),
        top_p=full(top_p, torch.float32),
        min_p=full(min_p, torch.float32),
        seeds=full(seeds or list(range(rows)), torch.int64),
        positions=full(positions or [5] * rows, torch.int64),
        all_greedy=bool((temperatures == 0).all()),
        any_filter=True,
    )


def draws(logits: torch.Tensor, count: int, **how: float | int) -> np.ndarray:
    """How often each id comes, of ``count`` draws with different seeds."""
    ids = OPS.sample(logits.expand(count, -1), params(count, **how), None)  # type: ignore[arg-type]
    return np.bincount(ids.numpy(), minlength=len(logits))


def test_philox_known_answers() -> None:
    """From the authors' test vectors (Random123, kat_vectors), philox4x32-10."""
    zero = torch.zeros(1, dtype=torch.int64)
    assert [int(w) for w in philox(zero, zero)] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_philox_agrees_with_arithmetic_on_python_integers() -> None:
    def by_hand(key: int, counter: int) -> list[int]:
        c, k = [counter & 0xFFFFFFFF, counter >> 32, 0, 0], [key & 0xFFFFFFFF, key >> 32]
        for _ in range(10):
            p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
            c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        return c

    keys = [1, 2**32 - 1, 2**63, 2**64 - 1, 0x1234567890ABCDEF]
    signed = torch.tensor([key - (key >> 63 << 64) for key in keys])
    counters = torch.tensor([0, 7, 2**31, 2**33, 8191])
    words = torch.stack(philox(signed, counters), 1).tolist()
    assert words == [by_hand(key, int(counter)) for key, counter in zip(keys, counters, strict=True)]


def test_uniform_is_uniform_over_seeds_and_positions() -> None:
    many = torch.arange(20_000)
    for numbers in (uniform(many, torch.full_like(many, 3)), uniform(torch.full_like(many, 3), many)):
        assert 0 <= float(numbers.min()) < float(numbers.max()) < 1
        counts = np.bincount((numbers * 20).long().numpy())
        assert chi_square(counts, np.full(20, 1 / 20)) < 45.3  # p = 0.0006 at 19 degrees of freedom


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    mean = expected * counts.sum()
    return float(((counts - mean) ** 2 / mean).sum())


def target(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """The distribution, by its definition."""
    weights = np.exp((logits - logits.max()) / temperature)
    keep = np.ones(len(logits), bool)
    order = np.argsort(-weights)
    if top_k:
        keep &= weights >= weights[order[top_k - 1]]
    kept = np.where(keep, weights, 0)
    if top_p < 1:
        reached = np.cumsum(kept[order]) / kept.sum() >= top_p
        keep &= weights >= weights[order[int(reached.argmax())]]
    keep &= weights >= min_p
    kept = np.where(keep, weights, 0)
    return np.asarray(kept / kept.sum())


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1, 0, 1, 0),
        (0.7, 0, 1, 0),
        (1, 3, 1, 0),
        (1, 0, 0.8, 0),
        (1, 0, 1, 0.2),
        (1.5, 6, 0.9, 0.05),
        (2, 8, 0.3, 0),
    ],
)
def test_draws_follow_the_distribution(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    logits = np.log(np.array([0.3, 0.2, 0.15, 0.12, 0.1, 0.07, 0.04, 0.02]))
    expected = target(logits, temperature, top_k, top_p, min_p)
    given = torch.tensor(logits, dtype=torch.float32)
    counts = draws(given, 20_000, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert counts[expected == 0].sum() == 0
    live = expected > 0
    assert live.sum() == 1 or chi_square(counts[live], expected[live]) < 24.3  # p = 0.001 at 7


def test_filters_agree_with_their_definition_on_large_vocabularies() -> None:
    torch.manual_seed(0)
    for spread in (0.1, 1.0, 4.0):
        logits = torch.randn(VOCAB) * spread
        for top_k, top_p, min_p in ((50, 1.0, 0.0), (0, 0.9, 0.0), (0, 1.0, 0.3), (400, 0.99, 1e-4)):
            counts = draws(logits, 3000, top_k=top_k, top_p=top_p, min_p=min_p)
            expected = target(logits.double().numpy(), 1.0, top_k, top_p, min_p)
            assert counts[expected == 0].sum() == 0
            assert counts[expected > 2 / VOCAB].all()


@pytest.mark.parametrize("how", [{"top_k": 1}, {"top_p": 0.0}, {"top_p": 1e-9}, {"min_p": 1.0}])
def test_the_narrowest_filters_leave_the_largest(how: dict[str, float]) -> None:
    torch.manual_seed(0)
    logits = torch.randn(VOCAB)
    assert draws(logits, 50, **how)[logits.argmax()] == 50


def test_ties_stay_together() -> None:
    logits = torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0])
    for how in ({"top_k": 1}, {"top_p": 0.1}, {"top_k": 2, "top_p": 0.5}):
        counts = draws(logits, 600, **how)
        assert counts[[0, 4]].sum() == 0
        assert counts[1:4].min() > 100
    assert OPS.sample(logits[None], params(1, temperature=0.0), None).tolist() == [1]


@pytest.mark.parametrize("temperature", [1e-45, 1e-9, 1e-5, 1e-4, 0.001])
def test_k2_tiny_temperatures_are_greedy(temperature: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, VOCAB) * 5
    how = params(40, temperature=temperature, top_p=0.9)
    assert torch.equal(OPS.sample(logits, how, None), logits.argmax(-1))


def test_huge_temperature_is_nearly_uniform() -> None:
    counts = draws(torch.tensor([-50.0, 0.0, 50.0]), 3000, temperature=1e9)
    assert counts.min() > 850


def test_k1_bad_rows_are_marked_and_the_others_are_as_alone() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, VOCAB)
    how = params(5, temperature=[0.0, 1.0, 1.0, 0.0, 1.0], top_p=0.9)
    good = OPS.sample(logits, how, None)
    broken = logits.clone()
    broken[1, 17] = torch.nan
    broken[2] = -torch.inf
    broken[3, 3] = torch.inf
    ids = OPS.sample(broken, how, None)
    assert ids.tolist() == [int(good[0]), BAD_ROW, BAD_ROW, BAD_ROW, int(good[4])]
    assert OPS.sample(broken[1:4], params(3, temperature=0.0), None).tolist() == [BAD_ROW] * 3


def test_ids_at_minus_infinity_are_never_drawn() -> None:
    logits = torch.full((VOCAB,), -torch.inf)
    logits[[3, 600, 999]] = torch.tensor([0.0, 0.1, -0.1])
    assert set(np.flatnonzero(draws(logits, 200))) == {3, 600, 999}
    assert OPS.sample(logits[None], params(1, temperature=0.0), None).tolist() == [600]


def test_j3_equal_seeds_are_equal_and_different_ones_differ() -> None:
    logits = torch.zeros(44, 49152)
    seeds = [42, 42, *range(100, 120), *(-1 - seed for seed in range(22))]
    ids = OPS.sample(logits, params(44, seeds=seeds), None).tolist()
    assert ids[0] == ids[1]
    assert len(set(ids)) == 43


def test_draws_depend_on_seed_and_position_only() -> None:
    """The same rows in any batch, order and company of parameters."""
    torch.manual_seed(0)
    logits = torch.randn(31, 5000) * 3
    how = params(
        31,
        temperature=[0.0 if i % 7 == 6 else 0.8 for i in range(31)],
        top_k=[(0, 40, 3)[i % 3] for i in range(31)],
        top_p=[(1.0, 0.9, 0.5, 0.99)[i % 4] for i in range(31)],
        min_p=[(0.0, 0.05)[i % 2] for i in range(31)],
        seeds=[i // 2 for i in range(31)],
        positions=[i % 5 for i in range(31)],
    )
    together = OPS.sample(logits, how, None)
    for picked in (range(31), range(30, -1, -1), [3], [5, 11, 7], [30, 0]):
        rows = torch.tensor(list(picked))
        columns = {name: getattr(how, name)[rows] for name in COLUMNS}
        part = replace(how, **columns)
        assert torch.equal(OPS.sample(logits[rows], part, None), together[rows])


def test_edits_are_applied_to_their_pairs_and_the_logits_kept() -> None:
    logits = torch.tensor([[2.0, 1.9, -1.0, 0.0], [2.0, 1.9, -1.0, 0.0], [2.0, 1.9, -1.0, 0.0]])
    before = logits.clone()
    edits = LogitEdits(
        rows=torch.tensor([0, 1, 1, 2]),
        tokens=torch.tensor([0, 0, 1, 2]),
        repetition=torch.tensor([1.3, 1.0, 2.0, 1.0]),
        offset=torch.tensor([0.0, -3.0, 0.0, 100.0]),
    )
    assert OPS.sample(logits, params(3, temperature=0.0), edits).tolist() == [1, 1, 2]
    assert torch.equal(logits, before)
    negative = LogitEdits(torch.tensor([0]), torch.tensor([2]), torch.tensor([4.0]), torch.tensor([0.0]))
    only = torch.tensor([[-9.0, -8.0, -3.0]])
    assert OPS.sample(only, params(1, temperature=0.0), negative).tolist() == [1]
