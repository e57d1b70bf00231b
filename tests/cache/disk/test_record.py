"""A header says what it was told, or nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatd.cache.disk.record import (
    DEAD_HEADER,
    HEADER_BYTES,
    IDS_BYTES,
    Header,
    checksum,
    stored_namespace,
    unpack,
)
from chatd.ids import Namespace

KEYS = st.binary(min_size=16, max_size=16).filter(any)


def header(**changes: object) -> Header:
    whole = Header(b"f" * 16, b"k" * 16, b"p" * 16, Namespace("n"), b"i" * IDS_BYTES, 9, b"s" * 16, 1.5)
    return whole._replace(**changes)  # type: ignore[arg-type]


@given(
    key=KEYS, parent=st.one_of(st.just(b""), KEYS), name=st.text(max_size=300), body_len=st.integers(1, 2**40)
)
def test_headers_round_trip(key: bytes, parent: bytes, name: str, body_len: int) -> None:
    namespace = stored_namespace(Namespace(name.encode("utf-8", "replace").decode()))
    one = header(key=key, parent=parent, namespace=namespace, body_len=body_len)
    packed = one.pack()
    assert len(packed) == HEADER_BYTES
    assert unpack(packed) == one


@given(at=st.integers(0, HEADER_BYTES * 8 - 1))
def test_any_flipped_bit_is_found(at: int) -> None:
    data = bytearray(header().pack())
    data[at // 8] ^= 1 << at % 8
    assert unpack(data) is None


@pytest.mark.parametrize("data", [b"", DEAD_HEADER, b"\xff" * HEADER_BYTES, header().pack()[:-1]])
def test_what_is_no_header_is_none(data: bytes) -> None:
    assert unpack(data) is None


@pytest.mark.parametrize("at", [0, 8, 12])
def test_other_formats_are_none_though_they_are_whole(at: int) -> None:
    """Magic, format version and tokens of a block."""
    data = bytearray(header().pack())
    data[at] ^= 1
    data[-16:] = checksum(data[:-16])
    assert unpack(data) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"key": b"short"},
        {"parent": b"short"},
        {"fingerprint": b""},
        {"ids": b"few"},
        {"namespace": "n" * 127},
    ],
)
def test_what_could_not_be_read_is_not_written(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="bytes"):
        header(**changes).pack()


def test_long_namespaces_stay_apart() -> None:
    long = [Namespace("n" * size) for size in (126, 127, 128, 1000)]
    stored = [stored_namespace(name) for name in long]
    assert stored[0] == long[0]
    assert len(set(stored)) == 4
    assert all(len(name.encode()) <= 126 for name in stored)
