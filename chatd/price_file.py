"""Price books from TOML files, and those that come with chatd.

    version = "2026-12"            # names these prices for ever; new prices need a new name
    currency = "CNY"
    valid_from = 2026-12-01
    computed = 1.0                 # for a million prompt tokens that were computed
    gpu_hit = 0.1                  # for a million reused from the GPU
    disk_hit = 0.1                 # for a million restored from disk
    output = 2.0                   # for a million generated tokens

    [models."a-model's name"]      # as many as wanted; what is not said is as above
    computed = 4.0

    [rules]                        # what counts as reused; without them each token does
    least_hit_len = 1024
    unit_len = 128

``write`` (on top of ``computed`` where a prompt is long enough to be cached), ``storage`` (a GiB of KV on
disk or pinned, for an hour) and ``note`` may be left out.
A server's book has a price for everything; one for ``chatd report --reprice`` may have gaps, which
show as n/a. Decimals are read exactly: they never pass through a float.
"""

import datetime
import difflib
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from chatd.errors import SetupError
from chatd.store.prices import PriceBook, Prices, Rules

NANO = Decimal(10**9)
MOST = Decimal(10**6)
"""A price above a million units is a mistake."""
MOST_LEN = 10**6

BUCKETS = ("computed", "gpu_hit", "disk_hit", "output")
PRICES = (*BUCKETS, "write")
RULES = ("least_hit_len", "unit_len")
HEAD = ("version", "currency", "valid_from")
KEYS = (*HEAD, *PRICES, "storage", "note", "models", "rules")
SHIPPED = Path(__file__).parent / "price_books"


