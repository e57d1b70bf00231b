"""These tests need TRITON_INTERPRET=1 before anything imports triton: `tests/kernels/test_interpreter.py`
runs them in processes of their own."""

import os
from collections.abc import Iterator

import pytest
import torch

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    """`torch.empty` gives NaN or the largest integer: an output that is not written shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    yield
    torch.use_deterministic_algorithms(False)
