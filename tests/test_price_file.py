"""Price books: exact, complete, or refused with the reason."""

from pathlib import Path

import pytest

from chatd.errors import SetupError
from chatd.price_file import changed, find_book, load_book, load_prices, parse_changes, shipped_books
from chatd.store.books import to_book, to_row
from chatd.store.prices import PriceBook, Prices, Rules

LINES = {
    "version": '"2026-12"',
    "currency": '"EUR"',
    "valid_from": "2026-12-01",
    "computed": "0.1",
    "gpu_hit": "0.000000001",
    "disk_hit": "0",
    "generated": "2.000000003",
}


def book(tmp_path: Path, **changed: str | None) -> Path:
    lines = {**LINES, **changed}
    path = tmp_path / "prices.toml"
    path.write_text("".join(f"{name} = {value}\n" for name, value in lines.items() if value is not None))
    return path


def test_decimals_are_exact(tmp_path: Path) -> None:
    assert load_prices(book(tmp_path)) == PriceBook(
        "2026-12", "EUR", "2026-12-01", computed=100_000_000, gpu_hit=1, disk_hit=0, generated=2_000_000_003
    )


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({"computed": None}, "lacks computed; a server bills every token"),
        ({"version": None}, "lacks version"),
        ({"cashback": "1"}, "does not know cashback"),
        ({"output": "1"}, "both output and generated"),
        ({"models": "3"}, "has models as a value"),
        ({"storage": "-1"}, "storage has to be a number"),
        ({"note": "3"}, "note has to be a text"),
        ({"rules": "{ unit_len = 0 }"}, "unit_len has to be a whole number from 1"),
        ({"rules": "{ unit_len = 1.5 }"}, "unit_len has to be a whole number"),
        ({"rules": "{ least = 1 }"}, r"in \[rules\] does not know least"),
        ({"models": "{ big = { computd = 1 } }"}, r'in \[models."big"\] does not know computd'),
        ({"models": "{ big = { computed = -1 } }"}, r'in \[models."big"\] has a wrong value: computed'),
        ({"computed": '"1.0"'}, "computed has to be a number"),
        ({"computed": "-1"}, "computed has to be a number"),
        ({"computed": "nan"}, "computed has to be a number"),
        ({"computed": "inf"}, "computed has to be a number"),
        ({"computed": "true"}, "computed has to be a number"),
        ({"computed": "1000001"}, "computed has to be a number"),
        ({"gpu_hit": "0.0000000001"}, "nine decimals"),
        ({"valid_from": '"2026-12-01"'}, "valid_from has to be a day"),
        ({"valid_from": "2026-12-01T00:00:00"}, "valid_from has to be a day"),
        ({"currency": '"euro"'}, "three capitals"),
        ({"version": '""'}, "version has to be a name"),
        ({"version": "="}, "cannot be read as TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, changed: dict[str, str | None], wanted: str) -> None:
    with pytest.raises(SetupError, match=wanted):
        load_prices(book(tmp_path, **changed))


WHOLE = """
version = "x"
currency = "EUR"
valid_from = 2026-12-01
computed = 1
gpu_hit = 0.1
disk_hit = 0.2
output = 2
write = 0.25
storage = 0.01
note = "Ours."

[models."big one"]
output = 6
write = 0

[rules]
least_hit_len = 1024
unit_len = 128
"""


def test_models_rules_and_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(WHOLE)
    found = load_prices(path)
    assert found.prices_of("any") == Prices(10**9, 10**8, 2 * 10**8, 2 * 10**9, 250_000_000)
    assert found.prices_of("big one") == Prices(10**9, 10**8, 2 * 10**8, 6 * 10**9, 0)
    assert (found.rules, found.storage, found.note) == (Rules(1024, 128), 10_000_000, "Ours.")
    assert to_book(to_row(found)) == found, "what the database keeps is the whole book"


def test_a_book_for_views_may_have_gaps_and_a_servers_may_not(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(WHOLE.replace("gpu_hit = 0.1\n", ""))
    assert load_book(path).prices_of("any").missing == ("gpu_hit",)
    with pytest.raises(SetupError, match="lacks gpu_hit; a server"):
        load_prices(path)


def test_the_shipped_books_are_whole_and_dated() -> None:
    assert set(shipped_books()) == {"anthropic-like", "deepseek-like", "gemini-like", "openai-like"}
    for name, path in shipped_books().items():
        found = load_prices(path)
        assert find_book(name) == found
        assert found.version.startswith(name)
        assert found.note.startswith("Rules of ")
        assert found.prices_of("").gpu_hit < found.prices_of("").computed  # type: ignore[operator]


BILLS = [
    # book, tokens from GPU, from disk, computed, generated; cost in nano-units, and without any cache
    ("deepseek-like", (0, 0, 100, 10), 100 * 2_000 + 10 * 3_000, 100 * 2_000 + 10 * 3_000),
    ("deepseek-like", (63, 0, 65, 0), 128 * 2_000, 128 * 2_000),
    ("deepseek-like", (70, 30, 28, 10), 64 * 200 + 64 * 2_000 + 10 * 3_000, 128 * 2_000 + 10 * 3_000),
    ("deepseek-like", (70, 58, 1, 0), 128 * 200 + 1 * 2_000, 129 * 2_000),
    ("openai-like", (1_023, 0, 1, 0), 1_024 * 1_250, 1_024 * 1_250),
    ("openai-like", (600, 500, 400, 20), 1_024 * 125 + 476 * 1_250 + 200_000, 1_500 * 1_250 + 200_000),
    ("openai-like", (1_152, 0, 1, 1), 1_152 * 125 + 1 * 1_250 + 10_000, 1_153 * 1_250 + 10_000),
    ("anthropic-like", (0, 0, 1_023, 10), 1_023 * 3_000 + 150_000, 1_023 * 3_000 + 150_000),
    ("anthropic-like", (0, 0, 1_024, 0), 1_024 * 3_750, 1_024 * 3_000),
    ("anthropic-like", (1_000, 24, 976, 10), 1_024 * 300 + 976 * 3_750 + 150_000, 2_000 * 3_000 + 150_000),
    ("anthropic-like", (1_023, 0, 977, 0), 2_000 * 3_750, 2_000 * 3_000),
    ("gemini-like", (1_023, 0, 1, 0), 1_024 * 300, 1_024 * 300),
    ("gemini-like", (25, 1_000, 1, 4), 1_025 * 30 + 1 * 300 + 10_000, 1_026 * 300 + 10_000),
]


@pytest.mark.parametrize(("name", "tokens", "cost", "without_cache"), BILLS)
def test_the_shipped_books_bill_by_the_rules_that_they_name(
    name: str, tokens: tuple[int, int, int, int], cost: int, without_cache: int
) -> None:
    """Below the least length nothing counts as reused, above it whole units; written is what is computed of a
    prompt that is long enough; without a cache nothing is reused and nothing written.
    """
    gpu_hit, disk_hit, computed, output = tokens
    bill = find_book(name).cost(gpu_hit=gpu_hit, disk_hit=disk_hit, computed=computed, output=output)
    assert (bill.total_nano, bill.without_cache_nano) == (cost, without_cache)
    assert bill.saved_nano == without_cache - cost


def test_changes_hold_for_every_model(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(WHOLE)
    found = changed(load_book(path), parse_changes(["output=9, disk_hit = 0", "unit_len=1"]))
    for model in ("any", "big one"):
        assert (found.prices_of(model).output, found.prices_of(model).disk_hit) == (9 * 10**9, 0)
    assert found.rules == Rules(1024, 1)


@pytest.mark.parametrize(
    "text", ["", "=", "output", "output=", "=3", "output=1,", "output=NaN", "unit_len=0.5"]
)
def test_changes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"not of the form|not a number|has to be"):
        changed(PriceBook(), parse_changes([text]))
