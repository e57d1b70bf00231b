from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatd.store.prices import PriceBook, nano_cost


def test_the_default_book_is_in_yuan() -> None:
    cost = PriceBook().cost(gpu_hit=1_000_000, disk_hit=2_000_000, computed=3_000_000, output=4_000_000)
    assert cost.currency == "CNY"
    assert cost.gpu_hit_nano == 100_000_000
    assert cost.disk_hit_nano == 200_000_000
    assert cost.computed_nano == 3_000_000_000
    assert cost.output_nano == 8_000_000_000
    assert cost.prompt_nano == 3_300_000_000
    assert cost.total_nano == 11_300_000_000
    assert cost.without_cache_nano == 14_000_000_000
    assert cost.saved_nano == 2_700_000_000


@pytest.mark.parametrize(
    ("tokens", "price", "nano"),
    [(0, 7, 0), (1, 499_999, 0), (1, 500_000, 1), (3, 500_000, 2), (1, 1_499_999, 1), (1, 1_500_000, 2)],
)
def test_a_bucket_is_rounded_half_up(tokens: int, price: int, nano: int) -> None:
    assert nano_cost(tokens, price) == nano


@given(tokens=st.integers(0, 10**9), price=st.integers(0, 10**12))
def test_rounding_is_the_nearest_integer(tokens: int, price: int) -> None:
    exact = Fraction(tokens * price, 1_000_000)
    off = nano_cost(tokens, price) - exact
    assert Fraction(-1, 2) < off <= Fraction(1, 2)


def test_each_bucket_is_rounded_once_not_their_sum() -> None:
    book = PriceBook(version="x", computed=500_000, gpu_hit=500_000, disk_hit=500_000, generated=0)
    cost = book.cost(gpu_hit=1, disk_hit=1, computed=1, output=1)
    assert cost.prompt_nano == 3
    assert cost.without_cache_nano == 2
    assert cost.output_nano == 0


def test_a_free_token_costs_an_explicit_zero() -> None:
    cost = PriceBook(version="free", computed=0, gpu_hit=0, disk_hit=0, generated=0).cost(
        gpu_hit=5, disk_hit=5, computed=5, output=5
    )
    assert (cost.total_nano, cost.without_cache_nano, cost.saved_nano) == (0, 0, 0)


def test_a_negative_price_is_refused() -> None:
    with pytest.raises(ValueError, match="generated"):
        PriceBook(version="x", generated=-1)
