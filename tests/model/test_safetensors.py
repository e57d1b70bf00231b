"""W1 and W2 for Hugging Face folders: malformed or dangerous files are refused, nothing in them is run."""

import contextlib
import json
import os
import pickle
import random
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatd.errors import ModelFileError
from chatd.model.load import open_model
from tests.support.tiny_models import write_folder

MAX_S = 1.0
MAX_BYTES = 64 << 20


class Canary:
    """Unpickling it makes the folder ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "model.pt", "model.pkl", "model.pth", "model.ckpt", "model.safetensors"]
)
def test_w1_pickle_canary(name: str, tmp_path: Path) -> None:
    """As the folder's weights, and given by its own name."""
    folder, canary = write_folder(tmp_path / "model"), tmp_path / "canary"
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Canary(canary)))
    for path in (folder, folder / name):
        with pytest.raises(ModelFileError, match=r"pickle|safetensors|give the folder"):
            open_model(path)
    assert not canary.exists()
    pickle.loads((folder / name).read_bytes())  # the canary sings when it is run
    assert canary.exists()


def test_w1_pickle_beside_good_weights_is_not_read(tmp_path: Path) -> None:
    folder, canary = write_folder(tmp_path / "model"), tmp_path / "canary"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Canary(canary)))
    assert open_model(folder).config.n_layers == 2
    assert not canary.exists()


def entry(dtype: object = "F32", shape: object = (4,), offsets: object = (0, 16)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def file_of(header: object, data: int = 16, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data)


BAD: dict[str, bytes] = {
    "empty": b"",
    "seven bytes": bytes(7),
    "no header": bytes(8),
    "a zip": b"PK\x03\x04" + bytes(100),
    "header of 2^63": file_of({"t": entry()}, length=2**63),
    "header of 2^64-1": file_of({"t": entry()}, length=2**64 - 1),
    "header longer than the file": file_of({"t": entry()}, length=1000),
    "not json": file_of(b"{" + b"\xff" * 50),
    "a list": file_of([entry()]),
    "deep": file_of(b'{"t":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "many brackets": file_of(b'{"t":[' + b"[]," * 2_000_000 + b"[]]}"),
    "many names": file_of(b"{" + b",".join(b'"%d":0' % i for i in range(700_000)) + b"}"),
    "overlap": file_of({"t": entry(), "u": entry(shape=[2], offsets=[8, 16])}),
    "hole": file_of({"t": entry(), "u": entry(offsets=[20, 36])}, data=36),
    "uncovered tail": file_of({"t": entry()}, data=17),
    "past the end": file_of({"t": entry(offsets=[0, 32], shape=[8])}),
    "backwards": file_of({"t": entry(offsets=[16, 0])}),
    "size of another shape": file_of({"t": entry(shape=[5])}),
    "overflowing shape": file_of({"t": entry(shape=[2**62, 4, 2**62])}),
    "negative dimension": file_of({"t": entry(shape=[-2, -2])}),
    "huge dimension": file_of({"t": entry(shape=[2**63])}),
    "many dimensions": file_of({"t": entry(shape=[1] * 1000 + [4])}),
    "dimension as text": file_of({"t": entry(shape=["4"])}),
    "offsets as text": file_of({"t": entry(offsets="016")}),
    "three offsets": file_of({"t": entry(offsets=[0, 8, 16])}),
    "dtype as number": file_of({"t": entry(dtype=7)}),
    "entry is a number": file_of({"t": 7}),
}


@pytest.mark.parametrize("name", BAD)
def test_w2_malformed_safetensors(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(BAD[name])
    began = time.process_time()
    with pytest.raises(ModelFileError, match=r"model\.safetensors: "):
        open_model(folder)
    assert time.process_time() - began <= MAX_S
    tracemalloc.start()
    with pytest.raises(ModelFileError):
        open_model(folder)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= MAX_BYTES


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("good") / "model")


def check_cuts(folder: Path, points: list[int]) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for at in points:
        path.write_bytes(whole[:at])
        with pytest.raises(ModelFileError):
            open_model(folder)


def test_w2_cut_anywhere(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    size = (folder / "model.safetensors").stat().st_size
    check_cuts(folder, [*random.Random(0).sample(range(size), 60), *range(12), size - 1])


@pytest.mark.full
def test_w2_cut_at_1000_places(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    check_cuts(folder, random.Random(1).sample(range((folder / "model.safetensors").stat().st_size), 1000))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(at=st.integers(0, 2300), value=st.binary(min_size=1, max_size=9))
def test_w2_fuzzed_header_opens_or_is_refused(good: Path, tmp_path: Path, at: int, value: bytes) -> None:
    changed = bytearray((good / "model.safetensors").read_bytes())
    changed[at : at + len(value)] = value
    folder = write_folder(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(changed)
    with contextlib.suppress(ModelFileError):
        assert open_model(folder).config.n_layers == 2
