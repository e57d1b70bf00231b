"""The table of bytes and operations: against counts made by hand, and as the README shows it."""

from pathlib import Path

import pytest

from chatd_kernels import floors
from chatd_kernels.shapes import LLAMA_3_8B, SMOLLM2_135M

README = Path(__file__).parents[2] / "kernels" / "README.md"


def test_kv_bytes_of_a_token() -> None:
    assert floors.kv_token_bytes(SMOLLM2_135M) * SMOLLM2_135M.layers == 23_040
    assert floors.kv_token_bytes(LLAMA_3_8B) * LLAMA_3_8B.layers == 131_072


def test_weights_of_a_step_are_those_of_the_model() -> None:
    works = floors.step(LLAMA_3_8B, 1, 1, 1)["linears"]
    weights = sum(work.operations for work in works) / 2
    assert 7.4e9 < weights < 7.6e9  # 8.03e9 less the embedding's 0.53e9
    assert floors.total(works).moved == pytest.approx(2 * weights, rel=0.001)


def test_queries_see_what_is_before_them() -> None:
    def pairs(q_len: int, kv_len: int) -> float:
        work = floors.attention(SMOLLM2_135M, 1, q_len, kv_len, 1)
        return work.operations / (4 * SMOLLM2_135M.heads * SMOLLM2_135M.dim)

    for q_len, kv_len in ((1, 1), (1, 9), (4, 4), (5, 11)):
        seen = sum(kv_len - q_len + 1 + i for i in range(q_len))
        assert pairs(q_len, kv_len) == seen


def test_the_readme_has_the_tables() -> None:
    text = README.read_text()
    for table in (floors.kernel_table, floors.step_table):
        assert "\n".join(table()) in text, "run python -m chatd_kernels.floors and put its tables there"
