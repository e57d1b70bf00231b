"""Threads for the model: cores, not hyperthreads, and no more than the container has."""

import os
from pathlib import Path

import pytest

from chatd.cli.cores import compute_threads, physical_cores, quota_cores, wait_briefly


def test_hyperthreads_of_one_core_count_once(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert physical_cores(range(4), tmp_path) == 2
    assert physical_cores([1, 3], tmp_path) == 1
    assert physical_cores(range(6), tmp_path) == 4


@pytest.mark.parametrize(("text", "cores"), [("150000 100000", 2), ("50000 100000", 1), ("800000 100000", 8)])
def test_a_quota_is_whole_cores(tmp_path: Path, text: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(text + "\n")
    assert quota_cores(tmp_path / "cpu.max") == cores


@pytest.mark.parametrize("text", ["max 100000", ""])
def test_no_quota_is_no_limit(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert quota_cores(tmp_path / "cpu.max") > 1000
    assert quota_cores(tmp_path / "missing") > 1000


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert compute_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "500")  # of an image made for a larger machine
    assert compute_threads() == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    assert compute_threads() >= 1


def test_how_threads_wait_is_the_users_to_say() -> None:
    plain: dict[str, str] = {}
    wait_briefly(plain)
    assert list(plain) == ["GOMP_SPINCOUNT"]
    for said in ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}):
        kept = dict(said)
        wait_briefly(kept)
        assert kept == said
