"""The most that a turn can cost, to be reserved before it runs. Integers only."""

from chatd.store.prices import PriceBook, nano_cost

ROUNDED_UP = 2
"""The prompt's three buckets are each rounded by at most half a nano-unit, and so is their sum here."""


def most_nano(book: PriceBook, model: str, prompt_len: int, max_tokens: int) -> int:
    """No bill of a turn with such a prompt and at most ``max_tokens`` of output is above this.

    ValueError if the book has no price for the model.
    """
    prices = book.prices_of(model)
    if prices.computed is None or prices.gpu_hit is None or prices.disk_hit is None or prices.output is None:
        raise ValueError(f"price book {book.version} has no price for {model}")
    dearest = max(prices.computed + prices.write, prices.gpu_hit, prices.disk_hit)
    return nano_cost(prompt_len, dearest) + ROUNDED_UP + nano_cost(max_tokens, prices.output)
