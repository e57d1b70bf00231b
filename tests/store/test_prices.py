from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatd.store.prices import PriceBook, Prices, Rules, nano_cost, storage_cost


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


def test_a_model_has_prices_of_its_own() -> None:
    book = PriceBook(version="x", models=(("big", Prices(10**9, 0, 0, 10**10)),))
    bill = {"gpu_hit": 10, "disk_hit": 10, "computed": 1000, "output": 1000}
    assert book.cost(model="big", **bill).total_nano == 1_000_000 + 10_000_000
    assert book.cost(model="small", **bill).total_nano == 1_000 + 1_000 + 1_000_000 + 2_000_000


@pytest.mark.parametrize(
    ("hit_len", "counted"),
    [(0, 0), (1023, 0), (1024, 1024), (1151, 1024), (1152, 1152), (5000, 4992)],
)
def test_a_hit_counts_from_a_least_length_in_whole_units(hit_len: int, counted: int) -> None:
    assert Rules(1024, 128).counted(hit_len) == counted


def test_what_does_not_count_is_billed_as_computed() -> None:
    """Units are counted from the start of the prompt, where the hits on the GPU are."""
    book = PriceBook(version="x", computed=10**6, gpu_hit=10, disk_hit=1000, generated=0, rules=Rules(64, 64))
    cost = book.cost(gpu_hit=100_000, disk_hit=100_010, computed=5, output=0)
    assert (cost.gpu_hit_nano, cost.disk_hit_nano, cost.computed_nano) == (1, 100, 15)
    assert cost.without_cache_nano == 200_015


def test_writing_costs_extra_where_a_prompt_is_long_enough() -> None:
    book = PriceBook(version="x", computed=10**6, write=250_000, rules=Rules(least_hit_len=1000))
    short, long = (book.cost(gpu_hit=0, disk_hit=0, computed=tokens, output=0) for tokens in (999, 1000))
    assert (short.computed_nano, long.computed_nano) == (999, 1250)
    assert long.without_cache_nano == 1000, "without a cache nothing is written to it"


def test_a_bucket_without_a_price_has_no_bill() -> None:
    book = PriceBook(version="x", disk_hit=None)
    assert book.default.missing == ("disk_hit",)
    assert book.quote(book.default, gpu_hit=1, disk_hit=0, computed=1, output=1) is None
    with pytest.raises(ValueError, match="no price"):
        book.cost(gpu_hit=1, disk_hit=0, computed=1, output=1)


@pytest.mark.parametrize("wrong", [{"least_hit_len": -1}, {"unit_len": 0}])
def test_rules_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="unit"):
        Rules(**wrong)


def test_storage_is_priced_by_the_gib_hour() -> None:
    assert storage_cost(2**30 * 3600, 10_000_000) == 10_000_000
    assert storage_cost(2**29 * 3600 * 24, 10_000_000) == 120_000_000
    assert storage_cost(0, 10**9) == 0
