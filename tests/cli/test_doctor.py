"""`chatd doctor`: what was found and what is chosen, for people and for programs."""

import json
from pathlib import Path

import pytest

from tests.cli.terminals import piped
from tests.support.tiny_models import write_folder


async def test_what_was_found_and_chosen(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "tiny")
    asked = ["doctor", "--device", "cpu", "--model", str(model), "--data-dir", str(tmp_path / "data")]
    code, out, err = await piped([*asked, "--weights", "fp32", "--json"])
    assert code == 0, err
    told = json.loads(out)
    cpu = told["machine"]["cpu"]
    assert cpu["threads"] >= 1
    assert cpu["read_gb_s"] > 0
    assert cpu["memory_free"] > 0
    assert told["machine"]["packages"]["torch"].count(".") >= 2
    assert (told["chosen"]["weights"], told["chosen"]["kv"]) == ("float32", "float32")
    assert (told["chosen"]["device"], told["chosen"]["kernels"]) == ("cpu", "reference")
    code, out, err = await piped([*asked, "--weights", "fp32"])
    assert code == 0, err
    assert "GB/s" in out
    assert "reference kernels on cpu" in out
    assert "weights in float32 and KV in float32 for tiny" in out


async def test_what_a_start_would_refuse_is_refused(tmp_path: Path) -> None:
    code, _, err = await piped(["doctor", "--model", str(tmp_path / "none.gguf")])
    assert code == 2
    assert "no such file" in err


@pytest.mark.parametrize("form", ["int4", "int8"])
async def test_codes_are_chosen_where_they_are_asked_for(tmp_path: Path, form: str) -> None:
    model = write_folder(tmp_path / "tiny")
    asked = [
        "doctor",
        "--device",
        "cpu",
        "--model",
        str(model),
        "--weights",
        form,
        "--kernels",
        "cpu",
        "--json",
    ]
    code, out, err = await piped(asked)
    assert code == 0, err
    chosen = json.loads(out)["chosen"]
    assert (chosen["weights"], chosen["kv"], chosen["kernels"]) == (form, "bfloat16", "cpu")
