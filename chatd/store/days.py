"""Days as the roll-ups count them: whole days in UTC since 1970-01-01, and as people write them."""

from datetime import UTC, date, datetime, timedelta

_EPOCH = date(1970, 1, 1)


def day_of(number: int) -> str:
    """20786 -> '2026-11-29'."""
    return (_EPOCH + timedelta(days=number)).isoformat()


def day_number(text: str) -> int:
    """'2026-11-29' -> 20786; ValueError for anything else."""
    if len(text) != len("2026-11-29"):
        raise ValueError(text)
    return (date.fromisoformat(text) - _EPOCH).days


def today(now: float) -> int:
    """The day of ``now`` (Unix seconds)."""
    return (datetime.fromtimestamp(now, UTC).date() - _EPOCH).days
