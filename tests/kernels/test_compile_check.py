"""Kernels compiled ahead of time for GPUs that are not there, in processes of their own."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chatd_kernels.compile_check import compile_one, faults, listed
from chatd_kernels.triton.machine_code import Report

ROOT = Path(__file__).parents[2]
EXTENDS = "llama-3-8b bf16 extend 4x512"
DECODES = "llama-3-8b bf16 decode x128"


def compile_check(tmp_path: Path, *options: str, timeout: int) -> list[dict[str, Any]]:
    """Run the command; fails with its table if it does."""
    results = tmp_path / "results.json"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-m",
            "chatd_kernels.compile_check",
            "--json",
            str(results),
            *options,
        ],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path / "cache")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-5_000:]
    found: list[dict[str, Any]] = json.loads(results.read_text())
    return found


@pytest.mark.timeout(310)
def test_what_matters_most_compiles_for_every_target(tmp_path: Path) -> None:
    found = compile_check(tmp_path, "--only", EXTENDS, "--only", DECODES, timeout=300)
    matrix = {(row["target"], row["name"]): set(row["report"]["matrix"]) for row in found}
    assert len(matrix) == 8
    assert matrix["sm_80", f"{EXTENDS}: attend"] == {"HMMA"}
    assert matrix["sm_90", f"{EXTENDS}: attend"] == {"HGMMA"}
    assert matrix["sm_100", f"{EXTENDS}: attend"] == {"UTCHMMA"}
    assert all(name.startswith("v_mfma") for name in matrix["gfx942", f"{EXTENDS}: attend"])


@pytest.mark.timeout(310)
def test_one_target_has_every_kernel(tmp_path: Path) -> None:
    found = compile_check(
        tmp_path, "--target", "sm_90", "--only", "smollm2-135m bf16", "--only", "kv int8 pages", timeout=300
    )
    kernels = {row["name"].split(": ")[1] for row in found}
    assert kernels == {"attend", "copy_slots", "merge", "rms_norm", "rope_store", "sample"}
    assert all(row["report"]["registers"] > 0 for row in found)


def test_faults_are_found() -> None:
    good = Report(registers=128, spills=0, shared=1000, matrix={"HMMA": 8}, programs=2, occupancy=0.2)
    assert faults("x: attend", good, 1000) == ()
    assert faults("x: attend", replace(good, spills=3), 1000) == ("3 spills",)
    assert faults("x: attend", replace(good, shared=1001), 1000) == ("shared memory over 1000",)
    assert faults("x: attend", replace(good, matrix={}), 1000) == ("no matrix instruction",)
    assert faults("x: merge", replace(good, matrix={}), 1000) == ()


def test_a_kernel_with_too_few_warps_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing, spoiled: what counts spills sees them."""
    (index,) = [i for i, made in enumerate(listed("sm_90")) if made.name == f"{EXTENDS}: attend"]
    spoiled = replace(listed("sm_90")[index], num_warps=4)
    monkeypatch.setattr("chatd_kernels.compile_check.listed", lambda target: {index: spoiled})
    result = compile_one("sm_90", index)
    assert result.report.spills > 0
    assert result.faults[0].endswith("spills")


@pytest.mark.full
@pytest.mark.timeout(1000)
def test_everything_compiles_in_five_minutes(tmp_path: Path) -> None:
    found = compile_check(tmp_path, timeout=900)
    assert {row["target"] for row in found} == {"sm_80", "sm_90", "sm_100", "gfx942"}
    assert len(found) > 150
