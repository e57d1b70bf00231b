"""Backends by name, and what importing them needs."""

import subprocess
import sys

import pytest
import torch

from chatd_kernels import BACKENDS, check, load_backend

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import chatd_kernels
import chatd_kernels.check, chatd_kernels.compile_check, chatd_kernels.floors, chatd_kernels.layout
assert chatd_kernels.load_backend("reference").name == "reference"
try:
    chatd_kernels.load_backend("triton")
except ImportError:
    print("no triton")
"""


def test_nothing_but_its_own_backend_needs_triton() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "no triton\n"), done.stderr


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"'vulkan'.*reference, triton"):
        load_backend("vulkan")
    assert set(BACKENDS) == {"reference", "triton", "cpu"}


def test_without_a_gpu_triton_says_what_to_do() -> None:
    command = "from chatd_kernels import load_backend; load_backend('triton')"
    done = subprocess.run(
        [sys.executable, "-c", command], env={"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "TRITON_INTERPRET=1" in done.stderr


def test_the_check_without_a_card_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert check.main([]) == 2
    assert "nothing was measured" in capsys.readouterr().err