def shipped_books() -> dict[str, Path]:
    """The books that mimic well-known tariffs, by the name that ``--reprice`` takes."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def load_prices(path: Path | None) -> PriceBook:
    """A server's book; the built-in one without a path.

    `SetupError` says which key is wrong and how.
    """
    if path is None:
        return PriceBook()
    book = load_book(path)
    for model, prices in (("", book.default), *book.models):
        if prices.missing:
            where = f" for {model}" if model else ""
            raise SetupError(
                f"The price book {path} lacks {prices.missing[0]}{where}; a server bills every token, so "
                f"its book has a price (0 will do) for each of: {', '.join(BUCKETS)}."
            )
    return book


def find_book(name_or_path: str) -> PriceBook:
    """What ``--reprice`` names: a book that comes with chatd, or a file."""
    books = shipped_books()
    path = books.get(name_or_path, Path(name_or_path))
    if name_or_path not in books and not path.is_file():
        near = difflib.get_close_matches(name_or_path, books, n=1)
        hint = f"did you mean {near[0]}?" if near else f"chatd comes with: {', '.join(books)}."
        raise SetupError(f"There is no price book {name_or_path}; {hint}")
    return load_book(path)


def load_book(path: Path) -> PriceBook:
    """A book that may lack prices. `SetupError` says which key is wrong and how."""
    try:
        values = tomllib.loads(path.read_text("utf-8"), parse_float=Decimal)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SetupError(f"The price book {path} cannot be read as TOML: {error}") from None
    try:
        return _book(values)
    except ValueError as error:
        raise SetupError(f"The price book {path} {error}.") from None


def changed(book: PriceBook, changes: Mapping[str, object]) -> PriceBook:
    """``book`` as if it had said ``changes`` (of its prices and rules), for every model.

    ValueError for a key that is no price and no rule, or a value that is out of its range.
    """
    _check_keys(changes, (*PRICES, "storage", *RULES), "")
    prices = {name: _nano(name, changes[name]) for name in PRICES if name in changes}
    rules = {name: _length(name, changes[name]) for name in RULES if name in changes}
    flat: dict[str, Any] = {"generated" if name == "output" else name: nano for name, nano in prices.items()}
    if "storage" in changes:
        flat["storage"] = _nano("storage", changes["storage"])
    models = tuple((model, replace(theirs, **prices)) for model, theirs in book.models)
    return replace(book, models=models, rules=replace(book.rules, **rules), **flat)


def parse_changes(texts: Collection[str]) -> dict[str, object]:
    """``['disk_hit=0.05,output=3', 'unit_len=128']`` as a mapping. ValueError if one is not so."""
    found: dict[str, object] = {}
    for part in (part for text in texts for part in text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not value:
            raise ValueError(f"{part.strip() or 'nothing'} is not of the form disk_hit=0.05")
        try:
            found[name] = int(value) if name in RULES else Decimal(value)
        except (ValueError, InvalidOperation):
            raise ValueError(f"{value} is not a number") from None
    return found


def _book(values: Mapping[str, Any]) -> PriceBook:
    values = _renamed(values)
    _check_keys(values, KEYS, "")
    if lacking := [name for name in HEAD if name not in values]:
        raise ValueError(f"lacks {lacking[0]}; every book has: {', '.join(HEAD)}")
    rules = _table("rules", values.get("rules", {}))
    _check_keys(rules, RULES, "in [rules] ")
    default = _prices(values, Prices(None, None, None, None))
    return PriceBook(
        version=_name("version", values["version"], r"[0-9A-Za-z._\-]{1,64}", "a name"),
        currency=_name("currency", values["currency"], r"[A-Z]{3}", "three capitals"),
        valid_from=_day(values["valid_from"]),
        computed=default.computed,
        gpu_hit=default.gpu_hit,
        disk_hit=default.disk_hit,
        generated=default.output,
        write=default.write,
        storage=_nano("storage", values["storage"]) if "storage" in values else None,
        models=tuple(sorted(_models(values.get("models", {}), default))),
        rules=Rules(**{name: _length(name, raw) for name, raw in rules.items()}),
        note=_name("note", values.get("note", ""), r"(?s).{0,500}", "a text"),
    )


def _models(raw: object, default: Prices) -> list[tuple[str, Prices]]:
    found = []
    for model, own in _table("models", raw).items():
        own = _renamed(_table(f'models."{model}"', own))
        where = f'in [models."{model}"] '
        _check_keys(own, PRICES, where)
        try:
            found.append((model, _prices(own, default)))
        except ValueError as error:
            raise ValueError(f"{where}{error}") from None
    return found


def _prices(values: Mapping[str, object], default: Prices) -> Prices:
    return replace(default, **{name: _nano(name, values[name]) for name in PRICES if name in values})


def _renamed(values: Mapping[str, object]) -> dict[str, object]:
    """``generated`` is what ``output`` was called first."""
    if "generated" in values and "output" in values:
        raise ValueError("has both output and generated, which are the same")
    return {"output" if name == "generated" else name: value for name, value in values.items()}


def _check_keys(values: Mapping[str, object], known: Collection[str], where: str) -> None:
    if odd := sorted(set(values) - set(known)):
        raise ValueError(f"{where}does not know {odd[0]}; it knows: {', '.join(known)}")


def _table(name: str, raw: object) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ValueError(f"has {name} as a value; it has to be a table, such as [{name}]")
    return raw


def _name(name: str, raw: object, pattern: str, words: str) -> str:
    if not isinstance(raw, str) or not re.fullmatch(pattern, raw):
        raise ValueError(f"has a wrong value: {name} has to be {words}")
    return raw


def _day(raw: object) -> str:
    if isinstance(raw, datetime.datetime) or not isinstance(raw, datetime.date):
        raise ValueError("has a wrong value: valid_from has to be a day, such as 2026-12-01 (without quotes)")
    return raw.isoformat()


def _nano(name: str, raw: object) -> int:
    price = Decimal("nan") if isinstance(raw, bool) or not isinstance(raw, int | Decimal) else Decimal(raw)
    if not price.is_finite() or not 0 <= price <= MOST:
        raise ValueError(f"has a wrong value: {name} has to be a number from 0 to {MOST}")
    nano = price * NANO
    if nano != int(nano):
        raise ValueError(f"has a wrong value: {name} has more than nine decimals")
    return int(nano)


def _length(name: str, raw: object) -> int:
    least = 1 if name == "unit_len" else 0
    if isinstance(raw, bool) or not isinstance(raw, int) or not least <= raw <= MOST_LEN:
        raise ValueError(f"has a wrong value: {name} has to be a whole number from {least} to {MOST_LEN}")
    return raw
