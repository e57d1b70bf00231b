"""Machine code is made once, by another process, and never needs numba again."""

import subprocess
import sys
from pathlib import Path

import pytest

from chatd_kernels.cpu.library import Library, Spec

SPEC = Spec("norm", "make_silu_mul", ("f32",))

WITHOUT_NUMBA = """
import sys, torch
sys.modules["numba"] = None
from pathlib import Path
from chatd_kernels.cpu import CpuOps
from chatd_kernels.cpu.library import Library
ops = CpuOps(Library(Path(sys.argv[1])))
x = torch.randn(3, 64)
want = torch.nn.functional.silu(x[:, :32]) * x[:, 32:]
torch.testing.assert_close(ops.silu_mul(x), want)
"""


def test_a_kernel_is_compiled_once(tmp_path: Path) -> None:
    told: list[tuple[float, str]] = []
    library = Library(tmp_path)
    assert library.missing([SPEC, SPEC]) == [SPEC]
    library.compile([SPEC], lambda share, what: told.append((share, what)))
    assert told == [(1.0, "compiling for this CPU, once: kernel 1 of 1")]
    assert Library(tmp_path).missing([SPEC]) == []
    Library(tmp_path).compile([SPEC], lambda share, what: pytest.fail("compiled twice"))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMBA, str(tmp_path)],
        env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_what_does_not_compile_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no attribute 'make_nothing'"):
        Library(tmp_path).body(Spec("norm", "make_nothing"))


def test_nothing_is_imported_from_the_folder_it_is_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "html.py").write_text("raise SystemExit('this is not the library's')")
    monkeypatch.chdir(tmp_path)
    Library(tmp_path / "kernels").compile([SPEC])
    assert Library(tmp_path / "kernels").missing([SPEC]) == []


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    library = Library(tmp_path / "file")
    assert library.body(SPEC) > 0
