"""Price books: exact, complete, or refused with the reason."""

from pathlib import Path

import pytest

from chatd.errors import SetupError
from chatd.price_file import load_prices
from chatd.store.prices import PriceBook

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
        ({"computed": None}, "lacks computed"),
        ({"cashback": "1"}, "does not know cashback"),
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
