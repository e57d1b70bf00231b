"""W2: a malformed GGUF file is a clear error, at once, with next to no memory."""

import random
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatd.errors import ModelFileError
from chatd.model.gguf_file import GgufFile
from chatd.model.load import open_model
from tests.support.tiny_models import write_gguf

MAX_S = 1.0
MAX_BYTES = 64 << 20


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, items: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + items


def tensor(name: bytes, dims: list[int], kind: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
    shape = struct.pack(f"<I{len(dims)}Q", len(dims) if n_dims is None else n_dims, *dims)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


def gguf(
    keys: list[bytes], tensors: list[bytes], *, counts: tuple[int, int] | None = None, data: int = 4096
) -> bytes:
    n_tensors, n_keys = counts or (len(tensors), len(keys))
    head = struct.pack("<4sIQQ", b"GGUF", 3, n_tensors, n_keys) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32 + data)


HUGE = (2**31, 2**32 + 1, 2**40, 2**62, 2**63, 2**64 - 1)
BAD: dict[str, bytes] = {
    "empty": b"",
    "four bytes": b"GGUF",
    "not gguf": b"PK\x03\x04" + bytes(100),
    "version 1": struct.pack("<4sIQQ", b"GGUF", 1, 0, 0) + bytes(100),
    "big-endian version": struct.pack(">4sIQQ", b"GGUF", 3, 0, 0) + bytes(100),
    "no keys": gguf([], []),
    "unknown value type": gguf([key(b"a", 99, bytes(8))], []),
    "array of arrays": gguf([key(b"a", 9, array(9, 1, array(9, 1, array(4, 1, bytes(4)))))], []),
    "array of an unknown type": gguf([key(b"a", 9, array(77, 3))], []),
    "a key twice": gguf([key(b"a", 4, bytes(4))] * 2, []),
    "a key that is not utf-8": gguf([key(b"\xff\xfe", 4, bytes(4))], []),
    "a tensor without dimensions": gguf([], [tensor(b"t", [])]),
    "five dimensions": gguf([], [tensor(b"t", [1] * 5)]),
    "2^32-1 dimensions": gguf([], [tensor(b"t", [1], n_dims=2**32 - 1)]),
    "a dimension of 0": gguf([], [tensor(b"t", [0, 4])]),
    "dimensions that overflow": gguf([], [tensor(b"t", [2**33, 2**33])]),
    "dimensions that overflow to little": gguf([], [tensor(b"t", [2**32, 2**32, 4])]),
    "unknown tensor type": gguf([], [tensor(b"t", [32], kind=4242)]),
    "a row that is no whole block": gguf([], [tensor(b"t", [31], kind=3)]),
    "a tensor twice": gguf([], [tensor(b"t", [8]), tensor(b"t", [8], offset=32)]),
    "tensors that overlap": gguf([], [tensor(b"t", [64]), tensor(b"u", [64], offset=128)]),
    "a tensor that is not aligned": gguf([], [tensor(b"t", [8], offset=7)]),
    "a tensor past the end": gguf([], [tensor(b"t", [2000])]),
    "alignment 0": gguf([key(b"general.alignment", 4, struct.pack("<I", 0))], []),
    "alignment 48": gguf([key(b"general.alignment", 4, struct.pack("<I", 48))], []),
    "alignment as text": gguf([key(b"general.alignment", 8, text(b"32"))], []),
    "architecture as a number": gguf([key(b"general.architecture", 4, bytes(4))], []),
    "many tensors": gguf([], [tensor(b"%d" % i, [8], offset=32 * i) for i in range(20_000)], data=640_000),
    "many strings": gguf([key(b"a", 9, array(8, 900_000, bytes(8 * 900_000)))], []),
    "many keys": gguf([key(b"%d" % i, 8, text(b"x" * 1000)) for i in range(9_000)], []),
    "many long keys": gguf([key(b"%d" % i, 8, text(b"x" * 900_000)) for i in range(100)], []),
}
for huge in HUGE:
    BAD |= {
        f"{huge} keys": gguf([], [], counts=(0, huge)),
        f"{huge} tensors": gguf([], [], counts=(huge, 0)),
        f"a key of {huge} bytes": gguf([struct.pack("<Q", huge)], [], counts=(0, 1)),
        f"a string of {huge} bytes": gguf([key(b"a", 8, struct.pack("<Q", huge))], []),
        f"{huge} numbers": gguf([key(b"a", 9, array(4, huge))], []),
        f"{huge} strings": gguf([key(b"a", 9, array(8, huge))], []),
        f"a string of {huge} bytes in an array": gguf(
            [key(b"a", 9, array(8, 1, struct.pack("<Q", huge)))], []
        ),
        f"a dimension of {huge}": gguf([], [tensor(b"t", [huge])]),
        f"an offset of {huge}": gguf([], [tensor(b"t", [8], offset=huge // 32 * 32)]),
    }


def refuse(path: Path) -> ModelFileError:
    """Open a bad file; check that it is refused within the limits of time and memory."""
    tracemalloc.start()
    began = time.process_time()
    with pytest.raises(ModelFileError) as caught:
        open_model(path)
    spent, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Tracing alone makes it some times slower.
    assert spent <= 5 * MAX_S
    assert peak <= MAX_BYTES
    assert len(caught.value.message) < 600
    return caught.value


@pytest.mark.parametrize("name", BAD)
def test_w2_malformed_header(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(BAD[name])
    assert "bad.gguf" in refuse(path).message
    began = time.process_time()
    with pytest.raises(ModelFileError):
        open_model(path)
    assert time.process_time() - began <= MAX_S


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("good") / "model.gguf").read_bytes()


def check_cuts(good: bytes, points: list[int], path: Path) -> None:
    for at in points:
        path.write_bytes(good[:at])
        with pytest.raises(ModelFileError):
            open_model(path)


def test_w2_cut_anywhere(good: bytes, tmp_path: Path) -> None:
    header = good.index(b"blk.1.ffn_down.weight") + 200
    spots = random.Random(0)
    points = [*spots.sample(range(header), 80), *spots.sample(range(header, len(good)), 20)]
    check_cuts(good, [*points, 0, 1, len(good) - 1], tmp_path / "cut.gguf")


@pytest.mark.full
def test_w2_cut_at_1000_places(good: bytes, tmp_path: Path) -> None:
    check_cuts(good, random.Random(1).sample(range(len(good)), 1000), tmp_path / "cut.gguf")


EDITS = [b"\x00", b"\x01", b"\x09", b"\xff", bytes(8), b"\x7f" * 8, b"\xff" * 8]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_w2_fuzzed_header_opens_or_is_refused(good: bytes, tmp_path: Path, data: st.DataObject) -> None:
    """Any bytes changed anywhere in the header: nothing but ModelFileError, ever."""
    header = good.index(b"blk.1.ffn_down.weight") + 200
    changed = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, header))
        value = data.draw(st.sampled_from(EDITS))
        changed[at : at + len(value)] = value
    path = tmp_path / "fuzzed.gguf"
    path.write_bytes(changed)
    began = time.process_time()
    try:
        source = open_model(path).source
        assert isinstance(source, GgufFile)
        source.header.metadata()
    except ModelFileError:
        pass
    assert time.process_time() - began <= MAX_S


def test_messages_say_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([key(b"general.architecture", 8, text(b"mamba2"))], []))
    assert "'mamba2'" in refuse(path).message
    path.write_bytes(BAD["tensors that overlap"])
    assert "overlaps" in refuse(path).message
    path.write_bytes(BAD["a tensor past the end"])
    assert "cut short" in refuse(path).message
