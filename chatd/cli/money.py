"""Nano-units of a currency as people read them. Exact integers in, text out; no floats."""

NANO = 1_000_000_000
PLACES = 9


def fixed(nano: int, places: int = 6) -> str:
    """``places`` decimals, rounded half up: 68_500 -> '0.000069'."""
    step = 10 ** (PLACES - places)
    steps = (abs(nano) + step // 2) // step
    whole, rest = divmod(steps, 10**places)
    return f"{'-' if nano < 0 and steps else ''}{whole:,}.{rest:0{places}d}"


def short(nano: int) -> str:
    """Two digits that count for small amounts, cents from one unit on: 68_500 -> '0.000069'."""
    zeros = PLACES - len(str(abs(nano)))
    return fixed(nano, min(PLACES, max(2, zeros + 2))) if nano else "0"
