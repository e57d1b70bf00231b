"""The rightness part of `chatd_kernels.check`, at small size."""

import json
from pathlib import Path

import pytest
import torch

from chatd_kernels import check, floors
from chatd_kernels.check_cases import Case, Size


def test_everything_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--small", "--json", str(tmp_path / "out.json")]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["kernels"]
    assert len(rows) == 18
    assert all(row["time_us"] is None for row in rows)
    assert "WRONG" not in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [torch.nan, 1.1])
def test_what_is_wrong_shows(wrong: float) -> None:
    one = torch.ones(4)
    case = Case("x", 2, lambda i: one * (wrong if i else 1.0), lambda i: one, floors.Work(1))
    outcome = check.measure(case, timed=False)
    assert not outcome.right
    assert "WRONG" in check.line(outcome)


def test_a_pool_at_full_size_has_more_than_2_to_the_31_elements() -> None:
    size = Size.full()
    m = size.model
    assert size.pages * size.page_size * m.layers * 2 * m.kv_heads * m.dim > 2**31


def test_what_there_is_no_time_for_is_left_out() -> None:
    turns = iter([True, True, False])
    said: list[str] = []
    report = check.check_all(small=True, say=said.append, more=lambda: next(turns))
    assert report.left_out
    assert len(report.kernels) == 2
    assert report.right
    assert len(said) == 4
