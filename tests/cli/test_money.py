"""Money as text."""

import pytest

from chatd.cli.money import fixed, short


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (0, "0.000000"),
        (499, "0.000000"),
        (500, "0.000001"),
        (68_500, "0.000069"),
        (1_234_567_890_123, "1,234.567890"),
        (-68_500, "-0.000069"),
        (-1, "0.000000"),
    ],
)
def test_fixed(nano: int, text: str) -> None:
    assert fixed(nano) == text


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (0, "0"),
        (1, "0.000000001"),
        (68_500, "0.000069"),
        (99_900, "0.000100"),
        (12_345_678, "0.012"),
        (999_000_000, "1.00"),
        (12_345_678_901, "12.35"),
    ],
)
def test_short(nano: int, text: str) -> None:
    assert short(nano) == text
