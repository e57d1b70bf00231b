"""The files beside the segments: rules, recency, secret. Old or new, or nothing; never half."""

import math
from pathlib import Path

import pytest

from chatd.cache.disk.files import Files, read_file, replace_file
from chatd.cache.disk.index import Entry
from chatd.cache.disk.keys import load_secret
from chatd.cache.disk.recency import RECENCY_NAME, load_recency, save_recency
from chatd.cache.disk.rules import RULES_NAME, Rules
from chatd.cache.disk.segment import Label, Segment
from tests.cache.disk.faults import FaultyFiles, QuickFiles, os_error
from tests.cache.disk.lab import ALICE, BOB

SEGMENT = Segment(1, Label(b"f" * 16, 1, 1))


def entries(*used: int) -> dict[bytes, Entry]:
    keys = [bytes([at]) * 16 for at in range(len(used))]
    return {k: Entry(k, b"", ALICE, SEGMENT, at, 5, used[at]) for at, k in enumerate(keys)}


def test_recency_is_kept(tmp_path: Path) -> None:
    before = entries(10, 20, 30)
    save_recency(QuickFiles(), tmp_path, before.values())
    after = entries(5, 5, 5, 5)
    load_recency(QuickFiles(), tmp_path, after, now=25)
    assert [one.last_used for one in after.values()] == [10, 20, 25, 5]


@pytest.mark.parametrize("cut", [0, 5, 16, 17, 39])
def test_a_damaged_recency_is_none(cut: int, tmp_path: Path) -> None:
    save_recency(QuickFiles(), tmp_path, entries(10).values())
    path = tmp_path / RECENCY_NAME
    path.write_bytes(path.read_bytes()[:cut])
    after = entries(5)
    load_recency(QuickFiles(), tmp_path, after, now=25)
    assert [one.last_used for one in after.values()] == [5]


def test_rules_are_kept(tmp_path: Path) -> None:
    rules = Rules(QuickFiles(), tmp_path)
    rules.pin("a", [b"k" * 16])
    rules.set_ttl(None, 7.5)
    rules.set_ttl(ALICE, math.inf)
    rules.set_ttl(BOB, 3)
    rules.set_ttl(BOB, None)
    rules.save()
    again = Rules(QuickFiles(), tmp_path)
    assert again.load()
    assert again.is_pinned(b"k" * 16)
    assert (again.ttl(ALICE), again.ttl(BOB)) == (math.inf, 7.5)
    assert again.saved
    assert (tmp_path / RULES_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"{}", b"00\n{}", b"\xff\xff"])
def test_damaged_rules_are_none_and_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / RULES_NAME).write_bytes(content)
    rules = Rules(QuickFiles(), tmp_path)
    assert not rules.load()
    assert rules.pins == {}


def test_a_secret_is_made_once(tmp_path: Path) -> None:
    secret, is_new = load_secret(Files(), tmp_path)
    assert is_new
    assert load_secret(Files(), tmp_path) == (secret, False)
    path = tmp_path / "secret"
    path.write_bytes(path.read_bytes()[:-1])
    other, is_new = load_secret(Files(), tmp_path)
    assert is_new
    assert other != secret


@pytest.mark.parametrize("call", range(1, 6))
def test_replacing_leaves_old_or_new(call: int, tmp_path: Path) -> None:
    """Whichever call fails: create, write, sync, rename, sync of the folder."""
    path = tmp_path / "file"
    replace_file(QuickFiles(), path, b"old")
    with pytest.raises(OSError):
        replace_file(FaultyFiles(lambda n, name: os_error(28) if n == call else None), path, b"new")
    assert path.read_bytes() == (b"new" if call == 5 else b"old")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_reading_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_file(Files(), tmp_path / "file", limit=5) == b"12345"
    assert read_file(Files(), tmp_path / "file", limit=4) is None
    assert read_file(Files(), tmp_path / "none") is None
