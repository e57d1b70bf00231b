"""A price book from a TOML file.

    version = "2026-12"            # names these prices for ever; new prices need a new name
    currency = "CNY"
    valid_from = 2026-12-01
    computed = 1.0                 # for a million prompt tokens that were computed
    gpu_hit = 0.1                  # for a million reused from the GPU
    disk_hit = 0.1                 # for a million restored from disk
    generated = 2.0                # for a million generated tokens

Decimals are read exactly: they never pass through a float.
"""

import datetime
import re
import tomllib
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any

from chatd.errors import SetupError
from chatd.store.prices import PriceBook

NANO = Decimal(10**9)
MOST = Decimal(10**6)
"""A price above a million units is a mistake."""

PRICES = ("computed", "gpu_hit", "disk_hit", "generated")


def load_prices(path: Path | None) -> PriceBook:
    """The book in ``path``, in which every key is wanted; the built-in one without a path.

    `SetupError` says which key is wrong and how.
    """
    if path is None:
        return PriceBook()
    try:
        values = tomllib.loads(path.read_text("utf-8"), parse_float=Decimal)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SetupError(f"The price book {path} cannot be read as TOML: {error}") from None
    names = [f.name for f in fields(PriceBook)]
    if odd := sorted(set(values) ^ set(names)):
        what = "does not know" if odd[0] in values else "lacks"
        raise SetupError(f"The price book {path} {what} {odd[0]}; it has exactly: {', '.join(names)}.")
    try:
        return PriceBook(**{name: _value(name, values[name]) for name in names})
    except ValueError as error:
        raise SetupError(f"The price book {path} has a wrong value: {error}.") from None


def _value(name: str, raw: object) -> Any:
    if name in PRICES:
        return _nano(name, raw)
    if name == "valid_from":
        if isinstance(raw, datetime.datetime) or not isinstance(raw, datetime.date):
            raise ValueError("valid_from has to be a day, such as 2026-12-01 (without quotes)")
        return raw.isoformat()
    pattern = r"[A-Z]{3}" if name == "currency" else r"[0-9A-Za-z._\-]{1,64}"
    if not isinstance(raw, str) or not re.fullmatch(pattern, raw):
        raise ValueError(
            "currency has to be three capitals" if name == "currency" else "version has to be a name"
        )
    return raw


def _nano(name: str, raw: object) -> int:
    price = Decimal("nan") if isinstance(raw, bool) or not isinstance(raw, int | Decimal) else Decimal(raw)
    if not price.is_finite() or not 0 <= price <= MOST:
        raise ValueError(f"{name} has to be a number from 0 to {MOST}")
    nano = price * NANO
    if nano != int(nano):
        raise ValueError(f"{name} has more than nine decimals")
    return int(nano)
