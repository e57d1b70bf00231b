"""C4's first half: whatever KV depends on changes the fingerprint, and nothing else does."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chatd.cache.disk import record
from chatd.model import fingerprint
from chatd.model.fingerprint import MEMORY_NAME, KVForm, combine, kv_fingerprint, weights_digest
from chatd.model.load import ModelFile, open_model
from tests.support.tiny_models import write_folder, write_gguf

FORM = KVForm("bfloat16", torch.bfloat16, 16, 16 * 1024)
Opener = Callable[[Path], ModelFile]


def gguf(folder: Path) -> ModelFile:
    folder.mkdir(exist_ok=True)
    return open_model(write_gguf(folder / "m.gguf"))


def hf(folder: Path) -> ModelFile:
    return open_model(write_folder(folder))


def of(file: ModelFile, folder: Path, tokenizer: str = "t", form: KVForm = FORM) -> bytes:
    return kv_fingerprint(file, tokenizer, form, folder)


def age(path: Path, seconds: int = 100) -> None:
    """Make files look as if nobody had touched them for a while."""
    for one in [path, *path.rglob("*")] if path.is_dir() else [path]:
        when = one.stat().st_mtime_ns - seconds * 10**9
        os.utime(one, ns=(when, when))


@pytest.mark.parametrize("make", [gguf, hf])
def test_c4_any_weight_byte_changes_it(make: Opener, tmp_path: Path) -> None:
    file = make(tmp_path / "model")
    before = of(file, tmp_path)
    assert len(before) == 16
    for name, path, begin, size in list(file.source.extents())[::3]:
        data = bytearray(path.read_bytes())
        data[begin + size // 3] ^= 1
        path.write_bytes(data)
        changed = of(file, tmp_path)
        assert changed != before, name
        data[begin + size // 3] ^= 1
        path.write_bytes(data)
    assert of(file, tmp_path) == before


@pytest.mark.parametrize(
    "form",
    [
        replace(FORM, weights="int4"),
        replace(FORM, kv=torch.float32),
        replace(FORM, page_size=32),
        replace(FORM, record_bytes=16 * 1032),
    ],
)
def test_c4_any_form_changes_it(form: KVForm, tmp_path: Path) -> None:
    file = gguf(tmp_path / "model")
    assert of(file, tmp_path, form=form) != of(file, tmp_path)


def test_c4_tokenizer_rope_layers_heads_and_format_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = gguf(tmp_path / "model")
    config = file.config
    before = combine(config, b"w", "t", FORM)
    others = [
        combine(config, b"v", "t", FORM),
        combine(config, b"w", "u", FORM),
        combine(replace(config, rope=replace(config.rope, base=config.rope.base + 1)), b"w", "t", FORM),
        combine(replace(config, rope=replace(config.rope, kind="linear", factor=2.0)), b"w", "t", FORM),
        combine(replace(config, n_layers=config.n_layers + 1), b"w", "t", FORM),
        combine(replace(config, n_kv_heads=config.n_heads), b"w", "t", FORM),
        combine(replace(config, head_dim=config.head_dim * 2), b"w", "t", FORM),
    ]
    monkeypatch.setattr(fingerprint, "FORMAT_VERSION", record.FORMAT_VERSION + 1)
    others.append(combine(config, b"w", "t", FORM))
    assert len({before, *others}) == len(others) + 1


def test_the_name_does_not_matter(tmp_path: Path) -> None:
    file = gguf(tmp_path / "model")
    assert combine(replace(file.config, name="another"), b"w", "t", FORM) == combine(
        file.config, b"w", "t", FORM
    )
    moved = tmp_path / "other.gguf"
    file.path.rename(moved)
    assert of(open_model(moved), tmp_path) == of(gguf(tmp_path / "model"), tmp_path)


def test_what_was_hashed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = hf(tmp_path / "model")
    age(tmp_path / "model")
    before = of(file, tmp_path)
    memory = tmp_path / MEMORY_NAME
    assert memory.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(fingerprint, "_hash", lambda path: pytest.fail("it was read again"))
    assert of(file, tmp_path) == before


def test_a_file_that_was_just_changed_is_not_remembered(tmp_path: Path) -> None:
    """It may change again within the same tick of the file system's clock."""
    file = gguf(tmp_path / "model")
    of(file, tmp_path)
    assert not (tmp_path / MEMORY_NAME).exists()


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    age(path)
    before = weights_digest([path], tmp_path / "memory")
    path.write_bytes(b"two")
    age(path, 50)
    assert weights_digest([path], tmp_path / "memory") != before
    assert len(json.loads((tmp_path / "memory").read_text())) == 2


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"1:2:3:4": "zz"}', b'{"1:2:3:4": 7}'])
def test_a_damaged_memory_is_replaced(content: bytes, tmp_path: Path) -> None:
    path, memory = tmp_path / "weights", tmp_path / "memory"
    path.write_bytes(b"one")
    age(path)
    fresh = weights_digest([path], tmp_path / "other")
    memory.write_bytes(content)
    assert weights_digest([path], memory) == fresh
    assert len(json.loads(memory.read_text())) == 1


def test_nothing_depends_on_being_remembered(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    age(path)
    assert weights_digest([path], tmp_path / "no such folder" / "memory") == weights_digest(
        [path], tmp_path / "memory"
    )


def test_the_memory_is_bounded(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    for i in range(70):
        path = tmp_path / str(i)
        path.write_bytes(b"%d" % i)
        age(path)
        weights_digest([path], memory)
    assert len(json.loads(memory.read_text())) == 64
