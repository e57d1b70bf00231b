import pytest

from chatd.ids import Namespace
from chatd.store.records import ROOT_KEY, chain_key, micros, rfc3339, title_of

ANN, BOB = Namespace("ann"), Namespace("bob")


def test_a_chain_key_depends_on_every_part_of_the_chain() -> None:
    first = chain_key(ANN, ROOT_KEY, "user", "hello")
    others = [
        chain_key(BOB, ROOT_KEY, "user", "hello"),
        chain_key(ANN, first, "user", "hello"),
        chain_key(ANN, ROOT_KEY, "assistant", "hello"),
        chain_key(ANN, ROOT_KEY, "user", "hello "),
        chain_key(ANN, ROOT_KEY, "user", ""),
    ]
    assert first == chain_key(ANN, ROOT_KEY, "user", "hello")
    assert len({first, *others}) == 6
    assert {len(key) for key in others} == {32}


def test_parts_cannot_be_shifted_between_fields() -> None:
    assert chain_key(Namespace("a"), b"", "user", "x") != chain_key(Namespace(""), b"a", "user", "x")
    assert chain_key(ANN, b"", "use", "rx") != chain_key(ANN, b"", "user", "x")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("", ""),
        (" \n\n", ""),
        ("Hello", "Hello"),
        ("\n  Hello \nworld", "Hello"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
        ("长" * 100, "长" * 59 + "…"),
    ],
)
def test_a_title_is_the_first_line_cut_at_60_characters(text: str, title: str) -> None:
    assert title_of(text) == title


def test_times_are_microseconds_and_rfc_3339_on_the_wire() -> None:
    assert micros(1_800_000_000.25) == 1_800_000_000_250_000
    assert rfc3339(1_800_000_000_250_000) == "2027-01-15T08:00:00.250000Z"
    assert rfc3339(0) == "1970-01-01T00:00:00.000000Z"
