"""Price books as rows: the four prices in columns, what few books have in one column of JSON."""

import json
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from chatd.store.prices import PriceBook, Prices, Rules

FLAT = ("version", "currency", "valid_from", "computed", "gpu_hit", "disk_hit", "generated")


def to_row(book: PriceBook) -> dict[str, object]:
    return {name: getattr(book, name) for name in FLAT} | {"details": _details(book)}


def _details(book: PriceBook) -> str:
    """Empty for a book that has nothing more than the four prices."""
    more: dict[str, object] = {}
    if book.write:
        more["write"] = book.write
    if book.storage is not None:
        more["storage"] = book.storage
    if book.rules != Rules():
        more["rules"] = astuple(book.rules)
    if book.models:
        more["models"] = {model: astuple(prices) for model, prices in book.models}
    return json.dumps(more, sort_keys=True) if more else ""


def to_book(row: Mapping[str, Any]) -> PriceBook:
    """What `to_row` made a row of; the note is gone."""
    more = json.loads(row["details"] or "{}")
    return PriceBook(
        **{name: row[name] for name in FLAT},
        write=more.get("write", 0),
        storage=more.get("storage"),
        rules=Rules(*more.get("rules", ())),
        models=tuple((model, Prices(*prices)) for model, prices in more.get("models", {}).items()),
    )
