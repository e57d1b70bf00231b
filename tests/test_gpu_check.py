"""`python -m chatd.gpu_check` without a card: it runs, and nothing in it can pass for a measurement."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chatd.engine.prepare import RunnerSettings
from chatd.gpu_check.__main__ import NO_DEVICE, main
from chatd.gpu_check.bench import Bench, Timeline
from chatd.gpu_check.cases import SMALL, Prompts, decode_rate, engine_cases
from chatd.gpu_check.check_report import CheckReport, Result, Start
from chatd.gpu_check.random_model import SHAPES, TINY, random_weights
from chatd_kernels.check import Outcome, Report

CPU = torch.device("cpu")


def run(tmp_path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    code = main(["--device", "cpu", "--shape", "tiny", "--json", str(tmp_path / "out.json"), *options])
    return code, json.loads((tmp_path / "out.json").read_text())


def figures(value: object) -> list[float]:
    """Every number with a fraction, wherever it stands."""
    if isinstance(value, dict):
        return [figure for inner in value.values() for figure in figures(inner)]
    if isinstance(value, list):
        return [figure for inner in value for figure in figures(inner)]
    return [value] if isinstance(value, float) and value % 1 else []


def test_without_a_card_it_says_so_and_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == NO_DEVICE == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert "no CUDA device here" in out.err
    with pytest.raises(SystemExit):
        main(["--device", "cpu"])


def test_on_a_cpu_every_case_runs_and_no_figure_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = run(tmp_path)
    out = capsys.readouterr()
    assert code == 0, out.err
    assert "NOTHING WAS MEASURED" in out.out
    assert "tokens/s" not in out.out
    assert report["measured"] is False
    assert (report["kernels"], report["starts"]) == (None, [])
    assert figures(report["engine"]) == []
    assert [row["value"] for row in report["engine"]] == [None] * 12
    assert {row["note"] for row in report["engine"]} == {"ran, not measured"}
    assert [row["graphs"] for row in report["engine"]] == [False] * 6 + [True] * 6


def test_what_there_is_no_time_for_is_left_out(tmp_path: Path) -> None:
    code, report = run(tmp_path, "--minutes", "0")
    assert (code, report["engine"]) == (0, [])


def test_int8_kv_goes_through_it_too(tmp_path: Path) -> None:
    assert run(tmp_path, "--kv-dtype", "int8")[0] == 0


def test_the_figures_themselves_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    """The cases give finite, positive figures; what a report on a card prints of them."""
    weights = random_weights(TINY, SMALL.context_length, torch.float32, CPU)
    settings = RunnerSettings(torch.float32, SMALL.context_length, 64, SMALL.max_running, kv_bytes=1 << 22)
    bench = Bench(weights, settings)
    try:
        values = [case.run() for case in engine_cases(bench, SMALL, TINY, Prompts(TINY.vocab))]
    finally:
        bench.close()
    assert all(math.isfinite(value) and value > 0 for value in values)
    outcome = Outcome("decode", 0.5, 100.0, 50.0)
    report = CheckReport(
        True, "Some card", TINY, SMALL, Report("Some card", 4e12, (outcome,), left_out=True),
        [Start(True, "triton", 1000, 2.0, (1, 2), 3)], [Result("decode", True, "tokens/s", 12.0, 24.0)],
    )  # fmt: skip
    table = "\n".join(report.table())
    for words in (
        "Some card",
        "wrong: decode",
        "left out",
        "2 graphs in 3 bytes",
        "12.0 tokens/s",
        "floor: 24",
    ):
        assert words in table
    assert json.loads(report.json())["starts"][0]["capture_bytes"] == 3


def test_a_rate_counts_only_while_all_decode() -> None:
    """The first has two ids before the second begins, and one after its end that does not count."""
    one, other = Timeline(0.0, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), Timeline(0.0, [2.5, 3.5, 4.5])
    assert decode_rate([one, other]) == (2 + 2) / 2.0
    assert other.ttft_s == 2.5


def test_random_weights_have_the_shape_of_their_model() -> None:
    assert set(SHAPES) == {"llama-3-8b", "tiny"}
    weights = random_weights(TINY, 256, torch.float32, CPU)
    assert weights.config.n_kv_heads == TINY.kv_heads
    assert weights.layers[0].qkv(torch.zeros(3, TINY.hidden)).shape == (3, 8 * 16)
    assert weights.layers[0].down(torch.zeros(3, TINY.ffn)).shape == (3, TINY.hidden)
    rows = weights.embedding(torch.arange(TINY.vocab))
    assert np.isclose(float(rows.std()), 0.02, rtol=0.05)
