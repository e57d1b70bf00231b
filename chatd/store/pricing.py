"""Views of prices: what turns would cost by another book, or if some prices were other than they are.

Nothing is stored. A view bills each row anew, by the rules and the rounding of any bill, as SQL: a million
rows take a second, which they would not one by one in Python.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, and_, case, func, literal_column

from chatd.store.prices import TOKENS_PER_PRICE, PriceBook, Prices
from chatd.store.rows import load_books
from chatd.store.schema import responses

Change = Callable[[PriceBook], PriceBook]


@dataclass(frozen=True, slots=True)
class View:
    """``book`` instead of the prices that turns were made at, and ``change`` to whatever book holds."""

    book: PriceBook | None = None
    change: Change | None = None

    def books(self, conn: Connection) -> dict[str, PriceBook]:
        """The book that holds for the rows of each price version."""
        books = load_books(conn)
        if self.book is not None:
            books = dict.fromkeys(books, self.book)
        if self.change is not None:
            books = {version: self.change(book) for version, book in books.items()}
        return books


AS_BILLED = View()
"""The prices that turns were made at."""


@dataclass(frozen=True, slots=True)
class Bill:
    """Expressions over the ledger's rows: a turn's cost is ``prompt + output``, without the cache it would be
    ``cold_prompt + output``. Where a price is missing they are of no use (see `has_prices`).
    """

    prompt: ColumnElement[Any]
    cold_prompt: ColumnElement[Any]
    output: ColumnElement[Any]


def has_prices(books: Mapping[str, PriceBook], price_version: str, model: str) -> bool:
    return not books[price_version].prices_of(model).missing


def is_one_currency(books: Mapping[str, PriceBook]) -> bool:
    """Every row has a price, in the same currency: bills need not be told apart by book and model."""
    is_whole = not any(
        prices.missing for book in books.values() for _, prices in (("", book.default), *book.models)
    )
    return is_whole and len({book.currency for book in books.values()}) == 1


def bill_of(books: Mapping[str, PriceBook]) -> Bill:
    """As `PriceBook.quote`, of the row's price version and model."""
    row = responses.c
    hit, prompt = row.gpu_hit + row.disk_hit, row.prompt_tokens
    least = _pick(books, lambda book, prices: book.rules.least_hit_len)
    unit = _pick(books, lambda book, prices: book.rules.unit_len)
    counted: ColumnElement[Any] = case((hit >= least, (hit // unit) * unit), else_=_number(0))
    from_gpu = func.min(row.gpu_hit, counted, type_=Integer)
    computed = _pick(books, lambda book, prices: prices.computed)
    written = _pick(books, lambda book, prices: (prices.computed or 0) + prices.write)
    return Bill(
        prompt=_nano(from_gpu, _pick(books, lambda book, prices: prices.gpu_hit))
        + _nano(counted - from_gpu, _pick(books, lambda book, prices: prices.disk_hit))
        + _nano(prompt - counted, case((prompt >= least, written), else_=computed)),
        cold_prompt=_nano(prompt, computed),
        output=_nano(row.output_tokens, _pick(books, lambda book, prices: prices.output)),
    )


def _nano(tokens: ColumnElement[Any], price: ColumnElement[Any]) -> ColumnElement[Any]:
    """`chatd.store.prices.nano_cost`."""
    return (tokens * price + _number(TOKENS_PER_PRICE // 2)) // _number(TOKENS_PER_PRICE)


def _pick(
    books: Mapping[str, PriceBook], what: Callable[[PriceBook, Prices], int | None]
) -> ColumnElement[Any]:
    """``what`` of the book and the model that a row has; a plain number where all agree."""
    values = {
        (version, model): what(book, prices) or 0
        for version, book in books.items()
        for model, prices in (*((model, prices) for model, prices in book.models), (None, book.default))
    }
    if len(set(values.values())) == 1:
        return _number(next(iter(values.values())))
    # A book's own models come before the rest of its models.
    whens = [(_is(version, model), _number(value)) for (version, model), value in values.items()]
    return case(*whens, else_=_number(0))


def _is(version: str, model: str | None) -> ColumnElement[bool]:
    is_book = responses.c.price_version == version
    return is_book if model is None else and_(is_book, responses.c.model == model)


def _number(value: int) -> ColumnElement[Any]:
    """In the SQL itself: a parameter is looked up for each row. With its type: ``//`` would floor a float."""
    return literal_column(str(int(value)), Integer)
